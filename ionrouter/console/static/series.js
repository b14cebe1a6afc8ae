// Small pictures of figures over time.

import { s } from "./dom.js";

/**
 * Bars, one a bucket, from `since` to `until` (seconds); `points`: [start, value]. A bucket without a point is empty,
 * so that silence shows. `words`: what the picture says to those who do not see it.
 */
export function bars(points, { since, until, width_s, width = 120, height = 26, words, tell = String }) {
  const first = Math.floor(since / width_s) * width_s;
  const buckets = Math.max(1, Math.ceil((until - first) / width_s));
  const step = width / buckets;
  const top = Math.max(...points.map(([, value]) => value), 0);
  const made = points
    .filter(([start, value]) => value > 0 && start >= first)
    .map(([start, value]) => {
      const tall = Math.max(1.5, (value / top) * (height - 1));
      const x = ((start - first) / width_s) * step;
      const shape = { x: x.toFixed(2), y: (height - tall).toFixed(2), width: Math.max(1, step - 1).toFixed(2), height: tall.toFixed(2) };
      return s("rect", shape, s("title", {}, tell(start, value)));
    });
  return s(
    "svg",
    { class: "bars", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words, preserveAspectRatio: "none" },
    s("line", { x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5, class: "axis" }),
    made,
  );
}

/** A share of a whole as a bar; its words stand beside it. */
export function meter(value) {
  return s(
    "svg",
    { class: "meter", viewBox: "0 0 100 6", width: 84, height: 6, "aria-hidden": "true", preserveAspectRatio: "none" },
    s("rect", { class: "track", width: 100, height: 6, rx: 3 }),
    value > 0 ? s("rect", { class: "fill", width: Math.max(2, value * 100), height: 6, rx: 3 }) : null,
  );
}
