// The graph of routes.yaml with what is known now laid over it: shares as width, states as colour and sign.

import { get } from "./api.js";
import { field, h, replace, s, scrolling } from "./dom.js";
import { ms, percent, price, rate, share, usd } from "./format.js";
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
    parts.picture = scrolling("The graph of routes", { class: "picture" });
    parts.detail = h("aside", { class: "detail", "aria-live": "polite", "aria-label": "The chosen node" });
    place.append(
      h("div", { class: "head" }, h("h1", {}, "Routes")),
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, field("Name contains", parts.filter)),
      h("p", { class: "legend" },
        ["ok", "degraded", "open", "disabled"].map((state) => badge(state)),
        h("span", {}, line("live"), "thicker: larger chance to be tried first"),
        h("span", {}, line("fallback"), "fallback model"),
        h("span", {}, line("shadow"), "shadow: gets copies"),
        h("span", {}, "percentages: of a canary or a split; “of”: several endpoints share it")),
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

/** All ids that edges lead to from some, those included. */
function reached(starts, edges, from = "source", to = "target") {
  const found = new Set(starts);
  for (const id of found) {
    for (const edge of edges) if (edge[from] === id) found.add(edge[to]); // a set's loop comes to what is added, too
  }
  return found;
}

const isWay = (edge) => !edge.is_fallback && !edge.is_shadow;
const isName = (edge) => isWay(edge) && (edge.target.startsWith("model:") || edge.target.startsWith("group:"));

/** What is drawn: the models with the filter's words in their name, or in a name that leads to them, and all that hangs on them. */
function seen() {
  const words = parts.filter.value.trim().toLowerCase();
  const has = (node) => `${node.name} ${node.title ?? ""}`.toLowerCase().includes(words);
  const fitting = new Set(graph.nodes.filter(has).map((node) => node.id));
  const names = graph.edges.filter(isName);
  const fits = (node) => fitting.has(node.id) || [...reached([node.id], names, "target", "source")].some((id) => fitting.has(id));
  const models = graph.nodes.filter((node) => node.kind === "model" && fits(node));
  const drawn = new Set(models.slice(0, MAX_MODELS).map((node) => node.id));
  for (const edge of graph.edges) if (!isWay(edge) && drawn.has(edge.source)) drawn.add(edge.target); // one step: not their fallbacks
  const kept = reached(drawn, graph.edges.filter(isWay));
  for (const id of reached(drawn, names, "target", "source")) kept.add(id);
  for (const node of graph.nodes) if (fitting.has(node.id) && node.kind === "preset") kept.add(node.id); // it may lead nowhere
  for (const edge of graph.edges) if (fitting.has(edge.source) && edge.source.startsWith("pattern:")) kept.add(edge.source).add(edge.target);
  const nodes = graph.nodes.filter((node) => kept.has(node.id));
  const edges = graph.edges.filter((edge) => kept.has(edge.source) && kept.has(edge.target));
  return { nodes, edges, shown: Math.min(models.length, MAX_MODELS), all: models.length };
}

function draw() {
  const { nodes, edges, shown, all } = seen();
  parts.note.textContent = shown < all ? `${shown} of ${all} models; a part of a name finds the others` : all === 0 ? "no model has that in its name" : "";
  const { at, width, height } = laidOut(nodes, edges);
  const known = new Map(nodes.map((node) => [node.id, node]));
  const shared = sharedArms(edges);
  const lit = lightFrom(known.has(chosen) ? chosen : null, edges);
  const pad = 30; // for the arcs of fallbacks, left of the models
  const size = { width: width + 2 * pad, height: height + 12 };
  const picture = s("svg", { viewBox: `${-pad} -6 ${size.width} ${size.height}`, ...size, class: `map${lit ? " lit" : ""}${width > 5 * (NODE.width + NODE.between) ? " wide" : ""}` },
    edges.map((edge) => curve(edge, { at, known, lit, shared })),
    nodes.map((node) => box(node, at.get(node.id), lit)));
  replace(parts.picture, picture);
  replace(parts.detail, chosen && known.has(chosen) ? detail(known.get(chosen)) : h("p", { class: "note" }, "Choose a node to see what is known of it."));
}

/** Nodes and edges on a way through the chosen node; null where none is chosen. */
function lightFrom(start, edges) {
  if (start === null) return null;
  const ways = edges.filter(isWay);
  const [down, up] = [reached([start], ways), reached([start], ways, "target", "source")];
  const aside = edges.filter((edge) => !isWay(edge) && edge.source === start);
  const lit = ways.filter((edge) => down.has(edge.source) || up.has(edge.target));
  return new Set([start, ...down, ...up, ...aside.map((edge) => edge.target), ...lit, ...aside]);
}

/** Arms of canaries and splits that have several endpoints, by their model's id and their name. */
function sharedArms(edges) {
  const names = edges.filter((edge) => edge.arm !== null).map((edge) => `${edge.source} ${edge.arm}`);
  return new Set(names.filter((name, i) => names.indexOf(name) < i));
}

function curve(edge, { at, known, lit, shared }) {
  const [from, to] = [at.get(edge.source), at.get(edge.target)];
  const target = known.get(edge.target);
  const chance = target.kind === "endpoint" && !edge.is_shadow ? target.share : null;
  const isDead = [target, known.get(edge.source)].some((node) => node.kind === "endpoint" && ["disabled", "unavailable"].includes(stateOf(node)));
  const kind = edge.is_fallback ? "fallback" : edge.is_shadow ? "shadow" : isDead ? "dead" : chance ? "live" : "";
  const width = !isWay(edge) ? 1.5 : chance ? 1 + 5 * chance : 1.2;
  const [y1, y2] = [from.y + NODE.height / 2, to.y + NODE.height / 2];
  const bend = NODE.between / 2;
  const way = edge.is_fallback
    ? `M${from.x} ${y1} C${from.x - 26} ${y1} ${to.x - 26} ${y2} ${to.x} ${y2}`
    : `M${from.x + NODE.width} ${y1} C${from.x + NODE.width + bend} ${y1} ${to.x - bend} ${y2} ${to.x} ${y2}`;
  const on = lit?.has(edge) ? " on" : "";
  return [
    s("path", { class: `edge ${kind}${on}`, d: way, "stroke-width": width }, chance ? s("title", {}, `first pick ${share(chance)}`) : null),
    edge.percent === null ? null : s("text", { class: `percent ${kind}${on}`, x: to.x - 5, y: y2 + (edge.is_shadow ? 11 : -5) }, `${shared.has(`${edge.source} ${edge.arm}`) ? "of " : ""}${percent(edge.percent)}`, edge.arm && s("title", {}, edge.arm)),
  ];
}

function box(node, { x, y }, lit) {
  const state = node.kind === "endpoint" ? stateOf(node) : null;
  const under = state === "ok" ? `${share(node.share)} first pick` : state ? wordsOf(state) : underOf(node);
  const choose = () => { chosen = chosen === node.id ? null : node.id; parts.keep(); draw(); };
  const press = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } };
  return s("g", { id: `node-${node.id}`, class: `node ${node.kind} ${state ?? ""}${lit?.has(node.id) ? " on" : ""}${node.id === chosen ? " chosen" : ""}`, transform: `translate(${x} ${y})`,
    tabindex: 0, role: "button", "aria-pressed": String(node.id === chosen), "aria-label": `${node.kind} ${node.name}${state ? `, ${wordsOf(state)}` : ""}`, onclick: choose, onkeydown: press },
    s("title", {}, node.name),
    s("rect", { width: NODE.width, height: NODE.height, rx: ["preset", "group", "alias", "pattern"].includes(node.kind) ? 19 : 6 }),
    s("svg", { width: NODE.width - 4, height: NODE.height }, // cuts off what a wide font makes of a name
      s("text", { x: 10, y: 16 }, `${state ? `${signOf(state)} ` : ""}${short(node.name, state ? 19 : 21)}`),
      s("text", { x: 10, y: 30, class: "under" }, short(under, 27))));
}

/** What stands below a name that has no state. */
function underOf(node) {
  if (node.kind === "domain") return "failure domain";
  if (node.kind === "group") return `group of ${node.members.length}`;
  return node.title && node.title !== node.name ? node.title : node.kind;
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
    ["group", "model", "endpoint"].includes(node.kind) && ways(node),
  ];
}

/** The other views of a node's model: a trial is a chat. */
function ways(node) {
  const name = node.model ?? node.name;
  const makes = graph.nodes.find((other) => other.id === `model:${name}`)?.output_modalities ?? ["text"]; // a group's are not told
  const api = makes.includes("text") ? "" : ["embeddings", "rerank"].find((kind) => makes.includes(kind));
  const to = (view, words, more = "") => h("a", { id: `to-${view}`, href: `#/${view}?model=${encodeURIComponent(name)}${more}` }, words);
  return h("p", { class: "ways" }, api !== undefined && to("explain", "Explain", api && `&api=${api}`), to("latency", "Latency"), api === "" && to("try", "Try"));
}

const percents = (split) => (split === null ? [] : [[split.name.split(" ")[0] === "canary" ? "Canary" : "Split", Object.entries(split.percents).map(([arm, part]) => h("div", {}, `${percent(part)} ${arm}`))]]);
const given = (words, value) => (value ? [[words, value]] : []);

function told(node) {
  if (node.kind === "preset") return [["Asked for as", node.title], ["Sets", node.fields.join(", ")]];
  if (node.kind === "group") return [["Models", node.members.map((name) => h("div", {}, name))], ...percents(node.split)];
  if (node.kind === "model") {
    return [
      ["Name", node.title], ["Strategy", node.strategy], ["Makes", node.output_modalities.join(", ") || "–"], ...percents(node.split),
      ...given("Shadow", node.shadow), ...given("Hedge", node.hedge),
    ];
  }
  if (node.kind === "provider") return [["Name", node.title ?? node.name], ["Type", node.type ?? "–"]];
  if (node.kind !== "endpoint") return [];
  const seconds = (value) => (value === null ? "–" : ms(value * 1000));
  return [
    ["State", badge(stateOf(node))], ...given("Why", reasonOf(node)), ...given("Left out by", node.left_out),
    ["Upstream name", node.upstream_model], ["Tag", node.tag], ["$/M in / out", price(node.prompt_price, node.completion_price)],
    ["First pick", share(node.share)], ["Score", usd(node.score)], ["First token", seconds(node.expected_ttft_s)], ["Whole answer", seconds(node.expected_s)],
    ["Tokens a second", rate(node.expected_throughput)], ["Success", share(node.success_rate)],
  ];
}
