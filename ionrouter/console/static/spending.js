// What was spent in the last days (UTC), by model, provider, key or day: the figures of POST analytics/query.

import { get, json, post } from "./api.js";
import { csv, save } from "./csv.js";
import { field, h, replace, scrolling, select, tile } from "./dom.js";
import { count, moment, share, usd } from "./format.js";
import { allKeys } from "./key-list.js";
import { bars } from "./series.js";

const DAY_S = 86400;
const STRETCHES = [["7", "7 days"], ["30", "30 days"]];
const GROUPS = [["model", "model"], ["provider", "provider"], ["api_key_id", "key"], ["date", "day"]];
const FIGURES = ["total_usage", "request_count", "tokens_prompt", "tokens_completion"];
const MAX_ROWS = 200;
const MAX_PICTURES = 25; // rows that have a series beside them
const MAX_LINES = 10_000; // of the API, for the CSV
const NOBODY = { model: "no model", provider: "nobody served", api_key_id: "without a key" };
const parts = {};
let names = new Map(); // of keys, by hash

/** The spending as a panel of the view: { show, refresh, forget }. */
export const spending = {
  show(place, tools, parameters, page) {
    const known = (options, name, usual) => (options.some(([value]) => value === parameters.get(name)) ? parameters.get(name) : usual);
    const again = () => {
      page.keep({ days: parts.days.value, by: parts.by.value });
      page.refresh();
    };
    names = new Map();
    parts.days = select("days", STRETCHES, known(STRETCHES, "days", "7"), again);
    parts.by = select("by", GROUPS, known(GROUPS, "by", "model"), again);
    parts.tiles = h("div", { class: "tiles" });
    parts.table = scrolling("Spending");
    parts.fault = h("p", { class: "problem", role: "alert", hidden: true });
    tools.append(h("button", { type: "button", class: "quiet", onclick: () => download(page) }, "Download CSV"));
    place.append(
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, field("Last", parts.days), field("By", parts.by)),
      parts.tiles, parts.fault, h("h2", {}, "Spending"), parts.table,
    );
  },
  async refresh(signal) {
    const [by, range] = [parts.by.value, rangeOf(Number(parts.days.value))];
    const [credits, days, groups, keys] = await Promise.all([
      get("credits", {}, signal),
      query({ granularity: "day" }, range, signal),
      by === "date" ? null : query({ dimensions: [by], order_by: { field: "total_usage", direction: "desc" }, limit: MAX_ROWS }, range, signal),
      by === "api_key_id" ? allKeys(signal) : [],
    ]);
    names = new Map(keys.map((key) => [key.hash, key.name]));
    const rows = groups?.data ?? [...days.data].reverse();
    const series = groups === null ? new Map() : await seriesOf(by, rows, range, signal);
    replace(parts.tiles, tiles(credits.data, days.data, range));
    replace(parts.table, table(by, rows, sum(days.data, "total_usage"), series, range),
      rows.length === 0 && h("p", { class: "note" }, "No requests in this time."),
      groups?.metadata.truncated && h("p", { class: "note" }, `the dearest ${MAX_ROWS}; the CSV has more`));
  },
  forget() {
    names = new Map();
    parts.tiles.replaceChildren();
    parts.table.replaceChildren();
  },
};

/** Whole UTC days, today's included: seconds of the epoch. */
function rangeOf(days) {
  const until = (Math.floor(Date.now() / 1000 / DAY_S) + 1) * DAY_S;
  return { since: until - days * DAY_S, until, width_s: DAY_S };
}

async function query(asked, { since, until }, signal = undefined) {
  const [start, end] = [since, until].map((at) => new Date(at * 1000).toISOString());
  const answer = await post("analytics/query", {}, { metrics: FIGURES, time_range: { start, end }, ...asked }, signal);
  return (await json(answer)).data;
}

/** The days of the dearest few: name -> rows. */
async function seriesOf(by, rows, range, signal) {
  const shown = rows.slice(0, MAX_PICTURES).map((row) => row[by]);
  const found = new Map(shown.map((name) => [name, []]));
  const filled = shown.filter((name) => name !== null);
  if (filled.length === 0) return found;
  const filters = [{ field: by, operator: "in", value: filled, include_unset: true }];
  const { data } = await query({ dimensions: [by], granularity: "day", filters, limit: MAX_LINES }, range, signal);
  for (const row of data) found.get(row[by])?.push(row);
  return found;
}

function sum(rows, name) {
  return rows.reduce((total, row) => total + row[name], 0);
}

function nameOf(by, name) {
  if (name === null) return NOBODY[by];
  return by === "api_key_id" ? (names.get(name) ?? `not in the list: ${name.slice(0, 12)}…`) : name;
}

function tiles(credits, days, range) {
  const stretch = STRETCHES.find(([value]) => value === parts.days.value)[1];
  const picture = (words, figure, tell) => drawn(days, range, { words, width: 220, height: 34 }, figure, tell);
  return [
    tile("Spent", usd(sum(days, "total_usage")), `in the last ${stretch}, today included (UTC)`, picture("Spent by the day", "total_usage", usd)),
    tile("Requests", count(sum(days, "request_count")), "that callers made", picture("Requests by the day", "request_count", count)),
    tile("Spent ever", usd(credits.total_usage), credits.total_credits > 0 ? `of ${usd(credits.total_credits)} credits` : ""),
  ];
}

function drawn(days, range, look, figure, tell) {
  const points = days.map((row) => [Date.parse(row.date) / 1000, row[figure]]);
  return bars(points, { ...range, ...look, tell: (start, value) => `${moment(start, true)}: ${tell(value)}` });
}

function table(by, rows, total, series, range) {
  const isByDay = by === "date";
  const words = [GROUPS.find(([value]) => value === by)[1], "spent", "share", "requests", "tokens in", "tokens out"];
  const number = (told) => h("td", { class: "number" }, told);
  const line = (row) => {
    const name = isByDay ? row.date : nameOf(by, row[by]);
    const days = series.get(row[by]);
    return h("tr", {},
      h("th", { scope: "row", title: by === "api_key_id" ? row[by] : null }, name),
      number(usd(row.total_usage)), number(total > 0 ? share(row.total_usage / total) : "–"), number(count(row.request_count)),
      number(count(row.tokens_prompt)), number(count(row.tokens_completion)),
      !isByDay && h("td", {}, days ? drawn(days, range, { words: `spent on ${name} by the day` }, "total_usage", usd) : "–"));
  };
  const head = words.map((text, i) => h("th", { scope: "col", class: i > 0 ? "number" : null }, text));
  return h("table", {}, h("thead", {}, h("tr", {}, head, !isByDay && h("th", { scope: "col" }, "spent by day"))), h("tbody", {}, rows.map(line)));
}

async function download(page) {
  const by = parts.by.value;
  try {
    const asked = by === "date" ? {} : { dimensions: [by], order_by: { field: "total_usage", direction: "desc" } };
    const { data, metadata } = await query({ ...asked, granularity: "day", limit: MAX_LINES }, rangeOf(Number(parts.days.value)));
    const columns = ["date", ...(by === "date" ? [] : [by]), ...FIGURES];
    const lines = data.map((row) => columns.map((name) => row[name]));
    if (by === "api_key_id") {
      columns.push("key_name");
      data.forEach((row, i) => lines[i].push(names.get(row[by]) ?? null));
    }
    lines.sort(([a], [b]) => (a < b ? -1 : Number(a > b)));
    save(`ionrouter-spending-${by === "api_key_id" ? "key" : by}-${parts.days.value}d.csv`, csv([columns, ...lines]));
    parts.fault.textContent = metadata.truncated ? `The file has the dearest ${count(MAX_LINES)} lines; there are more.` : "";
  } catch (error) {
    parts.fault.textContent = page.failed(error);
  }
  parts.fault.hidden = parts.fault.textContent === "";
}
