// The first page: the units that run, wait (and why), ended, failed.

import { isReadOnly, many } from "./actions.js";
import { depth, throughput } from "./charts.js";
import { h } from "./dom.js";
import { ago, clock, count, number, pace, short, whole } from "./format.js";
import { icon } from "./icons.js";
import { live, now } from "./live.js";
import { pausedQueues } from "./queues.js";
import { linkTo, listOf, rows } from "./rows.js";
import { brief } from "./services.js";
import { line as workerLine } from "./workers.js";

const STATES = ["running", "pending", "completed", "failed", "cancelled"];
const MOST_REASONS = 6;
const MOST_LOOKED_AT = 200;
const MOST_PAUSED = 4;

/** The page; `changed` draws it again. */
export function overview(changed) {
  const status = live.status;
  return [
    counts(status.counts),
    pausedQueues(MOST_PAUSED),
    h("div.charts", null, charts(status)),
    h(
      "div.columns",
      null,
      h("div.main", null, waiting(status, changed), running(status, changed), recent(status, changed)),
      h("div.side", null, services(status), dead(status.failures), workers(status.workers)),
    ),
  ];
}

function counts(found) {
  return h(
    "nav.counts.card",
    { "aria-label": "Units by state" },
    STATES.map((state) =>
      h(
        "a",
        {
          key: state,
          href: listOf({ state }),
          class: `count is-${state}${found[state] ? "" : " is-none"}`,
          title: `${number(found[state])} ${state}`,
        },
        h("span.label", null, icon(state), state),
        h(
          "span.value",
          { "data-count": state },
          found[state] < 1_000_000 ? number(found[state]) : short(found[state]),
        ),
      ),
    ),
  );
}

function charts(status) {
  const history = status.history;
  if (!history) return null;
  const failing = status.pace.failed;
  return [
    h(
      "section.card.chart-card",
      { key: "throughput" },
      h("h2", null, "Throughput"),
      h(
        "p.figure",
        null,
        h("strong", null, pace(status.pace.completed)),
        h("span.muted", null, "completed/s"),
        failing ? h("span.bad", null, icon("failed"), `${pace(failing)} failed/s`) : null,
      ),
      throughput(history),
    ),
    h(
      "section.card.chart-card.is-depth",
      { key: "depth" },
      h("h2", null, "Queue depth"),
      h(
        "p.figure",
        null,
        h("strong", null, number(status.counts.pending)),
        h("span.muted", null, "pending"),
        h("span.second-key", null, `${number(status.counts.running)} running`),
      ),
      depth(history),
    ),
  ];
}

function panel(title, link, note, ...body) {
  return h(
    "section.card.panel",
    { key: title, "aria-label": title },
    h(
      "header",
      null,
      h("h2", null, link ? h("a", { href: link }, title) : title),
      note ? h("span.note", null, note) : null,
    ),
    body,
  );
}

function waiting(status, changed) {
  const { rows: works, reasons, looked_at: looked } = status.waiting;
  const total = status.counts.pending;
  const note = total
    ? total > MOST_LOOKED_AT
      ? `the newest ${number(looked)} of ${number(total)}`
      : count(total, "unit")
    : "";
  return panel(
    "Waiting",
    listOf({ state: "pending" }),
    note,
    reasons.length
      ? h(
          "ul.reasons",
          { "aria-label": "Why work waits" },
          folded(reasons)
            .slice(0, MOST_REASONS)
            .map((one) => because(one, looked, status.at)),
        )
      : null,
    rows("Waiting units", works.slice(0, 8), {
      empty: "Nothing waits. What is submitted starts at once.",
      changed,
    }),
  );
}

/** The reasons for waiting. All units that wait for other units count as one reason, whatever the ids. */
function folded(reasons) {
  const others = reasons.filter((one) => one.text.startsWith("after "));
  if (others.length < 2) return reasons;
  const rest = reasons.filter((one) => !others.includes(one));
  const count = others.reduce((sum, one) => sum + one.count, 0);
  return [...rest, { text: "after other units", count, seconds: null }].sort((a, b) => b.count - a.count);
}

function because(one, looked, at) {
  const left =
    one.seconds === null || one.seconds === undefined ? null : Math.max(0, one.seconds - (now() - at));
  return h(
    "li",
    { key: one.text },
    h("span.share", { style: { width: `${Math.max(1, (one.count / Math.max(1, looked)) * 100)}%` } }),
    h("span.text", null, one.text),
    h("span.until", null, left === null ? "" : left < 0.5 ? "now" : whole(left)),
    h("span.number", null, number(one.count)),
  );
}

function running(status, changed) {
  const works = status.running;
  const total = status.counts.running;
  const note =
    total > works.length ? `${number(works.length)} of ${number(total)}` : total ? count(total, "unit") : "";
  return panel(
    "Running",
    listOf({ state: "running" }),
    note,
    rows("Running units", works.slice(0, 12), { empty: idle(status), changed }),
  );
}

function idle(status) {
  const isServed = status.workers.some((worker) => worker.serving && worker.state === "alive");
  if (status.counts.pending && !isServed && status.queue.durable)
    return "Nothing runs, and no worker serves this queue. Start one with runcue worker module:cue.";
  return "Nothing runs at the moment.";
}

function recent(status, changed) {
  return panel(
    "Recent",
    null,
    "latest first",
    rows("Recent units", status.recent.slice(0, 10), { empty: "Nothing has ended yet.", changed }),
  );
}

function services(status) {
  if (!status.services.length) return null;
  return panel(
    "Services",
    "#/services",
    count(status.services.length + (status.services_more ?? 0), "service"),
    h("ul.services", null, [...status.services].sort(busiest).slice(0, 8).map(brief)),
  );
}

const busiest = (a, b) =>
  Number(Boolean(b.blocked || b.paused)) - Number(Boolean(a.blocked || a.paused)) ||
  a.name.localeCompare(b.name);

function workers(found) {
  if (!found.length) return null;
  return panel("Workers", "#/workers", null, h("ul.workers", null, found.slice(0, 6).map(workerLine)));
}

function dead(failures) {
  const { groups, looked_at: looked } = failures;
  const note = looked ? `grouped by error` : "";
  if (!groups.length)
    return panel(
      "Dead letters",
      listOf({ state: "failed" }),
      note,
      h("div.empty", null, icon("completed"), "No dead letters."),
    );
  return panel(
    "Dead letters",
    listOf({ state: "failed" }),
    note,
    h("ul.groups", null, groups.slice(0, 8).map(group)),
  );
}

function group(one) {
  const filter = { state: "failed", task: one.task, error_group: one.error };
  const about = `Failed units of ${one.task} with this error: ${one.error}`;
  return h(
    "li.group",
    { key: `${one.task} ${one.error}` },
    h("a.error", { href: linkTo(one.sample), title: "open one of them" }, one.error || "no message"),
    h(
      "div.facts",
      null,
      h(
        "a.times",
        { href: listOf({ state: "failed", task: one.task }), title: `the failed units of ${one.task}` },
        `${number(one.count)} ×`,
      ),
      h("span.task", null, one.task),
      h("span.muted", { title: `first ${clock(one.first_at)}` }, ago(one.last_at, now())),
      isReadOnly()
        ? null
        : h(
            "span.actions",
            null,
            h(
              "button.quiet.small",
              {
                type: "button",
                "aria-label": `Retry all with this error: ${one.error}`,
                onclick: () => many("retry", filter, about),
              },
              icon("retry"),
              "Retry",
            ),
            h(
              "button.quiet.small",
              {
                type: "button",
                "aria-label": `Discard all with this error: ${one.error}`,
                onclick: () => many("purge", filter, about),
              },
              icon("discard"),
              "Discard",
            ),
          ),
    ),
  );
}
