// What operators do from the page. Each action is asked for once more; those that move or delete messages, and
// a rebalance, say first what they would do.

import { h } from "./dom.js";
import { lanePath } from "./paths.js";
import { facts } from "./table.js";

const FIRST = ["first", "Only the first", { type: "number", min: "1" }];
const TO_CONSUMER = ["To the consumer", { required: "" }];
/** An action that has begun is asked for its result so often. */
const POLL_MS = 500;
/** Why an action may have been done, and nobody said so. */
const LOST = "The dispatcher did not answer: whether it was done is not known. Ask again: it is not done twice";

/** The id of a new action. `crypto.randomUUID` is not there on a page that came over http from another machine. */
function newUuid() {
  const digits = Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, "0")).join("");
  return `${digits.slice(0, 8)}-${digits.slice(8, 12)}-4${digits.slice(13, 16)}-a${digits.slice(17, 20)}-${digits.slice(20)}`;
}

/** The actions on a group that `groups show` shows: {action, title, body, fields, previews}. */
export function groupActions(group, show) {
  const act = (action, title, fields = []) => ({ action, title, body: { group }, fields, previews: false });
  const preview = (action, title, fields) => ({ ...act(action, title, fields), previews: true });
  return [
    show.paused ? act("resume", "Resume") : act("pause", "Pause"),
    act("pin", "Pin", [["consumer", ...TO_CONSUMER]]),
    show.pin !== null && act("unpin", "Unpin"),
    act("close", "Close"),
    show.stopped !== null && act("release", "Release"),
    show.stopped !== null && act("skip", "Skip"),
    preview("rebalance", "Move to a consumer", [["to", ...TO_CONSUMER]]),
    preview("move", "Move to a queue", [["to", "To the queue", { required: "" }], FIRST]),
    preview("purge", "Purge", [FIRST]),
  ].filter(each => each);
}

/** The actions on a whole lane. */
export function laneActions(isPaused) {
  const all = { body: { all: true }, fields: [], previews: false };
  return [
    isPaused ? { ...all, action: "resume", title: "Resume the lane" } : { ...all, action: "pause", title: "Pause the lane" },
    { action: "rebalance", title: "Rebalance", body: {}, fields: [], previews: true },
  ];
}

/** Draining a consumer, or ending that. */
export function drainAction({ consumer, drained }) {
  return { action: "drain", title: `${drained ? "End the drain of" : "Drain"} ${consumer}`, button: drained ? "End" : "Drain",
    body: drained ? { consumer, undo: true } : { consumer }, fields: [], previews: false };
}

export class Actions {
  /** `token()`: the tab's; `redraw()` when something here has changed. */
  constructor(token, redraw) {
    this.token = token;
    this.redraw = redraw;
    this.role = null; // what the server says: {role, acts}
    this.chosen = null; // {lane, act, sent, answer, isBusy}
  }

  /** Ask the server what the tab's token may do. */
  async look() {
    try {
      const answer = await fetch("/api/role", { headers: this.headers() });
      this.role = answer.ok ? await answer.json() : null;
    } catch {
      this.role = null;
    }
    this.redraw();
  }

  get mayAct() {
    return this.role?.role === "operator";
  }

  /** An operator's token could be given. */
  get mayAsk() {
    return Boolean(this.role?.acts) && !this.mayAct;
  }

  headers() {
    const token = this.token();
    return token ? { Authorization: `Bearer ${token}` } : {};
  }

  cancel() {
    this.chosen = null;
    this.redraw();
  }

  /** A button for one action. */
  button(lane, act) {
    return h("button", { key: act.action + act.title, type: "button", onclick: () => this.choose(lane, act) },
      act.button ?? act.title);
  }

  choose(lane, act) {
    this.chosen = { lane, act, sent: null, answer: null, isBusy: false };
    this.redraw();
  }

  /** Buttons for these actions. */
  bar(lane, acts) {
    if (!this.mayAct) return null;
    return h("div", { key: "actions", class: "actions", role: "group", "aria-label": "Actions" },
      acts.map(act => this.button(lane, act)));
  }

  /** The form of the chosen action, and what came of it. */
  panel() {
    if (!this.mayAct || !this.chosen) return null;
    const { lane, act, answer, isBusy } = this.chosen;
    const isDone = Boolean(answer?.ok) && !answer.body.open && (answer.body.applied || !act.previews);
    return h("form", { key: `act ${act.action} ${act.title}`, class: "act", "aria-label": act.title,
      onsubmit: event => this.submit(event) },
    h("p", null, h("b", null, act.title), ` in lane ${lane}`, act.body.group === undefined ? "" : `, group ${act.body.group}`),
    isDone ? null : act.fields.map(([name, label, attributes]) => [
      h("label", { for: `act-${name}` }, label),
      h("input", { id: `act-${name}`, name, autocomplete: "off", spellcheck: "false", ...attributes,
        oninput: () => this.changed() })]),
    answer && outcome(answer, act),
    isDone ? null : h("button", { key: "go", type: "submit", disabled: isBusy ? "" : null }, this.next()),
    h("button", { key: "end", type: "button", onclick: () => this.cancel() }, isDone ? "Done" : "Cancel"));
  }

  /** The dispatcher may have taken the request, and its answer is not known. */
  get isUnanswered() {
    const { answer } = this.chosen;
    return answer !== null && !answer.ok && answer.body.uuid !== undefined;
  }

  /** What the next press of the button does. */
  next() {
    const { act, answer } = this.chosen;
    if (this.isUnanswered) return "Ask again";
    if (!act.previews) return `${act.title}: yes`;
    return answer?.ok ? `${act.title}: carry it out` : "What would it do?";
  }

  /** A field is not what the answer was about. */
  changed() {
    if (this.chosen?.answer) {
      this.chosen.answer = null;
      this.redraw();
    }
  }

  async submit(event) {
    event.preventDefault();
    const chosen = this.chosen, { act, answer } = chosen;
    const body = { ...act.body };
    for (const [name, value] of new FormData(event.target)) {
      if (value.trim()) body[name] = name === "first" ? Number(value) : value.trim();
    }
    if (act.previews && answer?.ok) body.apply = true;
    // Chosen here, so that also a request whose answer was lost can be repeated: with its uuid it is not done again.
    const sent = chosen.sent = this.isUnanswered ? chosen.sent : { ...body, uuid: newUuid() };
    chosen.isBusy = true;
    this.redraw();
    do {
      if (chosen.answer?.body.open) await new Promise(resolve => setTimeout(resolve, POLL_MS));
      chosen.answer = await this.send(chosen.lane, act.action, sent);
      this.redraw();
    } while (chosen.answer.ok && chosen.answer.body.open && this.chosen === chosen);
    chosen.isBusy = false;
    this.redraw();
  }

  async send(lane, action, body) {
    try {
      const answer = await fetch(`${lanePath(lane)}/actions/${encodeURIComponent(action)}`, {
        method: "POST", headers: { ...this.headers(), "Content-Type": "application/json" }, body: JSON.stringify(body),
      });
      return { ok: answer.ok, body: await answer.json() };
    } catch {
      return { ok: false, body: { error: LOST, uuid: body.uuid } };
    }
  }
}

/** In words: what would be done, what was done, or why not. */
function outcome({ ok, body }, act) {
  if (!ok) return h("p", { key: "outcome", class: "bad", role: "status" }, body.error);
  const said = body.open ? "It has begun, and goes on" : act.previews && !body.applied ? "This would be done" : "Done";
  return h("div", { key: "outcome", role: "status" }, h("p", null, said),
    facts(Object.entries(body.result).filter(([, value]) => value !== null && typeof value !== "object")
      .map(([name, value]) => [name.replaceAll("_", " "), String(value)])));
}
