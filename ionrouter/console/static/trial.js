// Send one real request, watch it arrive, and see which way it went.

import { ApiError, get, post, Unreachable } from "./api.js";
import { field, h, replace } from "./dom.js";
import { count, ms, rate, usd } from "./format.js";
import { plan } from "./plan.js";

const DONE = {};
const CUT = "The connection was cut off before the answer was whole.";
const parts = {};
let running = null; // AbortController of the request under way

export const trial = {
  title: "Try",
  show(place, parameters, page) {
    parts.page = page;
    parts.models = h("datalist", { id: "names" });
    parts.model = h("input", { id: "model", list: "names", required: true, value: parameters.get("model") ?? "", autocomplete: "off", spellcheck: "false" });
    parts.limit = h("input", { id: "limit", type: "number", min: 1, value: 200 });
    parts.prompt = h("textarea", { id: "prompt", rows: 4, required: true }, "Name three colours.");
    parts.send = h("button", { type: "submit", class: "main" }, "Send");
    parts.stop = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => running?.abort() }, "Stop");
    parts.thoughts = h("p", { class: "thoughts" });
    parts.answer = h("p", { class: "answer", id: "answer" });
    parts.said = h("p", { class: "unseen", role: "status" }); // the whole answer at once, not each of its tokens
    parts.facts = h("p", { class: "facts", id: "facts" });
    parts.plan = h("div", {});
    place.append(
      h("div", { class: "head" }, h("h1", {}, "Try a model"), h("p", { class: "note" }, "A real request: endpoints with a price bill it.")),
      h("form", { class: "filters", onsubmit: (event) => send(event) },
        field("Model", parts.model), parts.models, field("max_tokens", parts.limit),
        h("div", { class: "field wide" }, h("label", { for: "prompt" }, "Message"), parts.prompt), parts.send, parts.stop),
      parts.thoughts, parts.answer, parts.said, parts.facts, parts.plan,
    );
  },
  leave() {
    running?.abort(); // what nobody sees arrive is not paid for
  },
  async refresh(signal) {
    const { data } = await get("models", { limit: 1000 }, signal);
    replace(parts.models, data.map((model) => h("option", { value: model.id })));
    if (!parts.model.value && data.length > 0) parts.model.value = data[0].id;
  },
};

async function send(event) {
  event.preventDefault();
  parts.page.keep({ model: parts.model.value.trim() });
  running?.abort();
  const mine = (running = new AbortController());
  for (const part of [parts.thoughts, parts.answer, parts.said, parts.facts, parts.plan]) part.replaceChildren();
  parts.send.disabled = true;
  parts.stop.hidden = false;
  try {
    await receive(mine.signal);
  } catch (error) {
    const words = mine.signal.aborted ? "Stopped." : parts.page.failed(error);
    if (running === mine) parts.facts.replaceChildren(h("span", { class: mine.signal.aborted ? null : "problem", role: "alert" }, words));
  }
  if (running === mine) {
    parts.said.textContent = parts.answer.textContent;
    parts.send.disabled = false;
    parts.stop.hidden = true;
  }
}

async function receive(signal) {
  const begun = performance.now();
  let [first, isWhole] = [null, false];
  const asked = {
    model: parts.model.value.trim(),
    messages: [{ role: "user", content: parts.prompt.value }],
    max_tokens: Number(parts.limit.value) || undefined,
    stream: true,
    ionrouter: { explain: true },
  };
  const answer = await post("chat/completions", {}, asked, signal);
  for await (const chunk of events(answer.body)) {
    if (chunk === DONE) isWhole = true;
    if (chunk.error) throw new ApiError(chunk.error.code, chunk.error.message);
    const delta = chunk.choices?.[0]?.delta ?? {};
    if (delta.reasoning) parts.thoughts.append(delta.reasoning);
    if (delta.content) parts.answer.append(delta.content);
    if (first === null && (delta.content || delta.reasoning)) first = performance.now();
    if (chunk.usage) tellEnd(chunk, first === null ? null : first - begun, performance.now() - begun);
  }
  if (!isWhole) throw new Unreachable(CUT);
}

/** The JSON of each event of a stream, and DONE for its end; comments are none. Throws where the connection breaks. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Unreachable(CUT);
    });
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") yield DONE;
      else if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}

function tellEnd(chunk, first_ms, whole_ms) {
  const { usage, ionrouter: route } = chunk;
  const speed = first_ms === null ? null : (usage.completion_tokens - 1) / ((whole_ms - first_ms) / 1000);
  const facts = [
    route && `answered by ${route.endpoint}`,
    route && route.attempt > 1 && `attempt ${route.attempt}`,
    `first token ${ms(first_ms)}`,
    `whole answer ${ms(whole_ms)}`,
    `${count(usage.completion_tokens)} tokens, ${rate(speed)} a second`,
    `${count(usage.prompt_tokens)} prompt tokens, ${count(usage.prompt_tokens_details?.cached_tokens)} cached`,
    `cost ${usd(usage.cost)}`,
  ];
  replace(parts.facts, facts.filter(Boolean).map((fact) => h("span", {}, fact)));
  if (route?.explanation) replace(parts.plan, plan(route.explanation));
}
