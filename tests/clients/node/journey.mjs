// The stock openai package for Node, with only baseURL changed. Prints what each step saw as one JSON object.
import OpenAI from "openai";
import { baseURL, key, messages, placeSchema, refusals, timeoutMs } from "./steps.mjs";

const made = (apiKey) => new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: timeoutMs });
const client = made(key);
const model = "acme/hello";
const seen = {};

const whole = await client.chat.completions.create({ model, messages });
seen.whole = { text: whole.choices[0].message.content, provider: whole.provider, cost: whole.usage.cost };

seen.stream = { text: "", usage: null, ids: [] };
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  seen.stream.text += chunk.choices[0]?.delta?.content ?? "";
  seen.stream.usage = chunk.usage ?? seen.stream.usage;
  if (!seen.stream.ids.includes(chunk.id)) seen.stream.ids.push(chunk.id);
}

const helper = client.chat.completions.stream({ model, messages });
seen.helper = (await helper.finalChatCompletion()).choices[0].message.content;

const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
const called = await client.chat.completions.create({ model: "acme/tools", messages, tools });
seen.tools = called.choices[0].message.tool_calls;

seen.completion = (await client.completions.create({ model, prompt: "Say" })).choices[0].text;
seen.models = [];
for await (const row of client.models.list()) seen.models.push(row.id);
seen.model = (await client.models.retrieve(model)).id;

const calls = [];
for await (const chunk of await client.chat.completions.create({ model: "acme/tools", messages, tools, stream: true }))
  calls.push(...chunk.choices.flatMap((choice) => choice.delta.tool_calls ?? []));
seen.toolStream = calls;

const json_schema = { name: "place", strict: true, schema: placeSchema };
const parsed = await client.chat.completions.parse({
  model: "acme/json",
  messages,
  response_format: { type: "json_schema", json_schema },
});
seen.structured = JSON.parse(parsed.choices[0].message.content);

const vectors = await client.embeddings.create({ model: "acme/embed", input: ["a", "b"] });
seen.embeddings = vectors.data.map((row) => [...row.embedding]);

const answer = await client.responses.create({ model, input: "hi" });
seen.response = { text: answer.output_text, status: answer.status };
seen.responseStream = { text: "", last: "" };
for await (const event of await client.responses.create({ model, input: "hi", stream: true })) {
  if (event.type === "response.output_text.delta") seen.responseStream.text += event.delta;
  seen.responseStream.last = event.type;
}

async function failure(body) {
  try {
    const answer = await client.chat.completions.create({ messages, ...body });
    if (body.stream) for await (const chunk of answer) void chunk;
    return "no error";
  } catch (error) {
    return { name: error.constructor.name, status: error.status ?? null, message: error.message };
  }
}
seen.unknown = await failure({ model: "acme/nowhere" });
seen.limited = await failure({ model: "acme/limited", stream: true });
seen.down = await failure({ model: "acme/down" });
seen.breaks = await failure({ model: "acme/breaks", stream: true });

seen.refused = {};
const ask = (model, { key: other, ...more }) =>
  made(other ?? key).chat.completions.create({ model, messages, ...more });
for (const [name, step] of Object.entries(refusals(ask))) {
  seen.refused[name] = await step().then(
    () => "no error",
    (error) => ({ name: error.constructor.name, status: error.status, message: error.message }),
  );
}

async function slow() {
  let text = "";
  for await (const chunk of await client.chat.completions.create({ model: "acme/slow", messages, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  return text;
}
seen.many = [...new Set(await Promise.all(Array.from({ length: 32 }, slow)))];

const left = await client.chat.completions.create({ model: "acme/slow", messages, stream: true });
for await (const chunk of left) {
  void chunk;
  break; // the iterator's return aborts the request
}
seen.left = true;

console.log(JSON.stringify(seen));
