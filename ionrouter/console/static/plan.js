// A dry run as people read it: every endpoint with what its score is made of, or the filter that removed it.

import { h, s, scrolling } from "./dom.js";
import { ms, percent, price, rate, share, usd } from "./format.js";
import { meter } from "./series.js";

const TERMS = [
  ["expected_price", "price", "what the tokens cost"],
  ["time", "time", "what waiting for a whole answer costs, at the value of time"],
  ["waste", "waste", "what attempts that fail cost before the next one is asked"],
  ["broken", "broken", "what answers that break off cost"],
];

/** The explanation of POST /routing/explain (or of an answer that was asked to explain). */
export function plan(told) {
  return [
    h("p", { class: "verdict" }, h("strong", {}, told.strategy), `: ${told.reason}`),
    facts(told),
    told.candidates.length > 0 && candidates(told.candidates),
    told.candidates.length === 0 && h("p", { class: "problem" }, "No endpoint may serve this request."),
    told.excluded.length > 0 && excluded(told.excluded),
  ];
}

function facts(told) {
  const lines = [];
  if (told.models.length > 1) lines.push(`Models in order: ${told.models.join(" → ")}`);
  const sources = new Set(told.strategies.map((row) => `${row.strategy}, from ${row.source}`));
  for (const words of sources) lines.push(`Strategy ${words}`);
  for (const split of told.splits) {
    const percents = Object.entries(split.percents).map(([arm, part]) => `${percent(part)} ${arm}`);
    lines.push(`${split.name[0].toUpperCase()}${split.name.slice(1)}: ${percents.join(", ")}; this request is in ${split.arm}, by ${split.by}`);
  }
  if (told.hedge) lines.push(`Hedge ${told.hedge}`);
  if (told.shadow) lines.push(`Shadow: ${told.shadow}`);
  return h("ul", { class: "notes" }, lines.map((line) => h("li", {}, line)));
}

function candidates(rows) {
  const top = Math.max(...rows.map((row) => row.score));
  const heads = [["#"], ["Endpoint"], ["First pick"], ["Score", "expected dollars to a good answer"], ["Made of"], ["$/M in / out"], ["First token"], ["Whole answer"], ["Tok/s"], ["Success"]];
  const isWords = new Set(["Endpoint", "Made of"]);
  return [
    h("h2", {}, "Would be tried"),
    scrolling("Would be tried", {}, h("table", {},
      h("thead", {}, h("tr", {}, heads.map(([words, title]) => h("th", { scope: "col", title: title ?? null, class: isWords.has(words) ? null : "number" }, words)))),
      h("tbody", {}, rows.map((row) => candidate(row, top))))),
    h("p", { class: "legend" }, TERMS.map(([name, words, title]) => h("span", {}, h("i", { class: `term ${name}` }), `${words}: ${title}`))),
  ];
}

function candidate(row, top) {
  const parts = { ...row, time: Math.max(row.good - row.expected_price, 0) };
  const told = TERMS.map(([name, words]) => `${words} ${usd(parts[name])}`).join(", ");
  const notes = [row.tier > 0 && `fallback ${row.tier}: ${row.model_id}`, row.breaker !== "closed" && `breaker ${row.breaker.replace("_", "-")}`, row.hedge_after_s !== null && `hedged after ${ms(row.hedge_after_s * 1000)}`];
  const number = (words) => h("td", { class: "number" }, words);
  return h("tr", {},
    number(row.order),
    h("th", { scope: "row" }, row.endpoint_id, h("small", {}, [row.provider_name, ...notes].filter(Boolean).join(" · "))),
    h("td", { class: "number" }, meter(row.share), " ", share(row.share)),
    number(usd(row.score)),
    h("td", {}, stacked(parts, top, told)),
    number(price(row.prompt_price, row.completion_price)),
    number(ms(row.expected_ttft_s * 1000)),
    number(ms(row.expected_s * 1000)),
    number(rate(row.expected_throughput)),
    number(share(row.success_rate)),
  );
}

/** The terms of a score side by side, as long as the score is of the worst. */
function stacked(parts, top, words) {
  let x = 0;
  const made = TERMS.map(([name]) => {
    const width = top > 0 ? (parts[name] / top) * 160 : 0;
    const shape = s("rect", { class: `term ${name}`, x: x.toFixed(2), width: width.toFixed(2), height: 12 });
    x += width;
    return shape;
  });
  return s("svg", { class: "stack", viewBox: "0 0 160 12", width: 160, height: 12, role: "img", "aria-label": words }, s("title", {}, words), made);
}

function excluded(rows) {
  return [
    h("h2", {}, "Left out"),
    scrolling("Left out", {}, h("table", {},
      h("thead", {}, h("tr", {}, ["Endpoint", "Filter", "Why"].map((words) => h("th", { scope: "col" }, words)))),
      h("tbody", {}, rows.map((row) => h("tr", {},
        h("th", { scope: "row" }, row.endpoint_id, h("small", {}, row.provider_name)),
        h("td", {}, h("code", {}, row.filter)),
        h("td", { class: "words" }, row.reason)))))),
  ];
}
