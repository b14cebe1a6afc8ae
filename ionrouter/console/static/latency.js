// Statistics of attempts by endpoint, model, provider, class or key: the same figures as GET stats/routes.

import { get, text } from "./api.js";
import { save } from "./csv.js";
import { field, h, replace, scrolling, select } from "./dom.js";
import { count, moment, ms, rate, share, usd } from "./format.js";
import { bars } from "./series.js";
import { heading, sorted, turned } from "./sorting.js";
import { OPTIONS, windowOf } from "./windows.js";

const GROUPS = [["endpoint", "endpoint"], ["model", "model"], ["provider", "provider"], ["class", "prompt length"], ["stream", "streamed or whole"], ["key", "key"]];
const ROLES = [["main", "callers' requests"], ["shadow", "shadow copies"], ["probe", "probes"]];
const STREAMS = [["", "streamed and whole"], ["true", "streamed"], ["false", "whole"]];
const METRICS = [
  ["ttft_ms", "first token", ms], ["ttft_client_ms", "first token, with fallbacks", ms], ["tpot_ms", "time per token", ms], ["max_gap_ms", "largest gap", ms],
  ["duration_ms", "whole answer", ms], ["queue_ms", "queue", ms], ["throughput", "tokens a second", rate],
];
const PERCENTILES = ["50", "90", "99"];
const MAX_PICTURES = 25; // rows that have a series beside them: each is a question of as many rows as it has bars
const MAX_ROWS = 500;

const parts = {};
let order = ["requests", -1];
let rows = [];
let pictures = { of: "", at: 0, by: new Map(), about: null };

export const latency = {
  title: "Latency",
  every_s: 10,
  show(place, parameters, page) {
    const chosen = (name, usual) => parameters.get(name) ?? usual;
    const keep = () => {
      const [group, stretch, metric] = [parts.group.value, parts.window.value, parts.metric.value];
      page.keep({ by: group, window: stretch, metric, model: parts.model.value.trim(), stream: parts.stream.value, role: parts.role.value });
      for (const filter of [parts.model, parts.stream, parts.role]) filter.disabled = group === "key"; // of keys there is the whole alone
    };
    const again = () => {
      keep();
      page.refresh();
    };
    parts.group = select("group", GROUPS, chosen("by", "endpoint"), again);
    parts.window = select("window", OPTIONS, windowOf(parameters.get("window")).name, again);
    parts.metric = select("metric", METRICS.map(([name, words]) => [name, words]), chosen("metric", "ttft_ms"), () => { keep(); draw(); });
    parts.role = select("role", ROLES, chosen("role", "main"), again);
    parts.stream = select("stream", STREAMS, chosen("stream", ""), again);
    parts.model = h("input", { id: "model", type: "search", placeholder: "all", value: chosen("model", ""), onchange: again, autocomplete: "off" });
    parts.table = scrolling("Statistics");
    parts.fault = h("p", { class: "problem", role: "alert", hidden: true });
    parts.csv = h("button", { type: "button", class: "quiet", onclick: () => download(page) }, "Download CSV");
    place.append(
      h("div", { class: "head" }, h("h1", {}, "Latency"), parts.csv),
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
        field("Group by", parts.group), field("Last", parts.window), field("Figure", parts.metric), field("Model", parts.model),
        field("Answers", parts.stream), field("Role", parts.role)),
      parts.fault, parts.table,
    );
    keep();
  },
  async refresh(signal) {
    const answer = await get("stats/routes", { ...asked(), percentiles: PERCENTILES.join() }, signal);
    rows = answer.data;
    await bringPictures(signal);
    draw();
  },
};

function asked() {
  const of = parts.group.value;
  const filters = of === "key" ? {} : { model: parts.model.value.trim() || null, stream: parts.stream.value || null, role: parts.role.value };
  return { window: windowOf(parts.window.value).name, group_by: of, ...filters };
}

/** Series cost as many rows as they have bars: asked for anew only where the question has changed, or each bucket. */
async function bringPictures(signal) {
  const stretch = windowOf(parts.window.value);
  const of = JSON.stringify(asked());
  const isFresh = pictures.of === of && Date.now() / 1000 - pictures.at < Math.min(stretch.width_s, 60);
  if (isFresh) return;
  const by = new Map();
  let about = null;
  if (rows.length <= MAX_PICTURES && !(parts.group.value === "key" && stretch.resolution === "minute")) {
    about = await get("stats/routes", { ...asked(), resolution: stretch.resolution, percentiles: "50" }, signal);
    for (const row of about.data) by.set(nameOf(row), [...(by.get(nameOf(row)) ?? []), row]);
  }
  pictures = { of, at: Date.now() / 1000, by, about };
}

function nameOf(row) {
  return String(row[parts.group.value]);
}

function shownName(row) {
  if (parts.group.value === "stream") return row.stream ? "streamed" : "whole";
  return row.key_name ?? nameOf(row);
}

function columns() {
  const [name, words, tell] = METRICS.find(([metric]) => metric === parts.metric.value);
  const of = (p) => (row) => row[name]?.[`p${p}`] ?? null;
  return [
    ["name", GROUPS.find(([group]) => group === parts.group.value)[1], shownName, String],
    ["requests", "requests", (row) => row.requests, count],
    ["errors", "errors", (row) => row.error_rate, share],
    ["uptime", "uptime", (row) => row.uptime ?? null, (value) => (value === null ? "–" : `${value.toFixed(value === 100 ? 0 : 2)} %`)],
    ...PERCENTILES.map((p) => [`p${p}`, `${words} p${p}`, of(p), tell]),
    ["n", "samples", (row) => row[name]?.n ?? 0, count],
    ["tokens", "tokens out", (row) => row.completion_tokens, count],
    ["cached", "cached", (row) => row.cache_hit_share, share],
    ["cost", "cost", (row) => row.cost, usd],
  ];
}

function draw() {
  const made = columns();
  const [by, way] = made.some(([id]) => id === order[0]) ? order : ["requests", -1];
  const lines = sorted(rows, made.find(([id]) => id === by)[2], way);
  const stretch = windowOf(parts.window.value);
  const head = made.map(([id, words], i) => heading(id, words, [by, way], sortBy, i > 0));
  const body = lines.slice(0, MAX_ROWS).map((row) => h("tr", {}, made.map(([id, , of, tell], i) => cell(id, i, tell(of(row)), row)), h("td", {}, picture(row, stretch))));
  replace(parts.table,
    h("table", {}, h("thead", {}, h("tr", {}, head, h("th", { scope: "col" }, "requests over time"))), h("tbody", {}, body)),
    rows.length === 0 && h("p", { class: "note" }, "No requests in this time."),
    rows.length > MAX_ROWS && h("p", { class: "note" }, `the first ${MAX_ROWS} of ${count(rows.length)}; the CSV has them all`));
}

function cell(id, place, words, row) {
  if (place > 0) return h("td", { class: "number" }, words);
  const outcomes = Object.entries(row.outcomes).map(([name, n]) => `${name} ${count(n)}`).join(", ");
  return h("th", { scope: "row", title: outcomes }, words, h("small", {}, outcomes));
}

function picture(row, stretch) {
  const { by, about } = pictures;
  if (about === null) return "–";
  const points = (by.get(nameOf(row)) ?? []).map((bucket) => [bucket.start, bucket.requests]);
  const tell = (start, n) => `${moment(start, stretch.resolution === "day")}: ${count(n)}`;
  return bars(points, { since: about.since, until: about.until, width_s: stretch.width_s, words: `requests of ${shownName(row)} by the ${stretch.resolution}`, tell });
}

function sortBy(id) {
  order = turned(order, id, id === "name" ? 1 : -1);
  draw();
}

async function download(page) {
  let csv = "";
  try {
    csv = await text("stats/routes", { ...asked(), percentiles: PERCENTILES.join(), format: "csv" });
  } catch (error) {
    parts.fault.textContent = page.failed(error);
  }
  parts.fault.hidden = csv !== "";
  if (csv !== "") save(`ionrouter-${parts.group.value}-${parts.window.value}.csv`, csv);
}
