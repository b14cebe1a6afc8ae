// Stretches of time that statistics are asked for, and the width of their series.

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

export const WINDOWS = [
  ["30m", "30 minutes", 30 * MINUTE, "minute", MINUTE],
  ["2h", "2 hours", 2 * HOUR, "minute", MINUTE],
  ["1d", "a day", DAY, "hour", HOUR],
  ["7d", "a week", 7 * DAY, "day", DAY],
  ["31d", "a month", 31 * DAY, "day", DAY],
].map(([name, words, seconds, resolution, width_s]) => ({ name, words, seconds, resolution, width_s }));

export const OPTIONS = WINDOWS.map(({ name, words }) => [name, words]);

export function windowOf(name) {
  return WINDOWS.find((window) => window.name === name) ?? WINDOWS[0];
}
