// Holds the latest status, which server-sent events bring, and the state of the connection.
//
// Rules:
// - A message of the server is stored at once and drawn at most once a frame, so that a busy queue does not load the page.
// - Hidden pages close their stream; frozen ones keep it and show what they had.
// - `line` is one of: connecting, live, lost (the stream ended; tried again), unavailable (the queue cannot be read),
//   refused (the token is no longer valid).

import { get } from "./api.js";

const LONGEST = 600;
const AGAIN = 2000;

export const live = {
  status: null,
  latest: null, // the same, unless the page is frozen
  line: "connecting",
  error: "",
  isFrozen: false,
  changed: () => {},
};

let stream = null;
let held = null;
let skew = 0;
let history = null;
let timer = 0;

/** The server's present time in seconds; while frozen, the time of freezing. */
export function now() {
  if (live.isFrozen && held) return held.at;
  return Date.now() / 1000 + skew;
}

/** Open the stream, and keep it open as long as the page is. */
export function begin(changed) {
  live.changed = changed;
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  if (!document.hidden) open();
}

/** Freeze the page, or let it go on. */
export function freeze(isFrozen) {
  held = isFrozen ? { at: now() } : null;
  live.isFrozen = isFrozen;
  if (!isFrozen && live.latest) take(live.latest);
  live.changed();
}

/** Ask for the whole status again, after an action, so that its outcome is seen at once. */
export async function refresh() {
  try {
    const status = await get("status");
    history = status.history ?? history;
    show("live", "");
    take(status);
  } catch (error) {
    fail(error);
  }
}

function fail(error) {
  if (error.status === 401) show("refused", error.message);
  else if (error.status === 503) show("unavailable", error.message);
  else show("lost", error.message);
}

async function open() {
  close();
  await refresh();
  if (live.line === "refused" || document.hidden || stream) return;
  stream = new EventSource("live");
  stream.addEventListener("status", (event) => {
    show("live", "");
    take(JSON.parse(event.data));
  });
  stream.addEventListener("unavailable", (event) => show("unavailable", JSON.parse(event.data).error));
  stream.onerror = () => {
    close();
    show("lost", "The dashboard does not answer. Trying again.");
    timer = setTimeout(open, AGAIN);
  };
}

function close() {
  clearTimeout(timer);
  stream?.close();
  stream = null;
}

function show(line, error) {
  if (live.line === line && live.error === error) return;
  live.line = line;
  live.error = error;
  live.changed();
}

function take(status) {
  skew = status.at - Date.now() / 1000;
  if (status.sample) extend(status.sample);
  status.history = history;
  live.latest = status;
  if (live.isFrozen) return;
  live.status = status;
  live.changed();
}

function extend(sample) {
  if (!history) return;
  const steps = Math.min(LONGEST, Math.round((sample.at - history.until) / history.step));
  if (steps < 1) return;
  const next = { step: history.step, until: sample.at };
  for (const name of ["pending", "running", "completed", "failed"]) {
    const isFlow = name === "completed" || name === "failed";
    const value = isFlow ? sample[name] / steps : sample[name];
    next[name] = [...history[name], ...Array(steps).fill(value)].slice(-LONGEST);
  }
  history = next;
}
