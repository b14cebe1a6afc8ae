// Files for spreadsheets.

import { h } from "./dom.js";

/** Rows as the API's own CSV has them: null is empty, and no text is a formula. */
export function csv(rows) {
  return rows.map((row) => `${row.map(cell).join()}\n`).join("");
}

function cell(value) {
  const text = typeof value === "string" ? value.replace(/^[=+\-@\t\r]/, "'$&") : String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Give the reader a file. */
export function save(name, text) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
