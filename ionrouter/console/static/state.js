// What an endpoint's state is called, and how it looks. One place, so that all views agree.

import { h } from "./dom.js";

const STATES = {
  ok: ["●", "ok"],
  degraded: ["◐", "failing lately"],
  half_open: ["◑", "on trial"],
  open: ["✕", "breaker open"],
  unavailable: ["✕", "unavailable"],
  disabled: ["○", "disabled"],
};

/** The state of an endpoint's node of /routing/graph. */
export function stateOf(node) {
  if (node.disabled) return "disabled";
  if (node.unavailable) return "unavailable";
  if (node.breaker === "open") return "open";
  if (node.breaker === "half_open") return "half_open";
  return node.status < 0 ? "degraded" : "ok";
}

/** Why an endpoint is in its state, or "". */
export function reasonOf(node) {
  return node.disabled ?? node.unavailable ?? "";
}

/** Sign and words: colour is never the only difference. */
export function badge(state, title = "") {
  const [sign, words] = STATES[state];
  return h("span", { class: `badge ${state}`, title: title || null }, h("span", { "aria-hidden": "true" }, sign), ` ${words}`);
}

export function signOf(state) {
  return STATES[state][0];
}

export function wordsOf(state) {
  return STATES[state][1];
}
