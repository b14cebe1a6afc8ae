// Tables that are sorted by the heads of their columns.

import { h } from "./dom.js";

/** A column's head; `order` is [id of a column, 1 or -1], and `onsort` is called with the id of the head that was pressed. */
export function heading(id, words, [by, way], onsort, isNumber) {
  const direction = way < 0 ? "descending" : "ascending";
  return h("th", { scope: "col", class: isNumber ? "number" : null, "aria-sort": id === by ? direction : null },
    h("button", { type: "button", id: `sort-${id}`, onclick: () => onsort(id) }, words));
}

/** The order after a head was pressed: the other way round where it was that column's already. */
export function turned([by, way], id, usual) {
  return by === id ? [id, -way] : [id, usual];
}

/** The rows by what `value` tells of each; what is unknown goes last, whatever the order. */
export function sorted(rows, value, way) {
  const compare = (a, b) => {
    if (a === b) return 0; // two that are unlimited, too
    if (a === null || b === null) return (a === null) - (b === null);
    return way * (typeof a === "string" ? a.localeCompare(b) : a - b);
  };
  return [...rows].sort((a, b) => compare(value(a), value(b)));
}
