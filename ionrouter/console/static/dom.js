// Elements without markup in strings: what servers and models say is always text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element; `attributes` with on... are listeners, children are nodes or texts, null and false are left out. */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function s(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/**
 * Make `children` the children of an element. What is the same already stays as it is, so that a refresh takes from nobody
 * what they have selected, scrolled to or put the focus on; the focus follows an id.
 */
export function replace(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.id : "";
  match(element, children.flat(Infinity).filter(Boolean));
  const wanted = focused && document.getElementById(focused);
  if (wanted && wanted !== document.activeElement) wanted.focus({ preventScroll: true });
}

function match(element, made) {
  made.forEach((child, i) => {
    const old = element.childNodes[i];
    if (old === undefined) element.append(child);
    else if (old.isEqualNode(child)) return;
    else if (isOfOneKind(old, child)) become(old, child);
    else old.replaceWith(child);
  });
  while (element.childNodes.length > made.length) element.lastChild.remove();
}

/** Listeners stay with the old element: they may speak of what its id names, and of nothing else that changes. */
function isOfOneKind(old, child) {
  return old.nodeType === Node.ELEMENT_NODE && old.nodeName === child.nodeName && old.id === child.id;
}

function become(old, child) {
  for (const { name } of [...old.attributes]) if (!child.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of child.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  match(old, [...child.childNodes]);
}

/** A box that scrolls sideways where its content is wider; the keyboard gets to it, and it says what is in it. */
export function scrolling(label, attributes = {}, ...children) {
  return h("div", { tabindex: 0, role: "region", "aria-label": label, ...attributes, class: `scroll ${attributes.class ?? ""}`.trim() }, children);
}

/** A labelled control. */
export function field(label, control, hint = null) {
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, hint && h("small", {}, hint));
}

/** A select; `options`: [value, words]. */
export function select(id, options, value, onchange = null) {
  const made = options.map(([key, words]) => h("option", { value: key, selected: key === value }, words));
  return h("select", { id, onchange }, made);
}

/** One figure with its heading; the note and the picture may be left out. */
export function tile(heading, value, note = "", picture = null) {
  return h("section", { class: "tile" }, h("h2", {}, heading), h("p", { class: "value" }, value), h("p", { class: "note" }, note), picture);
}
