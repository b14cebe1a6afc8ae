// Ask where a request would go, and why; nothing is sent to anybody.

import { get, json, post } from "./api.js";
import { field, h, replace, select } from "./dom.js";
import { plan } from "./plan.js";

const STRATEGIES = ["expected-cost", "price", "latency", "throughput", "round-robin", "least-busy", "weighted"];
const SIZES = [["100", "100 tokens"], ["1000", "1,000 tokens"], ["10000", "10,000 tokens"], ["50000", "50,000 tokens"]];
const CHARACTERS = 4; // of a token, as the router estimates

const parts = {};
let asking = null; // AbortController of the question under way

export const explain = {
  title: "Explain",
  show(place, parameters, page) {
    const chosen = (name, usual = "") => parameters.get(name) ?? usual;
    parts.page = page;
    parts.models = h("datalist", { id: "names" });
    parts.model = h("input", { id: "model", list: "names", required: true, value: chosen("model"), autocomplete: "off", spellcheck: "false" });
    parts.size = select("size", SIZES, chosen("size", "1000"));
    parts.limit = h("input", { id: "limit", type: "number", min: 1, placeholder: "not set", value: chosen("max_tokens") });
    parts.strategy = select("strategy", [["", "as configured"], ...STRATEGIES.map((name) => [name, name])], chosen("strategy"));
    parts.stream = h("input", { id: "stream", type: "checkbox", checked: chosen("stream") !== "false" });
    parts.provider = h("textarea", { id: "provider", rows: 3, placeholder: '{"sort": "latency", "max_price": {"completion": 1}}', spellcheck: "false" }, chosen("provider"));
    parts.result = h("div", { id: "result", "aria-live": "polite" });
    place.append(
      h("div", { class: "head" }, h("h1", {}, "Where would it go?")),
      h("form", { class: "filters", onsubmit: (event) => ask(event) },
        field("Model", parts.model), parts.models, field("Prompt", parts.size), field("max_tokens", parts.limit), field("Strategy", parts.strategy),
        h("div", { class: "field check" }, parts.stream, h("label", { for: "stream" }, "streamed")),
        h("div", { class: "field wide" }, h("label", { for: "provider" }, "provider (JSON)"), parts.provider),
        h("button", { type: "submit", class: "main" }, "Explain")),
      parts.result,
    );
    if (parts.model.value) ask();
  },
  async refresh(signal) {
    const { data } = await get("models", { limit: 1000 }, signal);
    replace(parts.models, data.map((model) => h("option", { value: model.id })));
    if (!parts.model.value && data.length > 0) parts.model.value = data[0].id;
  },
};

/** The body of the request that is asked about; throws where the provider object is no JSON. */
function body() {
  const made = {
    model: parts.model.value.trim(),
    stream: parts.stream.checked,
    messages: [{ role: "user", content: "x".repeat(Number(parts.size.value) * CHARACTERS) }],
  };
  if (parts.limit.value) made.max_tokens = Number(parts.limit.value);
  if (parts.strategy.value) made.ionrouter = { strategy: parts.strategy.value };
  if (parts.provider.value.trim()) made.provider = JSON.parse(parts.provider.value);
  return made;
}

function keep() {
  const { model, size, limit, strategy, stream, provider, page } = parts;
  const chosen = { model: model.value.trim(), size: size.value, max_tokens: limit.value, strategy: strategy.value };
  page.keep({ ...chosen, stream: stream.checked ? "" : "false", provider: provider.value.trim() });
}

async function ask(event = null) {
  event?.preventDefault();
  keep();
  asking?.abort(); // a later question's answer is the one that stays
  const mine = (asking = new AbortController());
  let told = null;
  try {
    told = plan((await json(await post("routing/explain", {}, body(), mine.signal))).data);
  } catch (error) {
    if (mine.signal.aborted) return;
    const words = error instanceof SyntaxError ? `provider is not JSON: ${error.message}` : parts.page.failed(error);
    told = [h("p", { class: "problem" }, words)];
  }
  replace(parts.result, told);
}
