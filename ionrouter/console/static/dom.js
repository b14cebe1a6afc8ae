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

/** Put new children in place of the old ones, keeping the focus on what has the same id. */
export function replace(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.id : "";
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  if (focused) document.getElementById(focused)?.focus();
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
