// The dialogs that make, change and delete a key. A new key's text is in its dialog alone, and gone with it.

import { ApiError, change, json, post, Unreachable } from "./api.js";
import { field, h, select } from "./dom.js";

const RESETS = [["", "never"], ["daily", "daily"], ["weekly", "weekly, on Monday"], ["monthly", "monthly"]];

/** `made` gets the card of the new key. */
export function makeKey({ place, page }, made) {
  const controls = [
    ...common({ name: "", limit: null, limit_reset: null }),
    field("Expires (UTC)", h("input", { id: "key-expires", name: "expires_at", type: "datetime-local", autocomplete: "off" }), "Nothing: never. It cannot be changed later."),
  ];
  const form = ask(place, page, { title: "New key", controls, button: "Make key" }, async (elements) => {
    const expires = elements.expires_at.value;
    const body = { name: elements.name.value, limit: limitOf(elements), limit_reset: elements.limit_reset.value || null, expires_at: expires ? `${expires}Z` : null };
    const { data, key } = await post("keys", {}, body).then(json).catch(maybeDone);
    showOnce(form, data.name, key);
    made(data);
    return false; // stays open
  });
}

/** Sends what differs from `row` alone, so that what others changed meanwhile stays; `done` gets the card. */
export function changeKey({ place, page }, row, done) {
  const disabled = h("input", { id: "key-disabled", name: "disabled", type: "checkbox", checked: row.disabled });
  const controls = [...common(row), h("div", { class: "field check" }, disabled, h("label", { for: "key-disabled" }, "Disabled: its requests get a 401"))];
  ask(place, page, { title: ["Change ", row.name], controls, button: "Save" }, async (elements) => {
    const wanted = { name: elements.name.value, limit: limitOf(elements), limit_reset: elements.limit_reset.value || null, disabled: disabled.checked };
    const differing = Object.entries(wanted).filter(([name, value]) => value !== row[name]);
    if (differing.length === 0) return null;
    const { data } = await change("PATCH", `keys/${row.hash}`, Object.fromEntries(differing));
    return () => done(data);
  });
}

export function deleteKey({ place, page }, row, done) {
  const words = h("p", {}, "Whoever uses ", h("bdi", {}, h("strong", {}, row.name)), ` (${row.label}) gets a 401 from now on. It cannot be undone; what it spent stays in every total.`);
  ask(place, page, { title: ["Delete ", row.name, "?"], controls: [words], button: "Delete", isDanger: true }, async () => {
    await change("DELETE", `keys/${row.hash}`);
    return done;
  });
}

function common(row) {
  const reset = select("key-reset", RESETS, row.limit_reset ?? "");
  reset.name = "limit_reset";
  return [
    field("Name", h("input", { id: "key-name", name: "name", required: true, value: row.name, autocomplete: "off" })),
    field("Limit (USD)", h("input", { id: "key-limit", name: "limit", type: "number", min: 0, step: "any", value: row.limit, placeholder: "unlimited", autocomplete: "off" }),
      "0: only what costs nothing. Nothing: unlimited."),
    field("Limit resets", reset),
  ];
}

function limitOf(elements) {
  return elements.limit.value === "" ? null : Number(elements.limit.value);
}

/** A broken connection does not say whether the key was made. */
function maybeDone(error) {
  if (error instanceof Unreachable) throw new Unreachable(`${error.message} The key may have been made all the same: look in the table, and delete it there.`);
  throw error;
}

/**
 * A form over the page. `send` gets its elements; the form closes when that is done, unless it returns false, and then calls
 * what it returns. What the API refuses is said in the form, which stays as it was filled in; the field at fault gets the focus.
 */
function ask(place, page, { title, controls, button, isDanger = false }, send) {
  const fault = h("p", { class: "fault", id: "form-fault", role: "alert" });
  const main = h("button", { type: "submit", class: isDanger ? "danger" : "main" }, button);
  const cancel = h("button", { type: "button", class: "quiet", autofocus: isDanger, onclick: () => dialog.close() }, "Cancel");
  const form = h("form", { onsubmit: submit }, h("h2", { id: "form-title" }, title), controls, fault, h("menu", {}, cancel, main));
  const dialog = h("dialog", { "aria-labelledby": "form-title" }, form);
  async function submit(event) {
    event.preventDefault();
    blame(form, fault, "", null);
    main.disabled = true;
    try {
      const then = await send(form.elements);
      if (then === false) return;
      dialog.close(); // the focus is back where it was
      then?.();
    } catch (error) {
      blame(form, fault, page.failed(error), error instanceof ApiError ? error.param : null);
      main.disabled = false;
    }
  }
  dialog.addEventListener("close", () => dialog.remove());
  place.append(dialog);
  dialog.showModal();
  return form;
}

function blame(form, fault, words, param) {
  fault.textContent = words;
  for (const control of form.elements) {
    const isAtFault = param !== null && control.name === param;
    if (isAtFault) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
    if (isAtFault) control.setAttribute("aria-describedby", fault.id);
    if (isAtFault) control.focus();
  }
}

function showOnce(form, name, key) {
  const dialog = form.parentElement;
  const text = h("textarea", { id: "new-key", rows: 3, readonly: true, autocomplete: "off", spellcheck: "false", onfocus: () => text.select() }, key);
  const told = h("p", { role: "status" });
  const copy = h("button", { type: "button", class: "main", onclick: async () => { told.textContent = await copied(text); } }, "Copy");
  const done = h("button", { type: "button", onclick: () => dialog.close() }, "Done");
  dialog.addEventListener("keydown", (event) => event.key === "Escape" && event.preventDefault()); // a slip would lose it
  form.replaceChildren(
    h("h2", { id: "form-title" }, "The key of ", name),
    h("p", {}, h("strong", {}, "Copy it now: it cannot be shown again.")),
    field("Key", text), told, h("menu", {}, copy, done));
  text.focus();
}

/** Browsers give the clipboard to pages from HTTPS and loopback alone; elsewhere the older way, then the reader's own. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text.value);
  } catch {
    text.focus();
    if (!document.execCommand("copy")) return "The browser does not let it be copied from here: it is selected.";
  }
  return "Copied.";
}
