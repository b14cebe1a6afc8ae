// Ask where a request would go, and why; nothing is sent to anybody.

import { get, json, post } from "./api.js";
import { field, h, replace, select } from "./dom.js";
import { plan } from "./plan.js";

const STRATEGIES = ["expected-cost", "price", "latency", "throughput", "round-robin", "least-busy", "weighted"];
const SIZES = [["100", "100 tokens"], ["1000", "1,000 tokens"], ["10000", "10,000 tokens"], ["50000", "50,000 tokens"]];
const CHARACTERS = 4; // of a token, as the router estimates
const LATE_MS = 1000; // without an answer, before that is said
const CHAT = "chat/completions";
// What each API calls the prompt, the bound on new tokens, and the wish for a stream; undefined fields are not sent.
const APIS = {
  [CHAT]: (text, max_tokens, stream) => ({ messages: [{ role: "user", content: text }], max_tokens, stream }),
  completions: (text, max_tokens, stream) => ({ prompt: text, max_tokens, stream }),
  messages: (text, max_tokens, stream) => ({ messages: [{ role: "user", content: text }], max_tokens, stream }),
  responses: (text, max_tokens, stream) => ({ input: text, max_output_tokens: max_tokens, stream }),
  embeddings: (text) => ({ input: text }),
  rerank: (text) => ({ query: "x", documents: [text] }),
};

const parts = {};
let asking = null; // AbortController of the question under way

export const explain = {
  title: "Explain",
  show(place, parameters, page) {
    const chosen = (name, usual = "") => parameters.get(name) ?? usual;
    parts.page = page;
    parts.models = h("datalist", { id: "names" });
    parts.model = h("input", { id: "model", list: "names", required: true, value: chosen("model"), autocomplete: "off", spellcheck: "false" });
    parts.api = select("api", Object.keys(APIS).map((name) => [name, `/${name}`]), Object.hasOwn(APIS, chosen("api")) ? chosen("api") : CHAT);
    parts.size = select("size", SIZES, chosen("size", "1000"));
    parts.limit = h("input", { id: "limit", type: "number", min: 1, placeholder: "not set", value: chosen("max_tokens") });
    parts.strategy = select("strategy", [["", "as configured"], ...STRATEGIES.map((name) => [name, name])], chosen("strategy"));
    parts.stream = h("input", { id: "stream", type: "checkbox", checked: chosen("stream") !== "false" });
    parts.provider = h("textarea", { id: "provider", rows: 3, placeholder: '{"sort": "latency", "max_price": {"completion": 1}}', spellcheck: "false" }, chosen("provider"));
    parts.whole = h("textarea", { id: "whole", rows: 6, placeholder: '{"model": "...", "messages": [...], "tools": [...]}', spellcheck: "false", oninput: choose });
    parts.result = h("div", { id: "result" });
    parts.said = h("p", { class: "unseen", role: "status" }); // the answer in a line, not all of its tables
    place.append(
      h("div", { class: "head" }, h("h1", {}, "Where would it go?")),
      h("form", { class: "filters", onsubmit: (event) => ask(event) },
        field("Model", parts.model), parts.models, field("API", parts.api), field("Prompt", parts.size), field("max_tokens", parts.limit),
        field("Strategy", parts.strategy), h("div", { class: "field check" }, parts.stream, h("label", { for: "stream" }, "streamed")),
        h("div", { class: "field wide" }, h("label", { for: "provider" }, "provider (JSON)"), parts.provider),
        h("details", { class: "wide" }, h("summary", {}, "Paste a whole request"),
          h("div", { class: "field" }, h("label", { for: "whole" }, "Body of a request to the chosen API (JSON), instead of the fields above"), parts.whole)),
        h("button", { type: "submit", class: "main" }, "Explain")),
      parts.said, parts.result,
    );
    parts.api.addEventListener("change", choose);
    choose();
    if (parts.model.value) ask();
  },
  async refresh(signal) {
    const { data } = await get("models", { limit: 1000, output_modalities: "all" }, signal);
    replace(parts.models, data.map((model) => h("option", { value: model.id })));
    if (!parts.model.value && data.length > 0) parts.model.value = data[0].id;
  },
};

/** Fields that have no effect cannot be filled in. */
function choose() {
  const isWhole = parts.whole.value.trim() !== "";
  const isText = !["embeddings", "rerank"].includes(parts.api.value);
  for (const part of [parts.model, parts.size, parts.strategy, parts.provider]) part.disabled = isWhole;
  for (const part of [parts.limit, parts.stream]) part.disabled = isWhole || !isText;
}

/** The body of the request that is asked about; throws SyntaxError, naming the field, where one is no JSON. */
function body() {
  if (parts.whole.value.trim()) return parsed("the request", parts.whole.value);
  const text = "x".repeat(Number(parts.size.value) * CHARACTERS);
  const made = APIS[parts.api.value](text, Number(parts.limit.value) || undefined, parts.stream.checked);
  made.model = parts.model.value.trim();
  if (parts.strategy.value) made.ionrouter = { strategy: parts.strategy.value };
  if (parts.provider.value.trim()) made.provider = parsed("provider", parts.provider.value);
  return made;
}

function parsed(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`${name} is not JSON: ${error.message}`);
  }
}

/** All but a pasted request, which may hold what belongs in no browser's history. */
function keep() {
  const { model, api, size, limit, strategy, stream, provider, page } = parts;
  const chosen = { model: model.value.trim(), api: api.value === CHAT ? "" : api.value, size: size.value, max_tokens: limit.value, strategy: strategy.value };
  page.keep({ ...chosen, stream: stream.checked ? "" : "false", provider: provider.value.trim() });
}

async function ask(event = null) {
  event?.preventDefault();
  keep();
  asking?.abort(); // a later question's answer is the one that stays
  const mine = (asking = new AbortController());
  const late = setTimeout(() => { parts.said.textContent = "Asking …"; replace(parts.result, h("p", { class: "note" }, "Asking …")); }, LATE_MS);
  let [told, words] = [null, ""];
  try {
    const answer = await post("routing/explain", { api: parts.api.value }, body(), mine.signal);
    const { data } = await json(answer);
    [told, words] = [plan(data), `${data.strategy}: ${data.reason}`];
  } catch (error) {
    if (!mine.signal.aborted) words = error instanceof SyntaxError ? error.message : parts.page.failed(error);
    told = [h("p", { class: "problem" }, words)];
  }
  clearTimeout(late);
  if (mine.signal.aborted) return;
  replace(parts.result, told);
  parts.said.textContent = words;
}
