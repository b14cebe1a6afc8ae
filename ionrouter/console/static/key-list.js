// The table of keys. The API tells a hundred at a time and sorts nothing, so all are fetched, and a page of them is drawn.

import { get } from "./api.js";
import { field, h, replace, scrolling, select } from "./dom.js";
import { count, usd, utc } from "./format.js";
import { changeKey, deleteKey, makeKey } from "./key-forms.js";
import { heading, sorted, turned } from "./sorting.js";

const PAGE = 100; // of the API
const MAX_ROWS = 50; // drawn at once
const STATES = {
  active: ["●", "active", "ok"], used_up: ["◐", "limit used up", "degraded"], expired: ["✕", "expired", "open"], disabled: ["○", "disabled", "disabled"],
};
const parts = {};
let rows = [];
let isWhole = false; // all pages have come
let order = ["created", -1];
let first = 0; // of the rows that are drawn

const COLUMNS = [
  ["name", "name", (row) => row.name],
  ["state", "state", (row) => STATES[stateOf(row)][1], (row) => badge(stateOf(row))],
  ["limit", "limit", (row) => row.limit ?? Infinity, (row) => (row.limit === null ? "unlimited" : usd(row.limit))],
  ["remaining", "remaining", (row) => row.limit_remaining ?? Infinity, (row) => (row.limit === null ? "unlimited" : usd(row.limit_remaining))],
  ["resets", "resets", (row) => row.limit_reset, (row) => row.limit_reset ?? (row.limit === null ? "–" : "never")],
  ...[["usage_daily", "today"], ["usage_weekly", "this week"], ["usage_monthly", "this month"], ["usage", "ever"]].map(
    ([id, words]) => [id, words, (row) => row[id], (row) => usd(row[id])]),
  ["created", "created (UTC)", (row) => row.created_at, (row) => utc(row.created_at)],
  ["used", "last used", (row) => row.last_used_at, (row) => (row.last_used_at === null ? "never" : utc(row.last_used_at))],
  ["expires", "expires", (row) => row.expires_at, (row) => (row.expires_at === null ? "never" : utc(row.expires_at))],
].map(([id, words, value, tell]) => ({ id, words, value, tell }));
const NUMBERS = new Set(["limit", "remaining", "usage_daily", "usage_weekly", "usage_monthly", "usage"]);
const TEXTS = new Set(["name", "state", "resets"]);

/** The keys as a panel of the view: { show, refresh, forget }. */
export const list = {
  show(place, tools, parameters, page) {
    forget();
    const by = COLUMNS.find(({ id }) => id === parameters.get("sort"))?.id ?? "created";
    order = [by, parameters.get("way") === "up" ? 1 : -1];
    parts.place = place.parentElement; // of dialogs: the panel is hidden from other keys
    parts.page = page;
    const find = () => { first = 0; keep(); draw(); tellFound(); };
    parts.filter = h("input", { id: "filter", type: "search", placeholder: "all", value: parameters.get("q") ?? "", oninput: find, autocomplete: "off" });
    parts.state = select("key-state", [["", "all"], ...Object.entries(STATES).map(([name, [, words]]) => [name, words])], parameters.get("state") ?? "", find);
    parts.said = h("p", { class: "unseen", role: "status" });
    parts.table = scrolling("Keys");
    parts.note = h("span", { class: "note" });
    parts.back = h("button", { type: "button", class: "quiet", onclick: () => turn(-MAX_ROWS) }, "Previous");
    parts.on = h("button", { type: "button", class: "quiet", onclick: () => turn(MAX_ROWS) }, "Next");
    tools.append(h("button", { type: "button", class: "main", onclick: make }, "New key"));
    place.append(
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, field("Name, label, hash or creator contains", parts.filter), field("State", parts.state)),
      parts.table, h("p", { class: "pages" }, parts.note, parts.back, parts.on), parts.said,
    );
  },
  async refresh(signal) {
    const found = await allKeys(signal, (some) => {
      if (isWhole) return; // what is shown is more than that
      rows = some;
      draw();
    });
    [rows, isWhole] = [found, true];
    draw();
  },
  forget,
};

function forget() {
  [rows, isWhole, first] = [[], false, 0];
  if (parts.table?.isConnected) draw();
}

/** Every key, by the offset of the last one that came: keys that are made meanwhile stand before it and take none away. */
export async function allKeys(signal, come = () => {}) {
  let found = [];
  for (;;) {
    const { data } = await get("keys", { offset: Math.max(0, found.length - 1), include_disabled: true }, signal);
    const known = data.findIndex((row) => row.hash === found.at(-1)?.hash) + 1;
    if (found.length > 0 && known === 0) { // one that came before is deleted: what follows has moved up
      found = [];
      continue;
    }
    found = [...found, ...data.slice(known)];
    if (data.length < PAGE) return found;
    come(found);
  }
}

function stateOf(row) {
  if (row.disabled) return "disabled";
  if (row.expires_at !== null && Date.parse(row.expires_at) <= Date.now()) return "expired";
  return row.limit !== null && row.limit_remaining <= 0 ? "used_up" : "active";
}

function badge(state) {
  const [sign, words, kind] = STATES[state];
  return h("span", { class: `badge ${kind}` }, h("span", { "aria-hidden": "true" }, sign), ` ${words}`);
}

/** The rows that the filters leave. */
function fitting() {
  const words = parts.filter.value.trim().toLowerCase();
  const state = parts.state.value;
  const has = (row) => [row.name, row.label, row.hash, row.creator_user_id ?? ""].some((text) => text.toLowerCase().includes(words));
  return rows.filter((row) => (!words || has(row)) && (!state || stateOf(row) === state));
}

function draw() {
  const [by, way] = order;
  const found = fitting();
  const lines = sorted(found, COLUMNS.find(({ id }) => id === by).value, way);
  first = Math.min(first, Math.max(0, Math.ceil(lines.length / MAX_ROWS) - 1) * MAX_ROWS);
  const drawn = lines.slice(first, first + MAX_ROWS);
  const [name, ...others] = COLUMNS.map(({ id, words }) => heading(id, words, order, sortBy, NUMBERS.has(id)));
  replace(parts.table,
    h("table", {}, h("thead", {}, h("tr", {}, name, h("th", { scope: "col" }, "change"), others)), h("tbody", {}, drawn.map(line))),
    isWhole && found.length === 0 && h("p", { class: "note" }, rows.length === 0 ? "No keys yet." : "No key is like that."));
  parts.note.textContent = noteOf(drawn.length, found.length);
  parts.back.disabled = first === 0;
  parts.on.disabled = first + MAX_ROWS >= found.length;
}

function noteOf(drawn, found) {
  const range = drawn === 0 ? "0" : `${count(first + 1)} to ${count(first + drawn)}`;
  return `${range} of ${count(found)}${found < rows.length ? `, of ${count(rows.length)} keys in all` : " keys"}${isWhole ? "" : " so far"}`;
}

function line(row) {
  const button = (what, words, act) =>
    h("button", { type: "button", id: `${what}-${row.hash}`, "aria-label": `${words} ${row.name}`, onclick: () => act(row.hash) }, words);
  return h("tr", {},
    h("th", { scope: "row", title: row.hash }, row.name, h("small", {}, row.label)),
    h("td", { class: "acts" }, button("edit", "Edit", edit), button("delete", "Delete", remove)),
    COLUMNS.slice(1).map(({ id, tell }) => h("td", { class: NUMBERS.has(id) ? "number" : null }, tell(row))));
}

/** All but what may be a key itself, which belongs in no browser's history. */
function keep() {
  const words = parts.filter.value.trim();
  const [by, way] = order;
  const isUsual = by === "created" && way === -1;
  parts.page.keep({ q: words.startsWith("sk-") ? "" : words, state: parts.state.value, sort: isUsual ? "" : by, way: way > 0 ? "up" : "" });
}

function tellFound() {
  parts.said.textContent = `${count(fitting().length)} of ${count(rows.length)} keys`;
}

function sortBy(id) {
  order = turned(order, id, TEXTS.has(id) ? 1 : -1);
  first = 0;
  keep();
  draw();
}

function turn(by) {
  first += by;
  draw();
  parts.said.textContent = parts.note.textContent;
  parts.table.scrollIntoView({ block: "nearest" });
}

function make() {
  makeKey(parts, (made) => changed([made, ...rows], `Made ${made.name}.`));
}

function edit(hash) {
  const row = rows.find((one) => one.hash === hash);
  changeKey(parts, row, (now) => changed(rows.map((one) => (one.hash === hash ? now : one)), `Changed ${now.name}.`));
}

function remove(hash) {
  const row = rows.find((one) => one.hash === hash);
  deleteKey(parts, row, () => {
    changed(rows.filter((one) => one.hash !== hash), `Deleted ${row.name}.`);
    parts.table.focus(); // the button is gone
  });
}

/** What was changed is shown at once; the server's answer follows. */
function changed(now, words) {
  rows = now;
  draw();
  parts.said.textContent = words;
  parts.page.refresh();
}
