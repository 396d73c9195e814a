// Schedules: what submits units at moments, and the buttons that run, pause and resume it.

import { isReadOnly } from "./actions.js";
import { at, get, post } from "./api.js";
import { h, table } from "./dom.js";
import { ago, clock, count, number, whole } from "./format.js";
import { badge, icon } from "./icons.js";
import { live, now } from "./live.js";
import { linkTo, listOf } from "./rows.js";
import { attempt } from "./talk.js";

const FRESH = 2000;
const SHARE = 20;
const HEADS = ["Schedule", "When", "Next", "Last", "Runs"];

const shown = { schedules: null, more: 0, error: "", isLoading: false, turn: 0, at: 0, took: 0 };

/** Ask for the list, and draw the answer, unless it was asked for again meanwhile. */
async function load(changed) {
  const turn = ++shown.turn;
  const began = Date.now();
  Object.assign(shown, { isLoading: true, at: began });
  let found;
  try {
    const answer = await get("schedules");
    found = { schedules: answer.schedules, more: answer.schedules_more, error: "" };
  } catch (error) {
    found = { error: error.message };
  }
  if (turn !== shown.turn) return;
  Object.assign(shown, found, { isLoading: false, took: Date.now() - began });
  changed();
}

/** Run an action on a schedule, and show how all stand then. */
async function act(name, verb, done, changed) {
  await attempt(() => post(`${at("schedules", name)}/${verb}`), done);
  await load(changed);
}

function buttons(one, changed) {
  const verb = one.paused ? "resume" : "pause";
  const word = one.paused ? "Resume" : "Pause";
  return h(
    "div.acts",
    null,
    h(
      "button.small",
      {
        type: "button",
        "aria-label": `Run ${one.name} now`,
        onclick: () => act(one.name, "run", ({ id }) => `Submitted ${id}.`, changed),
      },
      icon("bolt"),
      "Run now",
    ),
    h(
      "button.small",
      {
        type: "button",
        "aria-label": `${word} ${one.name}`,
        onclick: () =>
          act(one.name, verb, ({ paused }) => `${paused ? "Paused" : "Resumed"} ${one.name}.`, changed),
      },
      icon(one.paused ? "play" : "pause"),
      word,
    ),
  );
}

/** What differs from what most schedules do: other rules for slots, a first and a last moment. */
function rules(one) {
  const found = [
    one.overlap === "skip" ? null : `overlap: ${one.overlap}`,
    one.missed === "latest" ? null : `missed: ${one.missed}`,
    one.jitter ? `jitter up to ${whole(one.jitter)}` : null,
    one.start === null ? null : `from ${clock(one.start)}`,
    one.until === null ? null : `until ${clock(one.until)}`,
  ];
  return found.filter(Boolean).join(" · ");
}

function next(one) {
  if (one.paused) return h("span.badge", null, icon("pause"), "paused");
  if (one.problem) return h("span.bad", null, icon("warning"), " ", one.problem);
  if (one.next_at === null) return h("span.muted", null, "over");
  const left = one.next_at - now();
  return [h("strong", null, left < 0.5 ? "now" : `in ${whole(left)}`), h("span.id", null, clock(one.next_at))];
}

function last(one) {
  if (one.last_at === null) return h("span.muted", null, "–");
  return [
    one.last_state === null
      ? h("span.muted", null, "no longer kept")
      : h("a", { href: linkTo(one.last_id) }, badge(one.last_state)),
    h("span.id", { title: clock(one.last_at) }, ago(one.last_at, now())),
  ];
}

function entry(one, changed) {
  const what = [one.task === one.name ? "" : one.task, one.title].filter(Boolean).join(" ");
  return h(
    "tr",
    { key: one.name, "data-schedule": one.name },
    h(
      "td",
      { "data-label": HEADS[0] },
      h("strong", null, one.name),
      h("span.id", null, what),
      one.source ? h("span.id", null, `declared by ${one.source}`) : null,
    ),
    h("td", { "data-label": HEADS[1] }, h("code", null, one.when), h("span.id", null, rules(one))),
    h("td", { "data-label": HEADS[2] }, next(one)),
    h("td", { "data-label": HEADS[3] }, last(one)),
    h(
      "td.number",
      { "data-label": HEADS[4] },
      h("a", { href: listOf({ tag: `schedule=${one.name}` }) }, number(one.runs)),
      one.skipped ? h("span.id", null, `${number(one.skipped)} skipped`) : null,
    ),
    isReadOnly() ? null : h("td", null, buttons(one, changed)),
  );
}

function list(changed) {
  if (!shown.schedules) return h("div.card.empty", null, h("p", null, shown.error || "Loading …"));
  if (!shown.schedules.length)
    return h(
      "div.card.empty",
      null,
      h(
        "p",
        null,
        "Nothing comes by itself. A program adds schedules with ",
        h("code", null, "@cue.cron"),
        ", ",
        h("code", null, "@cue.every"),
        " or ",
        h("code", null, "await cue.schedule(…)"),
        ".",
      ),
    );
  const heads = isReadOnly() ? HEADS : [...HEADS, ""];
  return h(
    "div.card.table-card.schedules",
    null,
    table(
      heads,
      shown.schedules.map((one) => entry(one, changed)),
    ),
    shown.more ? h("p.more", null, `and ${number(shown.more)} more: runcue schedules`) : null,
  );
}

/** The page of all schedules. */
export function schedules(changed) {
  const fresh = Math.max(FRESH, SHARE * shown.took);
  const isOld = !live.isFrozen && Date.now() - shown.at > fresh;
  if (!shown.at || (isOld && !shown.isLoading)) load(changed);
  const amount = shown.schedules ? shown.schedules.length + shown.more : 0;
  return [
    h(
      "div.page-head",
      null,
      h("h1", null, "Schedules"),
      h("p.muted", null, amount ? count(amount, "schedule") : ""),
    ),
    shown.error && shown.schedules ? h("p.bad", { key: "error", role: "status" }, shown.error) : null,
    list(changed),
  ];
}
