// Workers: the processes that have the queue open.

import { h, table } from "./dom.js";
import { clock, count, number, whole } from "./format.js";
import { icon } from "./icons.js";
import { live, now } from "./live.js";

const GLYPHS = { alive: "check", unresponsive: "warning", gone: "close", unknown: "help" };

function life(worker) {
  return h("span.badge", { class: `is-${worker.state}` }, icon(GLYPHS[worker.state] ?? "help"), worker.state);
}

/** A worker in one line. */
export function line(worker) {
  return h(
    "li",
    { key: worker.id },
    life(worker),
    h("span.who", { title: worker.id }, `${worker.host}:${worker.pid}`),
    h("span.muted", null, worker.serving ? `${number(worker.running)} running` : "looks on"),
  );
}

function entry(worker) {
  const queues = worker.queues === null ? "all queues" : worker.queues.join(", ");
  const silent =
    worker.silent_for === null || worker.silent_for === undefined
      ? "–"
      : worker.silent_for < 3
        ? "just now"
        : `${whole(worker.silent_for)} ago`;
  return h(
    "tr",
    { key: worker.id },
    h("td", { "data-label": "State" }, life(worker)),
    h(
      "td",
      { "data-label": "Process" },
      h("strong", null, `${worker.host}:${worker.pid}`),
      h("span.id", null, worker.id),
    ),
    h(
      "td",
      { "data-label": "Serves" },
      worker.serving ? queues : h("span.muted", null, "nothing: it only submits or looks on"),
    ),
    h("td.number", { "data-label": "Running" }, number(worker.running)),
    h(
      "td",
      { "data-label": "Started", title: clock(worker.started_at) },
      `${whole(now() - worker.started_at)} ago`,
    ),
    h("td", { "data-label": "Last sign" }, silent),
  );
}

/** The page of all workers. */
export function workers() {
  const found = live.status.workers;
  const head = h(
    "div.page-head",
    null,
    h("h1", null, "Workers"),
    h("p.muted", null, found.length ? count(found.length, "process").replace(/processs$/, "processes") : ""),
  );
  if (!found.length) {
    const advice = live.status.queue.durable
      ? ["Nobody has this queue open. Start a worker with ", h("code", null, "runcue worker module:cue"), "."]
      : ["A queue in memory is served by the program that made it, and by no other."];
    return [head, h("div.card.empty", null, h("p", null, advice))];
  }
  return [
    head,
    h(
      "div.card.table-card",
      null,
      table(["State", "Process", "Serves", "Running", "Started", "Last sign"], found.map(entry)),
    ),
  ];
}
