// Figures for people. Unknown is a dash everywhere, never a zero.

const DASH = "–";
const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** 1234567 -> 1,234,567. */
export function count(value) {
  return isKnown(value) ? Math.round(value).toLocaleString("en-US") : DASH;
}

/** Milliseconds: 0.42 ms, 87 ms, 1.24 s, 75 s. */
export function ms(value) {
  if (!isKnown(value)) return DASH;
  if (value >= 10000) return `${(value / 1000).toFixed(0)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return value >= 10 ? `${value.toFixed(0)} ms` : `${value.toPrecision(2)} ms`;
}

/** A share of 0 to 1 in percent, small ones and those near the whole with a decimal: nothing but 1 is 100 %. */
export function share(value) {
  if (!isKnown(value)) return DASH;
  const hundredths = value * 100;
  if (hundredths > 0 && hundredths < 0.1) return "<0.1 %";
  if (hundredths > 99.9 && value < 1) return ">99.9 %";
  const isRough = hundredths === 0 || value === 1 || (hundredths >= 10 && hundredths < 99.5);
  return `${hundredths.toFixed(isRough ? 0 : 1)} %`;
}

/** A percentage of routes.yaml: 5 %, 0.25 %. */
export function percent(value) {
  return `${Number(value.toPrecision(4))} %`;
}

/** USD, four significant digits where it is small. */
export function usd(value) {
  if (!isKnown(value)) return DASH;
  if (value === 0) return "$0";
  if (value >= 1) return `$${value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  return `$${Number(value.toPrecision(3)).toFixed(Math.min(8, 2 - Math.floor(Math.log10(value))))}`;
}

/** USD per million tokens, as routes.yaml writes it; null: nobody said. */
export function price(prompt, completion) {
  if (prompt === null) return "unknown";
  if (prompt === 0 && completion === 0) return "free";
  return `$${Number(prompt.toPrecision(6))} / $${Number(completion.toPrecision(6))}`;
}

/** Tokens a second. */
export function rate(value) {
  if (!isKnown(value)) return DASH;
  return value >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

/** Seconds as the largest two units: 2 d 4 h, 5 min 3 s. */
export function lasting(seconds) {
  if (!isKnown(seconds)) return DASH;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, width]) => seconds >= width);
  if (first < 0) return "0 s";
  const [[name, width], next] = [units[first], units[first + 1]];
  const rest = next ? Math.floor((seconds % width) / next[1]) : 0;
  return `${Math.floor(seconds / width)} ${name}${rest ? ` ${rest} ${next[0]}` : ""}`;
}

/** An ISO 8601 moment of the API in its own time, UTC, to the minute: 2026-12-31 08:00. */
export function utc(iso) {
  return iso === null ? DASH : iso.slice(0, 16).replace("T", " ");
}

/** A moment of the epoch, in the reader's own time; days are UTC's, as the server counts them. */
export function moment(seconds, isDay = false) {
  const at = new Date(seconds * 1000);
  return isDay ? at.toLocaleDateString([], { timeZone: "UTC" }) : at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
}
