// Small pictures, drawn as lines on a field of 16 by 16, so that they take the colour of the text beside them.

import { h } from "./dom.js";

const CIRCLE = "M8 1.75a6.25 6.25 0 1 1 0 12.5a6.25 6.25 0 1 1 0-12.5z";
const PATHS = {
  pending: `${CIRCLE}M8 4.5V8l2.25 1.5`,
  running: "M8 1.75a6.25 6.25 0 1 1-6.25 6.25M6.5 5.4l4.2 2.6l-4.2 2.6z",
  completed: `${CIRCLE}M5.2 8.2l1.9 1.9l3.7-4`,
  skipped: `${CIRCLE}M5 5.5l2.5 2.5L5 10.5M8.5 5.5L11 8l-2.5 2.5`,
  failed: `${CIRCLE}M5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4`,
  cancelled: `${CIRCLE}M3.8 3.8l8.4 8.4`,
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M4.75 3.2l8 4.8l-8 4.8z",
  retry: "M13.25 8a5.25 5.25 0 1 1-1.6-3.8M13.4 1.9v3h-3",
  discard: "M2.75 4.25h10.5M6.25 4.25v-2h3.5v2M4.25 4.25l.6 9h6.3l.6-9M6.8 7v3.6M9.2 7v3.6",
  search: "M7 2.25a4.75 4.75 0 1 1 0 9.5a4.75 4.75 0 1 1 0-9.5zM10.6 10.6l3.4 3.4",
  sun: "M8 5a3 3 0 1 1 0 6a3 3 0 1 1 0-6zM8 1v1.4M8 13.6V15M1 8h1.4M13.6 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  moon: "M13.5 9.6A5.9 5.9 0 0 1 6.4 2.5a5.9 5.9 0 1 0 7.1 7.1z",
  system: "M2 2.75h12v8.5H2zM5.5 13.75h5",
  help: `${CIRCLE}M6.1 6.2a1.95 1.95 0 1 1 2.7 1.8c-.5.25-.8.6-.8 1.2M8 11.2v.2`,
  copy: "M5.75 5.75h7.5v7.5h-7.5zM3.5 10.25h-.75v-7.5h7.5v.75",
  tune: "M2 4.75h6.5M12 4.75h2M2 11.25h2M7.5 11.25H14M10.25 3v3.5M5.75 9.5V13",
  bolt: "M9 1.5L3.5 9h4l-.5 5.5L12.5 7h-4z",
  back: "M9.75 3.25L5 8l4.75 4.75",
  close: "M4 4l8 8M12 4l-8 8",
  warning: "M8 2l6.5 11.5h-13zM8 6.5v3.2M8 11.6v.1",
  check: "M3 8.4l3.3 3.3L13 5",
};

/** The picture of that name; screen readers skip it and read the word beside it. */
export function icon(name, extra = "") {
  return h(
    "svg.icon",
    { viewBox: "0 0 16 16", "aria-hidden": "true", class: extra || undefined },
    h("path", { d: PATHS[name] ?? PATHS.pending }),
  );
}

/** The mark of runcue: units that wait, and units that have started. */
export function mark() {
  return h(
    "svg.mark",
    { viewBox: "0 0 24 24", "aria-hidden": "true" },
    h("rect", { x: 2, y: 4, width: 3.5, height: 16, rx: 1.75 }),
    h("rect", { x: 8, y: 7, width: 3.5, height: 10, rx: 1.75, opacity: 0.55 }),
    h("path", { d: "M14.5 7.2v9.6a1 1 0 0 0 1.53.85l7-4.8a1 1 0 0 0 0-1.7l-7-4.8a1 1 0 0 0-1.53.85z" }),
  );
}

/** A state as picture and word, never as a colour alone. */
export function badge(state, word = state) {
  return h("span.badge", { class: `is-${state}` }, icon(state), word);
}
