// What a client's script does, one step after the other: each prints one JSON line of what it saw.
export const baseURL = process.env.IONROUTER_BASE_URL; // ends with /api/v1
export const key = process.env.IONROUTER_KEY;
const poorKey = process.env.IONROUTER_POOR_KEY; // its limit is used up
const wrongKey = "sk-or-v1-" + "0".repeat(64);

export const messages = [{ role: "user", content: "hi" }];
const nowhere = { only: ["nowhere"] }; // a provider object that no endpoint satisfies
export const timeoutMs = 60_000; // a guard: no client may wait for ever
export const placeSchema = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
  additionalProperties: false,
};
export const weatherSchema = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

function described(error) {
  return { type: error.constructor.name, status: error.statusCode ?? null, message: String(error.message) };
}

// Run each step and print its line, the exception it threw included.
export async function play(steps) {
  for (const [name, step] of Object.entries(steps)) {
    let seen;
    try {
      seen = await step();
    } catch (error) {
      seen = { raised: described(error) };
    }
    console.log(JSON.stringify({ step: name, ...seen }));
  }
}

// The steps that must fail before any token: ask(model, {key, provider}) is one whole answer.
export function refusals(ask) {
  const answered = (...given) => async () => ({ answered: JSON.stringify(await ask(...given)) });
  return {
    unauthorized: answered("acme/json", { key: wrongKey }),
    unpaid: answered("acme/json", { key: poorKey }),
    filtered: answered("acme/json", { provider: nowhere }),
    limited: answered("acme/limited", {}),
    down: answered("acme/down", {}),
  };
}
