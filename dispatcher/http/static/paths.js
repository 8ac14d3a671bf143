// Addresses: of the page's parts, and of a lane in the API.

/** What a lane is a shard of; null: it is none. */
export const wholeOf = lane => /^(.+)@\d+$/.exec(lane)?.[1] ?? null;
export const shardsHref = whole => `#/shards/${encodeURIComponent(whole)}`;
export const laneHref = lane => `#/lanes/${encodeURIComponent(lane)}`;
export const groupHref = (lane, group) => `${laneHref(lane)}/group/${encodeURIComponent(group)}`;
export const lanePath = lane => `/api/lanes/${encodeURIComponent(lane)}`;
