// A lane with shards: all of them together, and what leads from one of them back there.

import { h } from "./dom.js";
import { count, orNone, rate } from "./format.js";
import { groupTable, laneState, name, searchForm } from "./lane.js";
import { laneHref, shardsHref, wholeOf } from "./paths.js";
import { facts, table } from "./table.js";

/** The way to a page: from all lanes, over the lane that `lane` is a shard of, and `more` links. */
export function way(lane, ...more) {
  const whole = wholeOf(lane);
  const links = [whole && h("a", { href: shardsHref(whole) }, name(whole)), ...more].filter(link => link);
  return h("nav", { "aria-label": "Where this is" }, h("a", { href: "#/" }, "All lanes"), links.map(link => [" › ", link]));
}

/** The lanes as the configuration names them: [name, lanes] each, with several or one shard or the lane itself. */
export function wholeLanes(lanes) {
  const found = new Map();
  for (const lane of lanes) {
    const whole = wholeOf(lane.lane) ?? lane.lane;
    found.set(whole, [...(found.get(whole) ?? []), lane]);
  }
  return [...found];
}

/** All shards of a lane: what those that are led here have together, and a row for each. */
export function shardsBody(shards, samples) {
  const led = shards.filter(shard => shard.status);
  const sum = value => {
    const known = led.map(value).filter(each => each !== null && each !== undefined);
    return known.length ? known.reduce((total, each) => total + each, 0) : null;
  };
  const settled = shard => samples?.lanes[shard.lane]?.settled_per_s.at(-1);
  return [
    facts([
      ["shards", count(shards.length)],
      ["led here", count(led.length)],
      ...(led.length ? [
        ["settled", rate(sum(settled))],
        ["groups", count(sum(shard => shard.status.groups))],
        ["held here", count(sum(shard => shard.status.held))],
        ["in flight", count(sum(shard => shard.status.in_flight))],
        ["parked", count(sum(shard => shard.status.parked))],
        ["dead letters", count(sum(shard => shard.status.dead_letters))],
      ] : []),
    ]),
    table("Shards", led.length < shards.length ? "the numbers above are of those that are led here" : "",
      [["shard", ""], ["state", "wide"], ["active dispatcher", "id"], ["settled", "n"], ["consumers", "n"], ["groups", "n"],
        ["held here", "n"], ["in flight", "n"], ["parked", "n"], ["dead letters", "n"]],
      shards.map(shard => [shard.lane, h("a", { href: laneHref(shard.lane) }, name(shard.lane)), state(shard),
        orNone(shard.status?.dispatcher ?? shard.leader), rate(settled(shard)), ...numbers(shard.status)])),
  ];
}

/** Groups of all shards that are led here, found by their ids. */
export function shardsSearch(route, found, onSearch) {
  const elsewhere = found.groups?.not_led_here ?? [];
  return h("section", { key: "search" },
    h("h3", null, "Groups"),
    searchForm(onSearch),
    route.search ? groupTable(route, found.groups) : null,
    elsewhere.length ? h("p", { key: "elsewhere", class: "dim" }, "Not led here: ", name(elsewhere.join(", "))) : null);
}

function numbers(status) {
  return ["consumers", "groups", "held", "in_flight", "parked", "dead_letters"].map(field => count(status?.[field]));
}

function state(shard) {
  const [ready, held] = laneState(shard, "span");
  return [ready, held && [" ", held]];
}
