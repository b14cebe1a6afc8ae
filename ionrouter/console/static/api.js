// The server's API, asked with the key of this tab, if there is one.

const PLACE = "ionrouter.key";
const BASE = new URL("../api/v1/", document.baseURI);

/** An answer that is not 2xx, in the server's own words; `param` is the field at fault, or null. */
export class ApiError extends Error {
  constructor(status, message, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** No answer, or one that broke off. */
export class Unreachable extends Error {}

export const key = {
  get: () => sessionStorage.getItem(PLACE) ?? "",
  set: (value) => (value ? sessionStorage.setItem(PLACE, value) : sessionStorage.removeItem(PLACE)),
};

function headers(more = {}) {
  return key.get() ? { Authorization: `Bearer ${key.get()}`, ...more } : more;
}

/** Ask for `path` under /api/v1 and read the JSON; `parameters` that are null are left out. */
export async function get(path, parameters = {}, signal = undefined) {
  return json(await send(path, parameters, { headers: headers(), signal }));
}

/** The answer's text, for files. */
export async function text(path, parameters = {}) {
  const answer = await send(path, parameters, { headers: headers() });
  return reached(answer.text());
}

/** POST JSON; returns the Response, so that streams can be read. */
export function post(path, parameters, body, signal) {
  return send(path, parameters, written("POST", body, signal));
}

/** PATCH with a body or DELETE without one; reads the JSON. */
export async function change(method, path, body = undefined) {
  return json(await send(path, {}, written(method, body)));
}

function written(method, body, signal = undefined) {
  return { method, headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal };
}

/** The JSON of an answer. */
export async function json(answer) {
  try {
    return JSON.parse(await reached(answer.text()));
  } catch (error) {
    throw error instanceof SyntaxError ? notJson(answer) : error;
  }
}

/** /health answers 503 with a body while nothing can be served: that is an answer, too. */
export async function health(signal) {
  const answer = await reached(fetch(new URL("health", BASE), { headers: headers(), signal }));
  const body = await answer.json().catch(() => null); // a proxy's own page is none
  if (typeof body?.status !== "string") throw answer.ok ? notJson(answer) : refusal(answer, body);
  return body;
}

async function send(path, parameters, options) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null) url.searchParams.set(name, value);
  }
  const answer = await reached(fetch(url, options));
  if (!answer.ok) throw refusal(answer, await answer.json().catch(() => null));
  return answer;
}

/** What fetch and the reading of a body throw where there is no connection is a TypeError, as a mistake in a script is. */
async function reached(promise) {
  try {
    return await promise;
  } catch (error) {
    throw error instanceof TypeError ? new Unreachable("The server does not answer.") : error;
  }
}

function notJson(answer) {
  return new ApiError(answer.status, "The server's answer is not JSON.");
}

function refusal(answer, body) {
  const words = body?.error?.message ?? `The server answered with status ${answer.status}.`;
  return new ApiError(answer.status, words, body?.error?.param ?? null);
}
