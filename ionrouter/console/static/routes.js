// The graph of routes.yaml with what is known now laid over it: shares as width, states as colour and sign.

import { get } from "./api.js";
import { field, h, replace, s } from "./dom.js";
import { ms, price, rate, share, usd } from "./format.js";
import { laidOut, NODE } from "./layout.js";
import { badge, reasonOf, signOf, stateOf, wordsOf } from "./state.js";

const MAX_MODELS = 20; // drawn at once; a filter finds the others
const parts = {};
let graph = { nodes: [], edges: [] };
let chosen = null; // a node's id

export const routes = {
  title: "Routes",
  every_s: 5,
  show(place, parameters, page) {
    chosen = parameters.get("node");
    parts.keep = () => page.keep({ model: parts.filter.value.trim(), node: chosen ?? "" });
    parts.filter = h("input", { id: "filter", type: "search", placeholder: "all", value: parameters.get("model") ?? "", oninput: () => { parts.keep(); draw(); }, autocomplete: "off" });
    parts.note = h("p", { class: "note" });
    parts.picture = h("div", { class: "scroll picture" });
    parts.detail = h("aside", { class: "detail", "aria-live": "polite" });
    place.append(
      h("div", { class: "head" }, h("h1", {}, "Routes")),
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, field("Models with", parts.filter)),
      h("p", { class: "legend" },
        ["ok", "degraded", "open", "disabled"].map((state) => badge(state)),
        h("span", {}, line("live"), "thicker: larger chance to be tried first"),
        h("span", {}, line("fallback"), "fallback model")),
      parts.note,
      h("div", { class: "beside" }, parts.picture, parts.detail),
    );
  },
  async refresh(signal) {
    graph = (await get("routing/graph", {}, signal)).data;
    draw();
  },
};

function line(kind) {
  return s("svg", { width: 30, height: 8, viewBox: "0 0 30 8", "aria-hidden": "true" }, s("line", { class: `edge ${kind}`, x1: 1, x2: 29, y1: 4, y2: 4, "stroke-width": kind === "live" ? 4 : 1.5 }));
}

/** What is drawn: the models with the filter's words in their name, or in a name that leads to them, and all that hangs on them. */
function seen() {
  const words = parts.filter.value.trim().toLowerCase();
  const leads = new Map();
  for (const edge of graph.edges) if (edge.source.startsWith("alias:")) leads.set(edge.target, `${leads.get(edge.target) ?? ""} ${edge.source}`);
  const fits = (node) => `${node.name} ${node.title ?? ""} ${leads.get(node.id) ?? ""}`.toLowerCase().includes(words);
  const models = graph.nodes.filter((node) => node.kind === "model" && fits(node));
  const kept = new Set(models.slice(0, MAX_MODELS).map((node) => node.id));
  for (const edge of graph.edges) if (kept.has(edge.source) && edge.is_fallback) kept.add(edge.target);
  const isIn = (id, kind) => kept.has(id) && id.startsWith(kind);
  for (const kind of ["model:", "endpoint:", "provider:"]) {
    for (const edge of graph.edges) if (isIn(edge.source, kind) && !edge.is_fallback) kept.add(edge.target);
  }
  for (const edge of graph.edges) if (edge.source.startsWith("alias:") && kept.has(edge.target)) kept.add(edge.source);
  for (const edge of graph.edges) if (words === "" && edge.source.startsWith("pattern:")) kept.add(edge.source).add(edge.target);
  const nodes = graph.nodes.filter((node) => kept.has(node.id));
  const edges = graph.edges.filter((edge) => kept.has(edge.source) && kept.has(edge.target));
  return { nodes, edges, shown: Math.min(models.length, MAX_MODELS), all: models.length };
}

function draw() {
  const { nodes, edges, shown, all } = seen();
  parts.note.textContent = shown < all ? `${shown} of ${all} models; a part of a name finds the others` : all === 0 ? "no model has that in its name" : "";
  const { at, width, height } = laidOut(nodes, edges);
  const known = new Map(nodes.map((node) => [node.id, node]));
  const lit = lightFrom(known.has(chosen) ? chosen : null, edges);
  const pad = 30; // for the arcs of fallbacks, left of the models
  const size = { width: width + 2 * pad, height: height + 12 };
  const picture = s("svg", { viewBox: `${-pad} -6 ${size.width} ${size.height}`, ...size, role: "group", "aria-label": "the graph of routes", class: lit ? "map lit" : "map" },
    edges.map((edge) => curve(edge, at, known, lit)),
    nodes.map((node) => box(node, at.get(node.id), lit)));
  replace(parts.picture, picture);
  replace(parts.detail, chosen && known.has(chosen) ? detail(known.get(chosen)) : h("p", { class: "note" }, "Choose a node to see what is known of it."));
}

/** Everything on a way through the chosen node; null where none is chosen. */
function lightFrom(start, edges) {
  if (start === null) return null;
  const lit = new Set([start]);
  for (const [from, to] of [["source", "target"], ["target", "source"]]) {
    const way = [start];
    for (const id of way) {
      for (const edge of edges) if (edge[from] === id && !edge.is_fallback && !way.includes(edge[to])) way.push(edge[to]);
    }
    way.forEach((id) => lit.add(id));
  }
  for (const edge of edges) if (edge.is_fallback && edge.source === start) lit.add(edge.target);
  return lit;
}

function curve(edge, at, known, lit) {
  const [from, to] = [at.get(edge.source), at.get(edge.target)];
  const isLit = lit?.has(edge.source) && lit.has(edge.target);
  const target = known.get(edge.target);
  const chance = target.kind === "endpoint" ? target.share ?? 0 : null;
  const isDead = [target, known.get(edge.source)].some((node) => node.kind === "endpoint" && ["disabled", "unavailable"].includes(stateOf(node)));
  const kind = edge.is_fallback ? "fallback" : isDead ? "dead" : chance ? "live" : "";
  const width = edge.is_fallback ? 1.5 : chance ? 1 + 5 * chance : 1.2;
  const [y1, y2] = [from.y + NODE.height / 2, to.y + NODE.height / 2];
  const bend = NODE.between / 2;
  const way = edge.is_fallback
    ? `M${from.x} ${y1} C${from.x - 26} ${y1} ${to.x - 26} ${y2} ${to.x} ${y2}`
    : `M${from.x + NODE.width} ${y1} C${from.x + NODE.width + bend} ${y1} ${to.x - bend} ${y2} ${to.x} ${y2}`;
  return s("path", { class: `edge ${kind}${isLit ? " on" : ""}`, d: way, "stroke-width": width }, chance ? s("title", {}, `first pick ${share(chance)}`) : null);
}

function box(node, { x, y }, lit) {
  const state = node.kind === "endpoint" ? stateOf(node) : null;
  const under = node.kind === "endpoint" ? (state === "ok" ? `${share(node.share)} first pick` : wordsOf(state)) : node.kind === "domain" ? "failure domain" : node.title && node.title !== node.name ? node.title : node.kind;
  const choose = () => { chosen = chosen === node.id ? null : node.id; parts.keep(); draw(); };
  const press = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } };
  return s("g", { id: `node-${node.id}`, class: `node ${node.kind} ${state ?? ""}${lit?.has(node.id) ? " on" : ""}${node.id === chosen ? " chosen" : ""}`, transform: `translate(${x} ${y})`,
    tabindex: 0, role: "button", "aria-pressed": String(node.id === chosen), "aria-label": `${node.kind} ${node.name}${state ? `, ${wordsOf(state)}` : ""}`, onclick: choose, onkeydown: press },
    s("title", {}, node.name),
    s("rect", { width: NODE.width, height: NODE.height, rx: node.kind === "alias" || node.kind === "pattern" ? 19 : 6 }),
    s("svg", { width: NODE.width - 4, height: NODE.height }, // cuts off what a wide font makes of a name
      s("text", { x: 10, y: 16 }, `${state ? `${signOf(state)} ` : ""}${short(node.name, state ? 21 : 23)}`),
      s("text", { x: 10, y: 30, class: "under" }, short(under, 27))));
}

/** The end of a name tells models apart, its begin providers: the middle goes, by what people see as one sign. */
function short(text, room) {
  const signs = [...new Intl.Segmenter().segment(text)].map(({ segment }) => segment);
  if (room >= widthOf(signs)) return text;
  const [head, tail] = [fitting(signs, room * 0.35), fitting(signs.toReversed(), room * 0.65 - 1).toReversed()];
  return `${head.join("")}…${tail.join("")}`;
}

/** In letters: Chinese, Korean and emoji are two wide. */
function widthOf(signs) {
  return signs.reduce((sum, sign) => sum + (sign.codePointAt(0) >= 0x1100 ? 2 : 1), 0);
}

function fitting(signs, room) {
  let number = 0;
  while (number < signs.length && widthOf(signs.slice(0, number + 1)) <= room) number += 1;
  return signs.slice(0, number);
}

function detail(node) {
  return [
    h("h2", {}, node.name),
    h("p", { class: "note" }, node.kind === "domain" ? "failure domain: what fails together" : node.kind),
    h("dl", {}, told(node).map(([words, value]) => [h("dt", {}, words), h("dd", {}, value)])),
    ["model", "endpoint"].includes(node.kind) && ways(node),
  ];
}

/** The other views of a node's model: a dry run and a trial are chats. */
function ways(node) {
  const name = node.model ?? node.name;
  const model = graph.nodes.find((other) => other.id === `model:${name}`);
  const isChat = model?.output_modalities.includes("text") ?? false;
  const to = (view, words) => h("a", { id: `to-${view}`, href: `#/${view}?model=${encodeURIComponent(name)}` }, words);
  return h("p", { class: "ways" }, isChat && to("explain", "Explain"), to("latency", "Latency"), isChat && to("try", "Try"));
}

function told(node) {
  if (node.kind === "model") return [["Name", node.title], ["Strategy", node.strategy], ["Makes", node.output_modalities.join(", ")]];
  if (node.kind === "provider") return [["Name", node.title ?? node.name], ["Type", node.type ?? "–"]];
  if (node.kind !== "endpoint") return [];
  const seconds = (value) => (value === null ? "–" : ms(value * 1000));
  return [
    ["State", badge(stateOf(node))], ...(reasonOf(node) ? [["Why", reasonOf(node)]] : []), ...(node.left_out ? [["Left out by", node.left_out]] : []),
    ["Upstream name", node.upstream_model], ["Tag", node.tag], ["$/M in / out", price(node.prompt_price, node.completion_price)],
    ["First pick", share(node.share)], ["Score", usd(node.score)], ["First token", seconds(node.expected_ttft_s)], ["Whole answer", seconds(node.expected_s)],
    ["Tokens a second", rate(node.expected_throughput)], ["Success", share(node.success_rate)],
  ];
}
