// The page: which view is shown, how often it is brought up to date, and the key.
//
// A view is { title, show(element, parameters, page), refresh(signal)?, leave()?, every_s? }: `show` puts its frame up once,
// `refresh` fills it in, every `every_s` seconds while the tab is seen and nobody has paused it. To a view the page is
// { refresh(), keep({ name: value }), failed(error), askForKey() }: ask anew, write what was chosen into the address, say what
// went wrong, let somebody enter another key.

import { ApiError, key, Unreachable } from "./api.js";
import { explain } from "./explain.js";
import { keys } from "./keys.js";
import { latency } from "./latency.js";
import { overview } from "./overview.js";
import { routes } from "./routes.js";
import { trial } from "./trial.js";

const VIEWS = { overview, routes, latency, explain, try: trial, keys };
const place = document.getElementById("view");
const problem = document.getElementById("problem");
const state = document.getElementById("state");
const pause = document.getElementById("pause");
const dialog = document.getElementById("key-dialog");
const input = document.getElementById("key-value");
const fault = document.getElementById("key-fault");

const BUSY = 9; // a server that needs long to answer is asked for a tenth of the time at most
const RETRY_S = 5; // after a failure of what is asked only once
const LATE_S = 10; // without an answer, before that is said

let shown = null; // the view
let written = ""; // the address that it was shown by, or wrote itself
let asking = null; // AbortController of its refresh
let timer = 0;
let isPaused = false;
const page = { refresh, keep, failed, askForKey };

/** #/latency?model=x -> the view's name and its parameters. */
function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return [Object.hasOwn(VIEWS, path) ? path : "overview", new URLSearchParams(query)];
}

/** Keep what was chosen in the address, so that a reload, a bookmark and the way back find it; "" leaves a name out. */
function keep(chosen) {
  const [name, parameters] = address();
  for (const [key, value] of Object.entries(chosen)) value === "" ? parameters.delete(key) : parameters.set(key, value);
  const query = String(parameters);
  history.replaceState(null, "", `#/${name === "overview" ? "" : name}${query && `?${query}`}`);
  written = location.hash;
}

function show() {
  const [name, parameters] = address();
  const isFollowed = shown !== null && place.contains(document.activeElement); // a link in what goes away now
  shown?.leave?.();
  shown = VIEWS[name];
  written = location.hash;
  document.title = `${shown.title} · ionrouter`;
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  tell("");
  place.replaceChildren();
  shown.show(place, parameters, page);
  if (isFollowed) place.focus();
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
  const late = setTimeout(() => mine.signal.aborted || tell(`The server has not answered for ${LATE_S} seconds. Still waiting.`), LATE_S * 1000);
  let error = null;
  try {
    await view.refresh(mine.signal);
  } catch (caught) {
    error = caught;
  }
  clearTimeout(late);
  if (mine.signal.aborted) return;
  if (error === null) state.textContent = view.every_s ? `as of ${new Date().toLocaleTimeString()}` : "";
  else mine.abort(); // what else it asked
  const every_s = view.every_s ?? (error && RETRY_S);
  const isOver = every_s === null || isRefused(error) || isPaused || document.hidden; // a refused key would count as one more wrong key
  tell(error === null ? "" : failed(error), !isOver);
  if (!isOver) timer = setTimeout(refresh, Math.max(every_s * 1000, BUSY * (performance.now() - begun)));
}

/** Written only where it is new: a screen reader says it again each time. */
function tell(words, isTried = false) {
  const told = words && isTried ? `${words} Trying again.` : words;
  problem.hidden = words === "";
  if (problem.textContent !== told) problem.textContent = told;
}

function isRefused(error) {
  return error instanceof ApiError && error.status === 401;
}

/** What went wrong, in words; asks for another key where this one was refused. */
function failed(error) {
  if (isRefused(error)) askForKey(key.get() ? error.message : "");
  if (!(error instanceof ApiError || error instanceof Unreachable)) reportError(error); // a mistake of the page's own
  return error.message;
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
  if (dialog.returnValue === "use") {
    key.set(input.value.trim());
    refresh(); // what somebody has typed into the view stays
  }
  if (dialog.returnValue === "forgotten") show();
  dialog.returnValue = "";
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is the view's
  place.focus();
});
document.addEventListener("visibilitychange", () => !document.hidden && !isPaused && refresh());
addEventListener("hashchange", () => location.hash !== written && show());
show();
