// The page: what the address names, live.

import { Actions } from "./actions.js";
import { h, render } from "./dom.js";
import { groupPage, groupPaths } from "./group.js";
import { laneBody, laneHead, lanePaths, name, searchPath } from "./lane.js";
import { laneHref, shardsHref, wholeOf } from "./paths.js";
import { shardsBody, shardsSearch, way, wholeLanes } from "./shards.js";
import { Stream } from "./stream.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const answers = new Map(); // by path: {status, body}
let route = null;
let isDue = false;
let isRefused = false; // nothing can be read without another token

const stream = new Stream((path, status, body) => {
  answers.set(path, { status, body });
  draw();
}, showState, askForToken);
const actions = new Actions(() => stream.token, draw);

function askForToken() {
  isRefused = true;
  connection.textContent = "A token is needed";
  render(main, [tokenForm("Read")]);
}

function tokenForm(button) {
  return h("form", { key: "token", onsubmit: useToken },
    h("label", { for: "token" }, "Token"),
    h("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: "" }),
    h("button", {}, button));
}

function useToken(event) {
  event.preventDefault();
  const token = new FormData(event.target).get("token").trim();
  render(main, []);
  isRefused = false;
  stream.use(token);
  actions.look();
}

/** Where operators give their token, for whoever may only read. */
function toAct() {
  return actions.mayAsk ? h("details", { key: "to-act" }, h("summary", null, "Act as an operator"), tokenForm("Act")) : null;
}

function showState(state) {
  const time = new Date().toLocaleTimeString();
  connection.textContent = state === "live" ? "Live" : `Connection lost at ${time}, trying again`;
  connection.className = state;
  document.body.classList.toggle("lost", state === "lost");
}

/** What an address is about. Its parts are encoded one by one, for ids may be anything. */
function routeOf(hash) {
  const [first, lane, what, value] = hash.replace(/^#\/?/, "").split("/").map(decoded);
  const search = what === "search" && value || null;
  if (first === "shards" && lane) return { page: "shards", lane, search };
  if (first !== "lanes" || !lane) return { page: "home" };
  if (what === "group" && value) return { page: "group", lane, group: value };
  if (search) return { page: "lane", lane, search };
  return { page: "lane", lane, list: what === "groups" ? value : "busiest" };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function pathsOf(at) {
  switch (at.page) {
    case "lane": return lanePaths(at);
    case "group": return groupPaths(at);
    default: return { lanes: "/api/lanes", samples: "/api/samples",
      ...(at.search ? { groups: searchPath(at.lane, at.search) } : {}) };
  }
}

function go() {
  const moved = route !== null;
  const before = route;
  route = routeOf(location.hash);
  actions.chosen = null;
  const paths = Object.values(pathsOf(route));
  for (const path of [...answers.keys()]) {
    if (!paths.includes(path)) answers.delete(path);
  }
  stream.watch(paths);
  drawNow();
  if (moved && ["page", "lane", "group"].some(part => before[part] !== route[part])) document.querySelector("h2")?.focus();
}

function draw() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(drawNow);
}

function drawNow() {
  isDue = false;
  if (isRefused) return;
  const found = {}, problems = [];
  for (const [what, path] of Object.entries(pathsOf(route))) {
    const answer = answers.get(path);
    if (answer?.status === 200) found[what] = answer.body;
    else if (answer && answer.status !== 409) problems.push(answer.body.error);
  }
  render(main, [
    ...[...new Set(problems)].map(problem => h("p", { key: problem, class: "bad" }, problem)),
    ...pageOf(found),
    toAct(),
  ].filter(part => part !== null));
}

function pageOf(found) {
  switch (route.page) {
    case "lane": return lanePage(found);
    case "group":
      document.title = `${route.group} – ${route.lane} – Dispatcher`;
      return groupPage(route, found, actions);
    case "shards":
      document.title = `${route.lane} – Dispatcher`;
      return [way(route.lane), ...lanes(found, route.lane), found.lanes ? shardsSearch(route, found, search) : null];
    default:
      document.title = "Dispatcher";
      return lanes(found);
  }
}

/** All lanes, or the one of this name, with its shards. */
function lanes({ lanes, samples }, only) {
  if (!lanes) return [];
  document.getElementById("version").textContent = lanes.version;
  return wholeLanes(lanes.lanes).filter(([whole]) => only === undefined || whole === only).map(([whole, parts]) => {
    const isWhole = !wholeOf(parts[0].lane);
    return h("section", { key: whole },
      h("h2", { tabindex: -1 }, h("a", { href: isWhole ? laneHref(whole) : shardsHref(whole) }, name(whole))),
      isWhole ? laneHead(parts[0], samples?.lanes[whole]) : shardsBody(parts, samples));
  });
}

function lanePage(found) {
  document.title = `${route.lane} – Dispatcher`;
  const head = found.lane ? laneHead(found.lane, found.samples?.lanes[route.lane]) : [];
  return [
    way(route.lane),
    h("section", { key: route.lane }, h("h2", { tabindex: -1 }, name(route.lane)), head,
      found.lane ? laneBody(route, found, search, actions) : []),
  ];
}

function search(event) {
  event.preventDefault();
  const text = new FormData(event.target).get("search").trim();
  const page = route.page === "shards" ? shardsHref(route.lane) : laneHref(route.lane);
  location.hash = text ? `${page}/search/${encodeURIComponent(text)}` : page;
}

addEventListener("hashchange", go);
go();
actions.look();
