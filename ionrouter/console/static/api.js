// The server's API, asked with the key of this tab, if there is one.

const PLACE = "ionrouter.key";
const BASE = new URL("../api/v1/", document.baseURI);

/** An answer that is not 2xx, in the server's own words. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** An error for people; `then`: what is done about a server that is away. */
export function inWords(error, then = "") {
  return error instanceof TypeError ? `The server does not answer.${then}` : error.message;
}

export const key = {
  get: () => sessionStorage.getItem(PLACE) ?? "",
  set: (value) => (value ? sessionStorage.setItem(PLACE, value) : sessionStorage.removeItem(PLACE)),
};

function headers(more = {}) {
  return key.get() ? { Authorization: `Bearer ${key.get()}`, ...more } : more;
}

/** Ask for `path` under /api/v1; `parameters` that are null are left out. */
export async function get(path, parameters = {}, signal = undefined) {
  const answer = await send(path, parameters, { headers: headers(), signal });
  return answer.json();
}

/** The answer's text, for files. */
export async function text(path, parameters = {}) {
  return (await send(path, parameters, { headers: headers() })).text();
}

/** POST JSON; returns the Response, so that streams can be read. */
export function post(path, body, signal = undefined) {
  const sent = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal };
  return send(path, {}, sent);
}

/** /health answers 503 with a body while nothing can be served: that is an answer, too. */
export async function health(signal) {
  const answer = await fetch(new URL("health", BASE), { headers: headers(), signal });
  const body = await answer.json().catch(() => null); // a proxy's own page is none
  if (typeof body?.status !== "string") throw new ApiError(answer.status, body?.error?.message ?? said(answer));
  return body;
}

async function send(path, parameters, options) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null) url.searchParams.set(name, value);
  }
  const answer = await fetch(url, options);
  if (!answer.ok) throw await failure(answer);
  return answer;
}

async function failure(answer) {
  const body = await answer.json().catch(() => null);
  return new ApiError(answer.status, body?.error?.message ?? said(answer));
}

function said(answer) {
  return `the server answered ${answer.status}`;
}
