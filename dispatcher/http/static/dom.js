// Elements from values. What others named becomes text or an attribute, never markup.

const SVG = "http://www.w3.org/2000/svg";
const IN_SVG = new Set(["svg", "path"]);

/** Describes an element. `key` among the attributes says which it is among its siblings. */
export function h(tag, attributes, ...children) {
  const { key, ...rest } = attributes ?? {};
  const shown = children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false);
  return { tag, key, attributes: rest, children: shown };
}

/** Makes the children of `parent` what is described; what is the same stays, with its focus and selection. */
export function render(parent, children) {
  const keyed = new Map();
  for (const node of parent.childNodes) {
    if (node.keyed !== undefined) keyed.set(node.keyed, node);
  }
  let place = parent.firstChild;
  for (const child of children) {
    const node = typeof child === "object" ? element(child, place, keyed) : text(printable(String(child)), place);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

/** What others wrote, in characters that can be seen: no control character hides or turns what is beside it. */
function printable(words) {
  return words.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, each => `\\u{${each.codePointAt(0).toString(16)}}`);
}

function text(words, place) {
  const node = place?.nodeType === Node.TEXT_NODE ? place : document.createTextNode("");
  if (node.data !== words) node.data = words;
  return node;
}

function element({ tag, key, attributes, children }, place, keyed) {
  const known = key === undefined ? place : keyed.get(key);
  const fits = known?.nodeType === Node.ELEMENT_NODE && known.localName === tag && known.keyed === key;
  const node = fits ? known : IN_SVG.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  keyed.delete(key);
  node.keyed = key;
  for (const { name } of [...node.attributes]) {
    if (!(name in attributes)) node.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node[name] = value;
    else if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else if (node.getAttribute(name) !== printable(String(value))) node.setAttribute(name, printable(String(value)));
  }
  render(node, children);
  return node;
}
