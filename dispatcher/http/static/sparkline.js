// The last ten minutes of one number, as a line and in words.

import { h } from "./dom.js";

const SLOTS = 120;
const WIDTH = 240;
const HEIGHT = 40;
const MARGIN = 3;

/** `values`: the newest last, null where nothing is known; `show`: a number in words. */
export function sparkline(title, values, show, more) {
  const known = values.filter(value => value !== null);
  const now = values.length ? values[values.length - 1] : null;
  const high = known.length ? Math.max(...known) : null;
  const words = known.length
    ? `${title}, last ten minutes: now ${show(now)}, from ${show(Math.min(...known))} to ${show(high)}`
    : `${title}: nothing known yet`;
  return h("figure", { key: title },
    h("figcaption", null, title, " ", h("b", null, show(now)), more ? h("span", null, ` ${more}`) : null),
    h("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": words }, h("path", { d: line(values, high) })));
}

function line(values, high) {
  const step = WIDTH / (SLOTS - 1);
  const scale = (HEIGHT - 2 * MARGIN) / (high || 1);
  let path = "", draws = false;
  values.forEach((value, index) => {
    if (value === null) {
      draws = false;
      return;
    }
    const x = (WIDTH - (values.length - 1 - index) * step).toFixed(1);
    const y = (HEIGHT - MARGIN - value * scale).toFixed(1);
    path += draws ? `L${x} ${y}` : `M${x} ${y}h0`;
    draws = true;
  });
  return path;
}
