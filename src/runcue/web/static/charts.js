// Charts: bars for units that ended, an area for those that wait, a bar for the history of one unit.

import { h } from "./dom.js";
import { clock, number, pace, span } from "./format.js";

const BINS = 60;
const WIDE = 600;
const HIGH = 72;
const WINDOWS = [60, 300, 600];

/** The shortest window that holds the history: a minute at first, ten at most. */
function windowOf(history) {
  const seconds = history.pending.length * history.step;
  return WINDOWS.find((size) => seconds <= size) ?? WINDOWS.at(-1);
}

/** The values of a series by bins, oldest first; null in bins without data. */
function binned(history, name, fold) {
  const values = history[name];
  const size = windowOf(history) / BINS;
  const last = Math.floor(history.until / size);
  const bins = Array.from({ length: BINS }, () => []);
  values.forEach((value, index) => {
    const at = history.until - (values.length - 1 - index) * history.step;
    const bin = BINS - 1 - (last - Math.floor(at / size));
    if (bin >= 0) bins[bin].push(value);
  });
  return bins.map((found) => (found.length ? fold(found) : null));
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Bars of the units that ended in each second, failures on top. */
export function throughput(history) {
  const rate = (values) => mean(values) / history.step;
  const done = binned(history, "completed", rate);
  const failed = binned(history, "failed", rate);
  const peak = Math.max(...done.map((value, index) => (value ?? 0) + (failed[index] ?? 0)));
  const top = peak || 1;
  const width = WIDE / BINS;
  const start = history.until - windowOf(history);
  const bars = done.map((value, index) => {
    if (value === null) return null;
    const bad = failed[index] ?? 0;
    const good = Math.max(value ? 1.5 : 0, (value / top) * (HIGH - 4));
    const more = Math.max(bad ? 2 : 0, (bad / top) * (HIGH - 4));
    const at = start + ((index + 1) * windowOf(history)) / BINS;
    return h(
      "g",
      { key: index },
      h("title", null, `${clock(at)}: ${pace(value)}/s completed, ${pace(bad)}/s failed`),
      h("rect.hit", { x: index * width, y: 0, width, height: HIGH }),
      h("rect.good", { x: index * width + 1.5, y: HIGH - good, width: width - 3, height: good, rx: 1.5 }),
      more
        ? h("rect.bad", {
            x: index * width + 1.5,
            y: HIGH - good - more - 1,
            width: width - 3,
            height: more,
            rx: 1.5,
          })
        : null,
    );
  });
  return frame("Completed and failed units each second", bars, `peak ${pace(peak)}/s`, windowOf(history));
}

/** An area of how many units wait, with a line of how many run. */
export function depth(history) {
  const pending = binned(history, "pending", mean);
  const running = binned(history, "running", mean);
  const peak = Math.max(...pending.map((value) => value ?? 0), ...running.map((value) => value ?? 0));
  const shapes = [
    h("path.area", { key: "area", d: line(pending, peak || 1, true) }),
    h("path.edge", { key: "edge", d: line(pending, peak || 1, false) }),
    h("path.second", { key: "second", d: line(running, peak || 1, false) }),
  ];
  return frame("Pending and running units over time", shapes, `peak ${number(peak)}`, windowOf(history));
}

function line(values, top, isClosed) {
  const points = [];
  values.forEach((value, index) => {
    if (value !== null) points.push([((index + 0.5) * WIDE) / BINS, HIGH - 2 - (value / top) * (HIGH - 8)]);
  });
  if (!points.length) return "";
  const drawn = points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  if (!isClosed) return drawn;
  return `${drawn}L${points.at(-1)[0].toFixed(1)} ${HIGH}L${points[0][0].toFixed(1)} ${HIGH}Z`;
}

function frame(label, shapes, peak, seconds) {
  return h(
    "figure.chart",
    null,
    h(
      "svg",
      {
        viewBox: `0 0 ${WIDE} ${HIGH}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `${label}, ${peak}`,
      },
      shapes,
    ),
    h(
      "figcaption",
      null,
      h("span", null, `${seconds >= 120 ? `${seconds / 60} min` : `${seconds} s`} ago`),
      h("span.peak", null, peak),
      h("span", null, "now"),
    ),
  );
}

/** A bar that shows how much of a limit is used. */
export function meter(used, limit, label) {
  const part = limit ? Math.min(1, used / limit) : 0;
  const level = part >= 1 ? "is-full" : part >= 0.8 ? "is-high" : "";
  return h(
    "div.meter",
    {
      class: level,
      role: "meter",
      "aria-label": label,
      "aria-valuemin": 0,
      "aria-valuemax": limit,
      "aria-valuenow": Math.min(used, limit),
    },
    h("span", { style: { width: `${(part * 100).toFixed(2)}%` } }),
  );
}

/** The phases of a unit: waiting, running, waiting for a retry. */
function phases(work, now) {
  const found = [];
  let from = work.created_at;
  const add = (kind, until, title) => {
    if (until > from) found.push({ kind, from, until, title: `${title}: ${span(until - from)}` });
    from = Math.max(from, until);
  };
  for (const attempt of work.history ?? []) {
    if (attempt.at === null) continue;
    add(
      found.length ? "backoff" : "waiting",
      attempt.at,
      found.length ? "waiting to be tried again" : "waiting",
    );
    add("failed", attempt.at + (attempt.duration ?? 0), `attempt ${attempt.number}, failed`);
  }
  const isOver = ["completed", "failed", "cancelled"].includes(work.state);
  if (work.state === "running" || work.state === "completed") {
    if (work.started_at) {
      add(
        found.length ? "backoff" : "waiting",
        work.started_at,
        found.length ? "waiting to be tried again" : "waiting",
      );
      const end = work.completed_at ?? now;
      add(work.state, end, `attempt ${work.attempt}, ${work.state}`);
    }
  } else if (!isOver) {
    add(found.length ? "backoff" : "waiting", now, found.length ? "waiting to be tried again" : "waiting");
  } else if (work.completed_at && work.completed_at > from) {
    add("waiting", work.completed_at, `until it was ${work.state}`);
  }
  return found;
}

/** The phases of a unit as one bar, in proportion. */
export function timeline(work, now) {
  const found = phases(work, now);
  if (!found.length) return null;
  const start = found[0].from;
  const whole = found.at(-1).until - start || 1;
  const parts = found.map((phase, index) =>
    h("span", {
      key: index,
      class: `phase is-${phase.kind}`,
      title: phase.title,
      style: {
        left: `${((phase.from - start) / whole) * 100}%`,
        width: `${((phase.until - phase.from) / whole) * 100}%`,
      },
    }),
  );
  const kinds = [...new Set(found.map((phase) => phase.kind))];
  return h(
    "figure.timeline",
    null,
    h("div.track", { role: "img", "aria-label": found.map((phase) => phase.title).join("; ") }, parts),
    h(
      "figcaption",
      null,
      h(
        "span.legend",
        null,
        kinds.map((kind) =>
          h("span.key", { key: kind, class: `is-${kind}` }, `${WORDS[kind]} ${span(total(found, kind))}`),
        ),
      ),
      h("span", null, `${span(whole)} in all`),
    ),
  );
}

const WORDS = {
  waiting: "waiting",
  backoff: "between attempts",
  failed: "failed attempts",
  running: "running",
  completed: "running",
};

function total(found, kind) {
  return found
    .filter((phase) => phase.kind === kind)
    .reduce((sum, phase) => sum + phase.until - phase.from, 0);
}
