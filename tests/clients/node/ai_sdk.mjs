// The stock ai package with @openrouter/ai-sdk-provider, with only baseURL changed.
import { createOpenRouter } from "@openrouter/ai-sdk-provider";
import { embedMany, generateText, jsonSchema, Output, streamText, tool } from "ai";
import { baseURL, key, placeSchema, play, refusals, weatherSchema } from "./steps.mjs";

const made = (apiKey) => createOpenRouter({ apiKey, baseURL });
const stock = made(key);
const tools = { weather: tool({ description: "The weather", inputSchema: jsonSchema(weatherSchema) }) };
const asking = (model, more = {}) => ({ model: stock(model), prompt: "hi", maxRetries: 0, ...more });

// All parts of a stream; errors come as parts, and onError keeps them off the console.
async function parts(model, more = {}) {
  const seen = [];
  const answer = streamText(asking(model, { onError() {}, ...more }));
  for await (const part of answer.fullStream) seen.push(part);
  return seen;
}
const textOf = (seen) => seen.filter((part) => part.type === "text-delta").map((part) => part.text).join("");
const told = (usage, metadata) => ({
  tokens: usage.totalTokens,
  cost: metadata.openrouter.usage.cost,
  provider: metadata.openrouter.provider,
});
const called = (calls) => ({
  id: calls[0].toolCallId,
  name: calls[0].toolName,
  value: calls[0].input,
  num_calls: calls.length,
});

await play({
  async whole() {
    const answer = await generateText(asking("acme/hello"));
    return {
      text: answer.text,
      finish: answer.finishReason,
      model: answer.response.modelId,
      reasoning: answer.reasoningText,
      ...told(answer.usage, answer.providerMetadata),
    };
  },
  async streamed() {
    const seen = await parts("acme/hello");
    const step = seen.find((part) => part.type === "finish-step");
    return {
      text: textOf(seen),
      finish: step.finishReason,
      reasoning: seen.filter((part) => part.type === "reasoning-delta").map((part) => part.text).join(""),
      ...told(step.usage, step.providerMetadata),
    };
  },
  async tool() {
    const answer = await generateText(asking("acme/tools", { tools }));
    return { ...called(answer.toolCalls), finish: answer.finishReason };
  },
  async tool_streamed() {
    return called((await parts("acme/tools", { tools })).filter((part) => part.type === "tool-call"));
  },
  async structured() {
    const output = Output.object({ schema: jsonSchema(placeSchema), name: "place" });
    return { value: (await generateText(asking("acme/json", { output }))).output };
  },
  async breaks() {
    const seen = await parts("acme/breaks");
    const failed = seen.find((part) => part.type === "error");
    return {
      text: textOf(seen),
      error: String(failed?.error?.message ?? JSON.stringify(failed?.error)),
      finish: seen.find((part) => part.type === "finish")?.finishReason,
    };
  },
  ...refusals((model, { key: other, provider }) =>
    generateText({ model: made(other ?? key)(model, { extraBody: provider ? { provider } : {} }), prompt: "hi", maxRetries: 0 }),
  ),
  async embeddings() {
    const model = stock.textEmbeddingModel("acme/embed");
    return { rows: (await embedMany({ model, values: ["a", "b"], maxRetries: 0 })).embeddings };
  },
});
