// Lists of units. While the pointer is on a list, no row in it moves.

import { h } from "./dom.js";
import { ago, clock, span, whole } from "./format.js";
import { badge, icon } from "./icons.js";
import { now } from "./live.js";

const held = new Map();

/** The address of a unit's page. */
export function linkTo(id) {
  return `#/works/${encodeURIComponent(id)}`;
}

/** The address of a list. */
export function listOf(filter) {
  const given = Object.entries(filter).filter(([, value]) => value);
  return given.length ? `#/works?${new URLSearchParams(given)}` : "#/works";
}

/** The rows in the order that they had when the pointer came; rows that left since stay, greyed. */
function calm(name, rows) {
  const before = held.get(name);
  if (!before?.isHeld) {
    held.set(name, { isHeld: false, rows });
    return { rows, isHeld: false, fresh: 0 };
  }
  const latest = new Map(rows.map((row) => [row.id, row]));
  const kept = before.rows.map((row) => latest.get(row.id) ?? { ...row, isGone: true });
  const known = new Set(before.rows.map((row) => row.id));
  return { rows: kept, isHeld: true, fresh: rows.filter((row) => !known.has(row.id)).length };
}

/** The handlers that keep a list still while the pointer is on it. */
function holding(name, changed) {
  const hold = (isHeld) => () => {
    const found = held.get(name);
    if (found && found.isHeld !== isHeld) {
      found.isHeld = isHeld;
      changed();
    }
  };
  return { onpointerenter: hold(true), onpointerleave: hold(false) };
}

/** Seconds until a unit's reason for waiting ends; null when that is unknown. */
export function left(why) {
  if (!why || why.until === null || why.until === undefined) return null;
  return Math.max(0, why.until - now());
}

/** Why a unit waits, with the time that is left. */
export function reason(why) {
  const seconds = left(why);
  return h(
    "span.why",
    { title: why.details || undefined },
    why.text,
    seconds === null ? null : h("span.until", null, seconds < 0.5 ? "now" : whole(seconds)),
  );
}

function middle(row) {
  if (row.state === "pending" && row.why) return reason(row.why);
  if (row.state === "pending" && row.error) return h("span.bad", { title: row.error }, row.error);
  if (row.state === "failed" || row.state === "cancelled")
    return h("span.bad", { title: row.error ?? "" }, row.error ?? "");
  if (row.skipped) return h("span.muted", null, "skipped: its output is valid");
  return h("span.muted", null, row.services.join(", "));
}

function times(row) {
  if (row.state === "running") return [span1(now() - row.started_at), "running for"];
  if (row.state === "pending") return [whole(now() - row.created_at), "waiting for"];
  return [row.duration === null || row.duration === undefined ? "–" : span(row.duration), "took"];
}

const span1 = (seconds) => (seconds < 10 ? span(Math.max(0, seconds)) : whole(seconds));

/** One unit as a row that links to its page. */
export function row(work) {
  const [time, meaning] = times(work);
  const word = work.skipped ? "skipped" : work.state;
  const ended =
    work.completed_at === null || work.completed_at === undefined ? "" : ago(work.completed_at, now());
  return h(
    "li",
    { key: work.id, class: work.isGone ? "is-gone" : undefined },
    h(
      "a.row",
      { href: linkTo(work.id), "data-row": work.id },
      h("span.state", null, badge(work.skipped ? "skipped" : work.state, word)),
      h(
        "span.what",
        null,
        h("strong", null, work.task),
        work.title ? h("span.title", { title: work.title }, work.title) : null,
        work.target ? h("span.target", null, work.target) : null,
        h("span.id", null, work.id),
      ),
      h("span.middle", null, middle(work)),
      h("span.tries", { title: "attempt" }, work.attempt > 1 ? `#${work.attempt}` : ""),
      h(
        "span.time",
        { title: `${meaning}; submitted ${clock(work.created_at)}` },
        time,
        ended ? h("small", null, ended) : null,
      ),
    ),
  );
}

/** A list of units, or a sentence when there are none. */
export function rows(name, works, { empty, changed, isStill = false }) {
  if (!works.length && !held.get(name)?.isHeld) return h("div.empty", null, empty);
  const shown = isStill ? { rows: works, isHeld: false, fresh: 0 } : calm(name, works);
  return h(
    "div.list",
    isStill ? null : holding(name, changed),
    h("ul.rows", { "aria-label": name }, shown.rows.map(row)),
    shown.isHeld && shown.fresh
      ? h(
          "p.held",
          { role: "status" },
          icon("pause"),
          `holding still while you point here · ${shown.fresh} new`,
        )
      : null,
  );
}
