// Addresses: of the page's parts, and of a lane in the API.

export const laneHref = lane => `#/lanes/${encodeURIComponent(lane)}`;
export const groupHref = (lane, group) => `${laneHref(lane)}/group/${encodeURIComponent(group)}`;
export const lanePath = lane => `/api/lanes/${encodeURIComponent(lane)}`;
