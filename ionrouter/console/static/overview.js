// What is going on: how the server is, the last stretch of time in figures, every endpoint's state.

import { get, health } from "./api.js";
import { h, replace, scrolling, select, tile } from "./dom.js";
import { count, lasting, moment, ms, price, rate, share, usd } from "./format.js";
import { bars, meter } from "./series.js";
import { badge, reasonOf, stateOf } from "./state.js";
import { OPTIONS, windowOf } from "./windows.js";

const parts = {};
const MAX_ROWS = 200;

export const overview = {
  title: "Overview",
  every_s: 5,
  show(place, parameters, page) {
    const again = () => {
      page.keep({ window: parts.window.value });
      page.refresh();
    };
    const pick = select("window", OPTIONS, windowOf(parameters.get("window")).name, again);
    parts.window = pick;
    parts.server = h("div", { class: "server" });
    parts.tiles = h("div", { class: "tiles" });
    parts.endpoints = scrolling("Endpoints");
    place.append(
      h("div", { class: "head" }, h("h1", {}, "Overview"), h("label", { for: "window" }, "Last"), pick),
      parts.server,
      parts.tiles,
      h("h2", {}, "Endpoints"),
      parts.endpoints,
    );
  },
  async refresh(signal) {
    const stretch = windowOf(parts.window.value);
    const asked = { window: stretch.name, group_by: "" }; // no group: one row, all endpoints together
    const [report, total, series, graph, rows] = await Promise.all([
      health(signal),
      get("stats/routes", asked, signal),
      get("stats/routes", { ...asked, resolution: stretch.resolution, percentiles: "50,99" }, signal),
      get("routing/graph", {}, signal),
      get("stats/routes", { window: stretch.name, group_by: "endpoint", percentiles: "50,99" }, signal),
    ]);
    replace(parts.server, server(report));
    replace(parts.tiles, tiles(total.data[0] ?? {}, series, stretch));
    replace(parts.endpoints, endpoints(graph.data.nodes, rows.data));
  },
};

function server(report) {
  const facts = [
    h("span", { class: `badge ${report.status === "ok" ? "ok" : "open"}` }, h("span", { "aria-hidden": "true" }, "●"), ` ${report.status}`),
    report.version && `version ${report.version}`,
    report.uptime_s !== undefined && `up ${lasting(report.uptime_s)}`,
    report.in_flight !== undefined && `${count(report.in_flight)} in flight`,
    report.routes?.loaded_at && `routes of ${new Date(report.routes.loaded_at * 1000).toLocaleString()}`,
  ];
  const notes = [];
  if (report.routes?.problem) notes.push(`routes.yaml is not taken over: ${report.routes.problem}`);
  for (const local of report.local ?? []) if (!local.ready) notes.push(`${local.endpoint}: ${local.reason ?? "loading"}`);
  for (const row of report.breakers ?? []) {
    notes.push(`${row.endpoint}: breaker ${row.state.replace("_", "-")}, ${row.opens_for_s > 0 ? `tried again in ${lasting(row.opens_for_s)}, ` : ""}${row.cause}`);
  }
  return [
    h("p", { class: "facts" }, facts.filter(Boolean).map((fact) => h("span", {}, fact))),
    notes.length > 0 && h("ul", { class: "notes" }, notes.map((note) => h("li", {}, note))),
  ];
}

/** [heading, value, note, its figure in a bucket of the series, that figure in words] */
function figures(row) {
  const errors = (b) => b.errors;
  return [
    ["Requests", count(row.requests ?? 0), "attempts at endpoints", (b) => b.requests, count],
    ["Errors", share(row.error_rate), `${count(row.errors ?? 0)} attempts`, errors, count],
    ["First token", ms(row.ttft_ms?.p50), `p99 ${ms(row.ttft_ms?.p99)}`, (b) => b.ttft_ms.p50, ms],
    ["Throughput", `${rate(row.throughput?.p50)} tok/s`, `p90 ${rate(row.throughput?.p90)}`, (b) => b.throughput.p50, rate],
    ["Tokens out", count(row.completion_tokens ?? 0), `${count(row.prompt_tokens ?? 0)} in, ${share(row.cache_hit_share)} cached`, (b) => b.completion_tokens, count],
    ["Cost", usd(row.cost ?? 0), "at the prices of routes.yaml", (b) => b.cost, usd],
  ];
}

function tiles(row, series, stretch) {
  const range = { since: series.since, until: series.until, width_s: stretch.width_s };
  return figures(row).map(([heading, value, note, of, tell]) => {
    const points = series.data.map((bucket) => [bucket.start, of(bucket) ?? 0]);
    const words = `${heading} by the ${stretch.resolution}`;
    const named = (start, figure) => `${moment(start, stretch.resolution === "day")}: ${tell(figure)}`;
    const picture = bars(points, { ...range, width: 220, height: 34, words, tell: named });
    return tile(heading, value, note, picture);
  });
}

const HEADINGS = [
  ["Endpoint"], ["State"], ["First pick", "chance to be tried first by a request of 1000 tokens to its model"], ["$/M in / out"],
  ["Requests"], ["Errors"], ["First token p50"], ["p99"], ["Tok/s p50"], ["Uptime"], ["Cost"],
];

function endpoints(nodes, rows) {
  const measured = new Map(rows.map((row) => [row.endpoint, row]));
  const all = nodes.filter((node) => node.kind === "endpoint");
  const listed = new Set(all.map((node) => node.name));
  const others = rows.filter((row) => !listed.has(row.endpoint));
  all.sort((a, b) => (measured.get(b.name)?.requests ?? 0) - (measured.get(a.name)?.requests ?? 0));
  const lines = [...all.map((node) => line(node, measured.get(node.name))), ...others.map((row) => line(null, row))];
  return [
    h("table", {},
      h("thead", {}, h("tr", {}, HEADINGS.map(([words, title], i) => h("th", { scope: "col", title: title ?? null, class: i > 1 ? "number" : null }, words)))),
      h("tbody", {}, lines.slice(0, MAX_ROWS)),
    ),
    lines.length > MAX_ROWS && h("p", { class: "note" }, `the busiest ${MAX_ROWS} of ${lines.length}`),
    lines.length === 0 && h("p", { class: "note" }, "routes.yaml lists no endpoint"),
  ];
}

/** One endpoint; `node` is null of one that is not in routes.yaml (any more), `row` undefined of one nobody asked. */
function line(node, row) {
  const name = node?.name ?? row.endpoint;
  const number = (words) => h("td", { class: "number" }, words);
  return h("tr", {},
    h("th", { scope: "row" }, node ? h("a", { id: `of-${name}`, href: `#/routes?model=${encodeURIComponent(node.model)}&node=${encodeURIComponent(node.id)}` }, name) : name),
    h("td", {}, node ? [badge(stateOf(node), reasonOf(node)), reasonOf(node) && h("small", {}, reasonOf(node))] : h("span", { class: "badge disabled" }, "not listed")),
    h("td", { class: "number" }, node?.share ? [meter(node.share), " ", share(node.share)] : "–"),
    number(node ? price(node.prompt_price, node.completion_price) : "–"),
    number(count(row?.requests ?? 0)),
    number(share(row?.error_rate)),
    number(ms(row?.ttft_ms.p50)),
    number(ms(row?.ttft_ms.p99)),
    number(rate(row?.throughput.p50)),
    number(row?.uptime === null || row === undefined ? "–" : `${row.uptime.toFixed(row.uptime === 100 ? 0 : 2)} %`),
    number(row ? usd(row.cost) : "–"),
  );
}
