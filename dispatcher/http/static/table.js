// Tables that a screen reader can tell.

import { h } from "./dom.js";

/**
 * `columns`: [title, kind] with kind "" (text), "n" (a number), "id", "wide" or "whole" (in one line);
 * the first one names its row.
 * `rows`: [key, ...cells]. Without rows there is `none` instead.
 */
export function table(title, note, columns, rows, none) {
  const caption = h("caption", null, title, note ? h("small", null, ` ${note}`) : null);
  if (!rows.length) return none ? h("p", { key: title, class: "dim" }, `${title}: ${none}`) : null;
  const heads = columns.map(([name, kind]) => h("th", { scope: "col", class: kind === "n" ? "n" : null }, name));
  const body = rows.map(([key, ...cells]) => h("tr", { key: String(key) }, cells.map((cell, index) => {
    const kind = columns[index][1] || null;
    return index ? h("td", { class: kind }, cell) : h("th", { scope: "row", class: kind }, cell);
  })));
  return h("div", { key: title, class: "scroll", tabindex: 0, role: "region", "aria-label": title },
    h("table", null, caption, h("thead", null, h("tr", null, heads)), h("tbody", null, body)));
}

/** Facts as pairs of a name and a value. */
export function facts(pairs) {
  return h("dl", null, pairs.filter(pair => pair).map(([name, value]) =>
    h("div", { key: name }, h("dt", null, name), h("dd", null, value))));
}
