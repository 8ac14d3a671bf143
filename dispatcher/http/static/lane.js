// A lane: what it does now, its inbound queues, consumers and groups.

import { drainAction, laneActions } from "./actions.js";
import { h } from "./dom.js";
import { count, latency, orNone, percent, rate, span } from "./format.js";
import { groupHref, laneHref, lanePath } from "./paths.js";
import { sparkline } from "./sparkline.js";
import { facts, table } from "./table.js";

const LISTS = [
  ["busiest", "Busiest", "sort=busiest&limit=20", "by their part of the last minute's messages"],
  ["deepest", "Deepest", "sort=depth&limit=20", "by the messages that wait, are out or are parked"],
  ["oldest", "Oldest", "sort=age&limit=20", "by the message that has waited for longest"],
  ["held", "Can't go on", "sort=age&reason=any&limit=50", "the oldest first"],
];
const GIVEN_UP = ["dead_lettered", "poisoned", "unpublishable", "failed"];

const listHref = (lane, list) => `${laneHref(lane)}/groups/${list}`;

/** An id that somebody else gave: text with its own direction. */
export const name = id => h("bdi", null, id);

/** What the page of a lane shows: paths of the API by their names. */
export function lanePaths({ lane, list, search }) {
  const [, , query] = LISTS.find(([id]) => id === list) ?? LISTS[0];
  return {
    lane: lanePath(lane),
    samples: `/api/samples?lane=${encodeURIComponent(lane)}`,
    consumers: `${lanePath(lane)}/consumers`,
    groups: search ? searchPath(lane, search) : `${lanePath(lane)}/groups?${query}`,
    stopped: `${lanePath(lane)}/stopped`,
    dead: `${lanePath(lane)}/dead`,
    operations: `${lanePath(lane)}/operations`,
  };
}

/** The groups of a lane, or of all its shards, whose ids have that text. */
export function searchPath(lane, text) {
  const pattern = /[*?]/.test(text) ? text : `*${text}*`;
  return `${lanePath(lane)}/groups?match=${encodeURIComponent(pattern)}&limit=50`;
}

/** Whether a lane is led, and what holds all of it, if anything does: an element each. */
export function laneState({ readiness, status }, tag) {
  const { hold } = status ?? {};
  return [
    h(tag, { class: readiness.ready ? "good" : "bad", role: "status" }, `${readiness.ready ? "✓" : "✗"} ${readiness.text}`),
    hold && hold.reason !== "copies_unconfirmed"
      ? h(tag, { key: "hold", class: "bad" }, `${hold.verdict} (${hold.reason})`) : null,
  ];
}

/** The head of a lane: its state, its numbers, its last ten minutes. */
export function laneHead(lane, samples) {
  const { status } = lane;
  return [
    ...laneState(lane, "p"),
    status ? laneFacts(lane, status) : h("p", { class: "dim" },
      lane.leader ? ["This process does not lead the lane. ", name(lane.leader), " does: its page has the details."]
        : "This process does not lead the lane. The page of the replica that leads it has the details."),
    samples ? charts(samples) : null,
  ];
}

function laneFacts(lane, status) {
  const busiest = status.busiest_group;
  return facts([
    ["policy", lane.policy],
    ["active dispatcher", `${status.dispatcher} for ${span(status.since_ms)}`],
    ["stands by", status.standbys === null ? "not known" : status.standbys.length
      ? status.standbys.map(each => `${each.dispatcher} for ${span(each.since_ms)}`).join(", ") : "nobody"],
    ["lane epoch", String(status.lane_epoch)],
    ["consumers", count(status.consumers)],
    ["groups", count(status.groups)],
    ["held here", count(status.held)],
    ["in flight", count(status.in_flight)],
    ["oldest in flight", span(status.oldest_in_flight_ms)],
    status.parked > 0 && ["parked", count(status.parked)],
    status.groups_paused > 0 && ["paused groups", count(status.groups_paused)],
    status.groups_pinned > 0 && ["pinned groups", count(status.groups_pinned)],
    status.groups_stopped > 0 && ["stopped groups", count(status.groups_stopped)],
    status.consumers_frozen > 0 && ["frozen consumers", count(status.consumers_frozen)],
    status.consumers_drained > 0 && ["drained consumers", count(status.consumers_drained)],
    status.consumers_waiting > 0 && ["consumers that wait for an id in use", count(status.consumers_waiting)],
    status.dead_letters > 0 && ["dead letters", count(status.dead_letters)],
    status.undeliverable > 0 && ["undeliverable", count(status.undeliverable)],
    busiest && ["busiest group", [h("a", { href: groupHref(lane.lane, busiest.group) }, name(busiest.group)),
      ` ${percent(busiest.share)} of the last minute`]],
  ]);
}

function charts(samples) {
  const longest = values => {
    const known = values.filter(value => value !== null);
    return known.length ? `longest ${latency(Math.max(...known))}` : "";
  };
  return h("div", { class: "charts" },
    sparkline("Settled", samples.settled_per_s, rate),
    sparkline("Backlog", samples.backlog, count),
    sparkline("In flight", samples.in_flight, count),
    sparkline("Commit (Redis)", samples.commit_ms, latency, longest(samples.commit_longest_ms)),
    sparkline("Confirm (RabbitMQ)", samples.confirm_ms, latency, longest(samples.confirm_longest_ms)));
}

/** All of a lane that is led here. `found`: the answers by the names of `lanePaths`. */
export function laneBody(route, found, onSearch, actions) {
  const status = found.lane.status;
  if (!status) return [];
  return [
    actions.bar(route.lane, laneActions(status.hold?.reason === "lane_paused")),
    actions.panel(),
    inbound(status.inbound),
    consumers(route.lane, found.consumers, actions),
    groups(route, found.groups, onSearch),
    stopped(route.lane, found.stopped),
    parking(status.parking),
    operations(route.lane, found.operations),
    failOvers(status.leaderships),
    deadLetters(route.lane, found.dead),
    givenUp(status.counters),
    counters(status.counters),
  ];
}

function inbound(rows) {
  const weights = rows.reduce((sum, row) => sum + row.weight, 0);
  return table("Inbound queues", "", [["queue", ""], ["weight", "n"], ["share by weight", "n"], ["share so far", "n"],
    ["ready", "n"], ["held here", "n"], ["in flight", "n"], ["handed over", "n"], ["note", "wide"]],
  rows.map(row => [row.queue, name(row.queue), count(row.weight), percent(row.weight / weights), percent(row.share),
    count(row.ready), count(row.held), count(row.in_flight), count(row.dispatched), inboundNote(row)]));
}

function inboundNote(row) {
  const notes = [];
  if (row.full) notes.push(`look-ahead of ${count(row.look_ahead)} full of ${row.full_of}`);
  if (row.ungrouped_hold) notes.push(`messages without a group wait: ${row.ungrouped_hold.verdict}`);
  if (row.settled_unacked_ms >= 1000) {
    notes.push(`${count(row.settled_unacked)} settled, not acked for ${span(row.settled_unacked_ms)}`);
  }
  return orNone(notes.join("; "));
}

function consumers(lane, found, actions) {
  if (!found) return null;
  const absent = found.drained_absent.length ? `drained and not here: ${found.drained_absent.join(", ")}` : "";
  return table("Consumers", absent, [["consumer", ""], ["state", ""], ["prefetch", "n"], ["in flight", "n"],
    ["handed over", "n"], ["oldest message", "n"], ["groups", "n"], ["last heard", "n"], ...(actions.mayAct ? [["action", ""]] : [])],
  found.consumers.map(row => [row.incarnation, name(row.consumer), consumerState(row), count(row.prefetch),
    count(row.in_flight), handedOver(row), span(row.oldest_in_flight_ms), count(row.groups), `${span(row.last_heartbeat_ms)} ago`,
    ...(actions.mayAct ? [actions.button(lane, drainAction(row))] : [])]),
  "none has joined");
}

/** What came to an incarnation, by its uuid: [when, total], of the last seconds. */
const totals = new Map();
const RATE_MS = 10_000;

/** Its messages in a second, from what the page has heard. */
function handedOver({ incarnation, handed_over: total }) {
  const now = performance.now(), known = totals.get(incarnation) ?? [];
  if (known.at(-1)?.[1] !== total || known.length < 2) known.push([now, total]);
  while (known.length > 1 && known[1][0] < now - RATE_MS) known.shift();
  totals.set(incarnation, known);
  const [since, before] = known[0];
  return now - since < 1000 ? "–" : rate((total - before) / (now - since) * 1000);
}

function consumerState(row) {
  const states = [row.state];
  if (row.drained) states.push("drained");
  if (row.id_wanted_by) states.push("id twice");
  if (row.alone) states.push("tries a message alone");
  if (row.overdue) states.push(`${count(row.overdue)} overdue`);
  if (row.evicted_by) states.push(`evicted by ${row.evicted_by}`);
  return states.join(", ");
}

function groups(route, found, onSearch) {
  const shown = LISTS.find(([id]) => id === route.list) ?? LISTS[0];
  const links = LISTS.map(([id, title]) => h("a", { key: id, href: listHref(route.lane, id),
    "aria-current": !route.search && id === shown[0] ? "true" : null }, title));
  return [
    h("h3", null, "Groups"),
    h("nav", { class: "lists", "aria-label": "Which groups" }, links),
    searchForm(onSearch),
    route.search ? h("p", { key: "exact" },
      h("a", { href: groupHref(route.lane, route.search) }, "The group ", name(route.search))) : null,
    groupTable(route, found, shown[3]),
  ];
}

/** Where a text is given that ids of groups have. */
export function searchForm(onSearch) {
  return h("form", { key: "search", onsubmit: onSearch, role: "search" },
    h("label", { for: "search" }, "Id"), h("input", { id: "search", name: "search", type: "search",
      autocomplete: "off", spellcheck: "false", "aria-describedby": "search-note" }),
    h("button", { type: "submit" }, "Search"),
    h("span", { id: "search-note", class: "dim" }, "a part of it; * and ? stand for any"));
}

/** Groups that the API has listed. `order`: in which order they are, unless they were searched for. */
export function groupTable({ lane, search }, found, order) {
  if (!found) return h("p", { key: "looking", class: "dim" }, "Looking at all groups");
  const note = search ? `with “${search}” in the id` : order;
  const withShare = found.groups.some(row => row.share !== undefined);
  const withShard = found.not_led_here !== undefined;
  const columns = [["group", ""], ...(withShard ? [["shard", ""]] : []), ...(withShare ? [["share", "n"]] : []),
    ["why it waits", "wide"], ["owner", "id"], ["waits", "n"], ["out", "n"], ["out for", "n"], ["oldest waits for", "n"]];
  const rows = found.groups.map(row => [[row.lane, row.group].join(" "),
    h("a", { href: groupHref(row.lane ?? lane, row.group) }, name(row.group)),
    ...(withShard ? [h("a", { href: laneHref(row.lane) }, name(row.lane))] : []),
    ...(withShare ? [percent(row.share)] : []),
    [row.verdict, row.reason ? [" ", h("code", null, row.reason)] : null], orNone(row.owner),
    count(row.held + row.parked), count(row.in_flight), span(row.oldest_in_flight_ms), span(row.oldest_ms)]);
  return table("Groups", `${count(found.groups.length)} of ${count(found.total)}, ${note}`, columns, rows,
    `none, ${note}`);
}

function stopped(lane, found) {
  return found && table("Stopped groups", "until an operator decides", [["group", ""], ["why its message failed", "wide"],
    ["consumer", "id"], ["hand-overs", "n"], ["for", "n"], ["behind it", "n"], ["decision", ""]],
  found.groups.map(row => [row.group, h("a", { href: groupHref(lane, row.group) }, name(row.group)), row.reason,
    row.consumer, count(row.attempt), span(row.since_ms), count(row.behind), orNone(row.verdict)]));
}

function deadLetters(lane, found) {
  return found && table("Dead letters", "the latest of this leadership; `dispatcher dead list` shows what lies there now",
    [["when (UTC)", "whole"], ["group", ""], ["reason", "wide"], ["hand-overs", "n"], ["calls", "n"]],
    found.messages.map((row, index) => [`${row.at} ${index}`, row.at.slice(0, 19).replace("T", " "),
      row.group === null ? "–" : h("a", { href: groupHref(lane, row.group) }, name(row.group)), row.reason,
      count(row.attempt), row.calls === null ? "–" : count(row.calls)]));
}

function parking(rows) {
  return table("Parking queues", "backlogs that can't go", [["queue", ""], ["of consumer", ""], ["groups", "n"],
    ["messages", "n"]],
  rows.map(row => [row.queue, name(row.queue), orNone(row.consumer), count(row.groups), count(row.parked)]));
}

function operations(lane, found) {
  return found && table("Operations under way", "", [["operation", ""], ["group", ""], ["waits for", ""], ["done", "n"],
    ["left", "n"], ["id", ""]],
  found.operations.map(row => [row.uuid, row.operation, h("a", { href: groupHref(lane, row.group) }, name(row.group)),
    orNone(row.waits_for.join(", ")), count(row.gone), count(row.left), row.uuid]));
}

function failOvers(leaderships) {
  const former = leaderships.slice(1);
  return table("Fail-overs", "the latest first: who led before, and why that ended",
    [["from", "id"], ["to", "id"], ["ago", "n"], ["why", "wide"], ["lane epoch since", "n"]],
    former.map((each, index) => [leaderships[index].lane_epoch, name(each.dispatcher),
      name(leaderships[index].dispatcher), span(leaderships[index].began_ms), each.why ?? "not known",
      String(leaderships[index].lane_epoch)]));
}

function givenUp(all) {
  return table("Failed messages", "since this leadership began; `dispatcher dead list` shows those in the dead queue",
    [["what became of them", ""], ["messages", "n"]],
    GIVEN_UP.filter(counter => all[counter]).map(counter =>
      [counter, counter.replaceAll("_", " "), count(all[counter])]));
}

function counters(all) {
  return h("details", { key: "counters" }, h("summary", null, "Counters of this leadership"),
    table("Counters", "", [["counter", ""], ["total", "n"]],
      Object.keys(all).sort().map(counter => [counter, counter.replaceAll("_", " "), count(all[counter])]), "none"));
}
