// One group: why it waits, what is out and since when, its first messages.

import { groupActions } from "./actions.js";
import { h } from "./dom.js";
import { count, orNone, span } from "./format.js";
import { name } from "./lane.js";
import { laneHref, lanePath } from "./paths.js";
import { way } from "./shards.js";
import { facts, table } from "./table.js";

/** What the page of a group shows: paths of the API by their names. */
export function groupPaths({ lane, group }) {
  return { lane: lanePath(lane), group: `${lanePath(lane)}/group?id=${encodeURIComponent(group)}` };
}

export function groupPage({ lane, group }, found, actions) {
  return [
    way(lane, h("a", { href: laneHref(lane) }, name(lane))),
    h("section", { key: group }, h("h2", { tabindex: -1 }, "Group ", name(group)),
      found.group ? groupBody({ lane, group }, found.group, actions) : notHere(found)),
  ];
}

function notHere({ lane }) {
  return lane && !lane.status ? h("p", { class: "dim" }, "This process does not lead the lane.") : [];
}

function groupBody({ lane, group }, { show, why, history: events }, actions) {
  return [
    h("p", { class: "verdict" }, why.verdict, why.reason ? [" ", h("code", null, why.reason)] : null),
    why.details.length ? h("ul", { key: "details" }, why.details.map(detail => h("li", null, detail))) : null,
    actions.bar(lane, groupActions(group, show)),
    actions.panel(),
    facts([
      ["state", show.state],
      ["owner", orNone(show.owner)],
      ["epoch", show.epoch === null ? "–" : String(show.epoch)],
      ["held here", count(show.held)],
      ["in flight", count(show.in_flight)],
      ["out for", span(show.oldest_in_flight_ms)],
      ["oldest waits for", span(show.oldest_ms)],
      ["parked", count(show.parked)],
      show.window !== null && ["window", count(show.window)],
      show.last_number !== null && ["last number", String(show.last_number)],
      show.paused && ["paused", "yes"],
      show.pin !== null && ["pinned to", show.pin],
      show.operation !== null && ["operation", show.operation],
      show.stopped !== null && ["stopped at", show.stopped],
      [why.blocking ? "behind the first" : "waiting", count(why.behind)],
      why.dead_lettered.count > 0 && ["went to the dead queue",
        `${count(why.dead_lettered.count)} at least, in the last ${span(why.dead_lettered.since_ms)}`],
    ]),
    inFront(why.blocking),
    messages(show),
    history(events),
  ];
}

/** Its last moves, and what the log says of it. */
function history(events) {
  return table("What happened lately", "the newest first, as far as this leadership remembers", [["when (UTC)", "whole"],
    ["event", ""], ["consumer", ""], ["", "wide"]],
  events.map((each, number) => [`${each.at} ${each.event} ${events.length - number}`, each.at.slice(11, 23),
    each.event.replaceAll("_", " "), each.consumer === null ? "–" : name(each.consumer), each.detail]), "nothing");
}

function inFront(blocking) {
  if (!blocking) return null;
  const { message } = blocking;
  return h("p", { key: "front" }, `In front: message ${message.arrival} of `, name(message.inbound ?? "a former queue"),
    `, hand-over ${message.attempt}, at consumer ${orNone(blocking.consumer)} for ${span(blocking.since_ms)}`);
}

function messages(show) {
  const known = show.held + show.in_flight;
  const note = `${count(show.messages.length)} of ${count(known)}; those in flight come first`;
  return table("Messages", note, [["arrival", "whole"], ["inbound queue", ""], ["state", ""], ["consumer", ""],
    ["hand-overs", "n"], ["seq", "n"], ["bytes", "n"], ["age", "n"]],
  show.messages.map(message => [`${message.inbound} ${message.arrival}`, message.arrival,
    name(message.inbound ?? "–"), message.parked_in ? `${message.state}, from ${message.parked_in}` : message.state,
    orNone(message.consumer), count(message.attempt), message.seq === null ? "–" : String(message.seq),
    count(message.size), span(message.age_ms)]), "none here");
}
