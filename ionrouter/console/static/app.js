// The page: which view is shown, how often it is brought up to date, and the key.
//
// A view is { title, show(element, parameters), refresh(signal)?, every_s? }: `show` puts its frame up once,
// `refresh` fills it in, every `every_s` seconds while the tab is seen and nobody has paused it.

import { ApiError, key } from "./api.js";
import { explain } from "./explain.js";
import { latency } from "./latency.js";
import { overview } from "./overview.js";
import { routes } from "./routes.js";
import { trial } from "./trial.js";

const VIEWS = { overview, routes, latency, explain, try: trial };
const place = document.getElementById("view");
const problem = document.getElementById("problem");
const state = document.getElementById("state");
const pause = document.getElementById("pause");
const dialog = document.getElementById("key-dialog");
const input = document.getElementById("key-value");
const fault = document.getElementById("key-fault");

const BUSY = 9; // a server that needs long to answer is asked for a tenth of the time at most

let shown = null; // the view
let asking = null; // AbortController of its refresh
let timer = 0;
let isPaused = false;

/** #/latency?model=x -> the view's name and its parameters. */
function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return [path in VIEWS ? path : "overview", new URLSearchParams(query)];
}

function show() {
  const [name, parameters] = address();
  shown = VIEWS[name];
  document.title = `${shown.title} · ionrouter`;
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  tell(null);
  place.replaceChildren();
  shown.show(place, parameters, () => refresh());
  pause.hidden = !shown.every_s;
  state.textContent = "";
  refresh();
}

async function refresh() {
  clearTimeout(timer);
  asking?.abort();
  if (!shown.refresh) return;
  const [view, mine] = [shown, new AbortController()];
  asking = mine;
  const begun = performance.now();
  try {
    await view.refresh(mine.signal);
    if (mine.signal.aborted) return;
    tell(null);
    state.textContent = view.every_s ? `as of ${new Date().toLocaleTimeString()}` : "";
  } catch (error) {
    if (mine.signal.aborted) return;
    tell(error);
  }
  if (!view.every_s || isPaused || document.hidden) return;
  timer = setTimeout(refresh, Math.max(view.every_s * 1000, BUSY * (performance.now() - begun)));
}

function tell(error) {
  problem.hidden = error === null;
  problem.textContent = error === null ? "" : inWords(error);
  if (error instanceof ApiError && error.status === 401) askForKey(key.get() ? error.message : "");
}

function inWords(error) {
  return error instanceof TypeError ? "The server does not answer; trying again." : error.message;
}

function askForKey(why = "") {
  if (dialog.open) return; // somebody types
  fault.textContent = why;
  input.value = key.get();
  dialog.showModal();
}

pause.addEventListener("click", () => {
  isPaused = !isPaused;
  pause.setAttribute("aria-pressed", String(isPaused));
  pause.textContent = isPaused ? "Resume" : "Pause";
  refresh();
});
document.getElementById("key").addEventListener("click", () => askForKey());
document.getElementById("key-forget").addEventListener("click", () => {
  key.set("");
  dialog.close("forgotten");
});
dialog.addEventListener("close", () => {
  if (dialog.returnValue === "use") key.set(input.value.trim());
  if (dialog.returnValue) show();
  dialog.returnValue = "";
});
document.addEventListener("visibilitychange", () => !document.hidden && !isPaused && refresh());
addEventListener("hashchange", show);
show();
