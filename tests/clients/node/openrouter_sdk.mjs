// The stock @openrouter/sdk package, with only serverURL changed.
import { OpenRouter } from "@openrouter/sdk";
import { baseURL, key, messages, placeSchema, play, refusals, timeoutMs, weatherSchema } from "./steps.mjs";

// Its own retries last for up to an hour.
const made = (apiKey) =>
  new OpenRouter({ apiKey, serverURL: baseURL, retryConfig: { strategy: "none" }, timeoutMs });
const stock = made(key);
const ask = (model, { key: other, ...more } = {}) =>
  (other ? made(other) : stock).chat.send({ chatRequest: { model, messages, ...more } });
const weather = { type: "function", function: { name: "weather", parameters: weatherSchema } };
const texts = (output) =>
  output.filter((item) => item.type === "message").flatMap((item) => item.content.map((part) => part.text));

async function stream(model, more = {}) {
  const chunks = [];
  for await (const chunk of await ask(model, { stream: true, ...more })) chunks.push(chunk);
  return chunks;
}

await play({
  async whole() {
    const answer = await ask("acme/hello");
    const [choice] = answer.choices;
    return {
      text: choice.message.content,
      finish: choice.finishReason,
      model: answer.model,
      reasoning: choice.message.reasoning,
      tokens: answer.usage.totalTokens,
      cost: answer.usage.cost,
    };
  },
  async streamed() {
    const chunks = await stream("acme/hello");
    const choices = chunks.flatMap((chunk) => chunk.choices);
    return {
      text: choices.map((choice) => choice.delta.content ?? "").join(""),
      finish: choices.find((choice) => choice.finishReason).finishReason,
      reasoning: choices.map((choice) => choice.delta.reasoning ?? "").join(""),
      tokens: chunks.at(-1).usage.totalTokens,
      cost: chunks.at(-1).usage.cost,
    };
  },
  async tool() {
    const [choice] = (await ask("acme/tools", { tools: [weather] })).choices;
    const [call] = choice.message.toolCalls;
    return {
      id: call.id,
      name: call.function.name,
      arguments: call.function.arguments,
      num_calls: choice.message.toolCalls.length,
      finish: choice.finishReason,
    };
  },
  async tool_streamed() {
    const choices = (await stream("acme/tools", { tools: [weather] })).flatMap((chunk) => chunk.choices);
    const parts = choices.flatMap((choice) => choice.delta.toolCalls ?? []);
    return {
      id: parts.find((part) => part.id).id,
      name: parts.find((part) => part.function?.name).function.name,
      arguments: parts.map((part) => part.function?.arguments ?? "").join(""),
      num_calls: new Set(parts.map((part) => part.index)).size,
    };
  },
  async structured() {
    const jsonSchema = { name: "place", strict: true, schema: placeSchema };
    const answer = await ask("acme/json", { responseFormat: { type: "json_schema", jsonSchema } });
    return { value: JSON.parse(answer.choices[0].message.content) };
  },
  // This client hands the error chunk to its caller.
  async breaks() {
    const chunks = await stream("acme/breaks");
    return {
      text: chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? "")).join(""),
      error: chunks.at(-1).error?.message,
      finish: chunks.at(-1).choices[0].finishReason,
    };
  },
  ...refusals(ask),
  async models() {
    const { result } = await stock.models.list();
    return { ids: result.data.map((row) => row.id), total: result.totalCount };
  },
  async model() {
    const { data } = await stock.models.get({ author: "acme", slug: "hello" });
    return { id: data.id, name: data.name };
  },
  async endpoints() {
    const { data } = await stock.endpoints.list({ author: "acme", slug: "hello" });
    return { id: data.id, provider: data.endpoints[0].providerName, price: data.endpoints[0].pricing.prompt };
  },
  async providers() {
    return { names: (await stock.providers.list()).data.map((row) => row.name) };
  },
  async key() {
    const { data } = await stock.apiKeys.getCurrentKeyMetadata();
    return { label: data.label, usage: data.usage, management: data.isManagementKey };
  },
  async embeddings() {
    const generate = (input, encodingFormat) =>
      stock.embeddings.generate({ requestBody: { model: "acme/embed", input, encodingFormat } });
    const floats = await generate(["a", "b"], "float");
    const coded = await generate("a", "base64");
    return { rows: floats.data.map((row) => row.embedding), coded: coded.data[0].embedding };
  },
  async rerank() {
    const requestBody = { model: "acme/rank", query: "q", documents: ["a", { text: "b" }, "c"], topN: 2 };
    const answer = await stock.rerank.rerank({ requestBody });
    return {
      rows: answer.results.map((row) => [row.index, row.relevanceScore, row.document.text]),
      model: answer.model,
      provider: answer.provider,
      units: answer.usage.searchUnits,
    };
  },
  async zdr() {
    return { models: (await stock.endpoints.listZdrEndpoints()).data.map((row) => row.modelId) };
  },
  async own_models() {
    const { result } = await stock.models.listForUser({ bearer: key });
    return { ids: result.data.map((row) => row.id) };
  },
  async generation() {
    const { id, usage } = await ask("acme/hello");
    const { data } = await stock.generations.getGeneration({ id });
    return {
      asked: [usage.promptTokens, usage.completionTokens, usage.cost],
      kept: [data.tokensPrompt, data.tokensCompletion, data.totalCost],
      attempts: data.providerResponses.map((row) => row.providerName),
      finish: data.finishReason,
    };
  },
  async responses() {
    const answer = await stock.responses.send({ responsesRequest: { model: "acme/hello", input: "hi" } });
    return { texts: texts(answer.output), status: answer.status, tokens: answer.usage.totalTokens };
  },
  async responses_streamed() {
    const request = { model: "acme/hello", input: "hi", stream: true };
    const seen = [];
    for await (const event of await stock.responses.send({ responsesRequest: request })) seen.push(event);
    const deltas = seen.filter((event) => event.type === "response.output_text.delta");
    return {
      text: deltas.map((event) => event.delta).join(""),
      last: seen.at(-1).type,
      texts: texts(seen.at(-1).response.output),
    };
  },
  async responses_tool() {
    const tools = [{ type: "function", ...weather.function, strict: null }];
    const request = { model: "acme/tools", input: "hi", tools };
    const { output } = await stock.responses.send({ responsesRequest: request });
    const [call] = output.filter((item) => item.type === "function_call");
    return { id: call.callId, name: call.name, arguments: call.arguments, num_calls: 1 };
  },
});
