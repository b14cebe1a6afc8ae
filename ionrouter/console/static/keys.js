// Who may call, and what it costs: the keys and the spending for a management key, one's own for any other.

import { ApiError, get, key } from "./api.js";
import { h, replace, tile } from "./dom.js";
import { usd, utc } from "./format.js";
import { list } from "./key-list.js";
import { spending } from "./spending.js";

const PANELS = { list, spending };
const PERIODS = { daily: "a day", weekly: "a week", monthly: "a month" };
const parts = {};

export const keys = {
  title: "Keys",
  every_s: 30,
  show(place, parameters, page) {
    const name = parameters.get("show") === "spending" ? "spending" : "list";
    const link = (of, address, words) => h("a", { href: address, "aria-current": of === name && "page" }, words);
    parts.page = page;
    parts.panel = PANELS[name];
    parts.own = h("div", {});
    parts.all = h("div", { hidden: true });
    parts.tools = h("span", { class: "tools", hidden: true });
    place.append(
      h("div", { class: "head" }, h("h1", {}, "Keys"),
        h("nav", { class: "tabs", "aria-label": "Keys and spending" }, link("list", "#/keys", "All keys"), link("spending", "#/keys?show=spending", "Spending")),
        parts.tools),
      parts.own, parts.all,
    );
    parts.panel.show(parts.all, parts.tools, parameters, page);
  },
  async refresh(signal) {
    const mayManage = await opens(signal);
    const own = mayManage ? null : (await get("key", {}, signal)).data;
    if (!mayManage) parts.panel.forget(); // what an earlier key was shown
    parts.all.hidden = parts.tools.hidden = !mayManage;
    replace(parts.own, mayManage ? [] : ownKey(own));
    if (mayManage) await parts.panel.refresh(signal);
  },
};

/** Whether the key manages others. Routes for that alone ask for it while keys are off: GET /key does not look at it then. */
async function opens(signal) {
  if (key.get() === "") return false;
  try {
    await get("analytics/meta", {}, signal);
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) return false;
    throw error;
  }
  return true;
}

/** What GET /key tells whoever has no management key. */
function ownKey(own) {
  const limit = own.limit === null ? "unlimited" : usd(own.limit);
  const expiry = own.expires_at === null ? "does not expire" : `expires ${utc(own.expires_at)} UTC`;
  const enter = h("button", { type: "button", id: "enter-key", class: "main", onclick: () => parts.page.askForKey() }, "Enter a management key");
  return [
    h("p", { class: "note" }, "A management key is needed to see, make and change keys, and to see what was spent by all. The first start of the server wrote one to ",
      h("code", {}, "management.key"), " in its state folder."),
    h("p", {}, enter),
    h("h2", {}, own.label.startsWith("sk-") ? `This key: ${own.label}` : "Requests without a key"),
    h("div", { class: "tiles" },
      tile("Limit", limit, own.limit === null ? expiry : `${PERIODS[own.limit_reset] ?? "for ever"}, ${expiry}`),
      tile("Remaining", own.limit === null ? "unlimited" : usd(own.limit_remaining)),
      tile("Spent today", usd(own.usage_daily), "since midnight UTC"),
      tile("This week", usd(own.usage_weekly), "since Monday"),
      tile("This month", usd(own.usage_monthly)),
      tile("Ever", usd(own.usage))),
  ];
}
