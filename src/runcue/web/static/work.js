// The page of one unit: its fields, why it has its state, its phases, its output.

import { buttons } from "./actions.js";
import { at, get } from "./api.js";
import { timeline } from "./charts.js";
import { h, table } from "./dom.js";
import { ago, bytes, clock, number, span, whole } from "./format.js";
import { graph } from "./graph.js";
import { badge, icon } from "./icons.js";
import { live, now, refresh } from "./live.js";
import { left, listOf, linkTo } from "./rows.js";
import { say } from "./talk.js";

const FRESH = 1000;
const FRESH_AT_REST = 5000;
const SHARE = 5;
const TAIL = 65536;
const MOST_KEPT = 1_000_000;

const shown = { id: null, found: null, error: "", isMissing: false, isLoading: false, at: 0, took: 0 };
const output = {
  stream: "stdout",
  attempt: null, // the latest
  latest: 0,
  text: "",
  start: 0,
  end: 0,
  size: 0,
  isFollowed: true,
  isLoading: false,
  error: "",
};

async function load(id, changed) {
  if (shown.id !== id) {
    Object.assign(shown, { id, found: null, error: "", isMissing: false });
    choose("stdout", null);
    output.latest = 0;
  }
  shown.isLoading = true;
  shown.at = Date.now();
  try {
    const found = await get(at("works", id));
    if (shown.id !== id) return;
    Object.assign(shown, { found, error: "" });
    const latest = Math.max(0, ...found.output.map((one) => one.attempt));
    if (latest !== output.latest && output.attempt === null) choose(output.stream, null);
    output.latest = latest;
    if (latest) await tail(id);
  } catch (error) {
    if (shown.id === id) Object.assign(shown, { error: error.message, isMissing: error.status === 404 });
  }
  shown.isLoading = false;
  shown.took = Date.now() - shown.at;
  changed();
}

function choose(stream, attempt) {
  Object.assign(output, { stream, attempt, text: "", start: 0, end: 0, size: 0, error: "" });
}

async function tail(id) {
  const asked = { stream: output.stream, attempt: output.attempt ?? output.latest };
  const from = output.end;
  const query = from ? { ...asked, start: from } : { ...asked, tail: TAIL };
  const answer = await get(`${at("works", id)}/output`, query);
  const isSame = asked.stream === output.stream && asked.attempt === (output.attempt ?? output.latest);
  const isWanted = isSame && from === output.end; // another answer may have brought the same before
  if (shown.id !== id || !isWanted) return;
  output.text = (output.text + answer.text).slice(-MOST_KEPT);
  if (!output.end) output.start = answer.start;
  output.end = answer.end;
  output.size = answer.size;
}

const isMoving = (work) => work.state === "running" || work.state === "pending";

/** The page of a unit. */
export function work(id, changed) {
  const isOther = shown.id !== id;
  const pause = shown.found && !isMoving(shown.found.work) ? FRESH_AT_REST : FRESH;
  const fresh = Math.max(pause, SHARE * shown.took);
  const isOld = !live.isFrozen && !shown.isMissing && Date.now() - shown.at > fresh;
  if (isOther || (isOld && !shown.isLoading)) load(id, changed);
  const crumbs = h("p.crumbs", null, h("a", { href: "#/works" }, icon("back"), "Work"));
  if (!shown.found) {
    const text = shown.error || "Loading …";
    return [
      crumbs,
      h("div.card.empty", null, h("h2", null, shown.error ? "Not here" : ""), h("p", null, text)),
    ];
  }
  const { work: one, graph: net, output: streams } = shown.found;
  const again = async (name) => {
    if (name === "purge") location.hash = "#/works?state=failed";
    await refresh();
    if (name !== "purge") await load(id, changed);
  };
  return [
    crumbs,
    h(
      "div.work-head",
      null,
      h(
        "div.title",
        null,
        h("h1", null, one.task, one.target ? h("span.target", null, one.target) : null),
        h(
          "p.sub",
          null,
          badge(one.skipped ? "skipped" : one.state),
          h("code.work-id", null, one.id),
          h(
            "button.quiet.bare",
            {
              type: "button",
              "aria-label": "Copy the id",
              title: "Copy the id",
              onclick: () => copy(one.id),
            },
            icon("copy"),
          ),
        ),
      ),
      h("div.actions", null, buttons(one, again)),
    ),
    sentence(one),
    h(
      "section.card.pad",
      { key: "time", "aria-label": "Timeline" },
      h("h2", null, "Timeline"),
      timeline(one, now()),
    ),
    h("section.card.pad", { key: "facts", "aria-label": "Facts" }, h("h2", null, "Facts"), facts(one)),
    one.history.length ? attempts(one) : null,
    graph(net, one.id)
      ? h(
          "section.card.pad",
          { key: "graph", "aria-label": "Dependencies" },
          h("h2", null, "Dependencies"),
          graph(net, one.id),
        )
      : null,
    one.traceback ? block("Traceback", one.traceback) : null,
    streams.length ? printed(id, streams, changed) : null,
    h(
      "div.twins",
      { key: "values" },
      block("Params", pretty(one.params)),
      block("Result", one.result === null || one.result === undefined ? "none" : pretty(one.result)),
    ),
  ];
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied the id.");
  } catch {
    say("The browser does not let this page copy: mark the id instead.", true);
  }
}

const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** Why the unit has its state, as a sentence. */
function sentence(one) {
  const why = one.why;
  if (one.state === "failed")
    return h(
      "p.callout.is-failed",
      { key: "why" },
      icon("failed"),
      h(
        "span",
        null,
        `Failed after ${one.failures === 1 ? "one attempt" : `${number(one.failures)} attempts`}: `,
        h("span.error", null, one.error ?? "no message"),
      ),
    );
  if (one.state === "cancelled")
    return h(
      "p.callout.is-cancelled",
      { key: "why" },
      icon("cancelled"),
      h("span", null, one.error ? `Cancelled: ${one.error}` : "Cancelled."),
    );
  if (one.state !== "pending" || !why) return null;
  const seconds = left(why);
  const until = seconds === null ? "" : seconds < 0.5 ? ", until now" : `, for another ${whole(seconds)}`;
  const ahead = why.ahead
    ? ` ${why.ahead === 1 ? "One unit is" : `${number(why.ahead)} units are`} ahead of it.`
    : "";
  const needs = why.waits_for.map((id, index) => [
    index ? ", " : "",
    h("a", { key: id, href: linkTo(id) }, id),
  ]);
  return h(
    "p.callout.is-pending",
    { key: "why" },
    icon("pending"),
    h(
      "span",
      null,
      "It waits ",
      h("strong", null, because(why)),
      `${until}.${ahead}`,
      needs.length ? [" It needs ", needs, "."] : null,
    ),
  );
}

/** The reason after "It waits": in plain words, or in those of the server. */
function because(why) {
  const details = why.details ? `: ${why.details}` : "";
  switch (why.reason) {
    case "rate":
      return `for the rate of ${why.service}`;
    case "concurrency":
      return `for a slot of ${why.service}${details}`;
    case "circuit":
      return `because the circuit of ${why.service} is ${why.details || "open"}`;
    case "dependency":
      return `for other units${details}`;
    case "retry":
      return `to be tried again${details}`;
    case "scheduled":
      return "for its time";
    case "not_started":
      return "because no worker serves this queue";
    case "order":
      return `for its turn${details}`;
    case "inbox":
      return "for the next turn: it was accepted";
    case "ready":
      return "for the next turn";
    case "paused":
      return why.details.includes(" is ")
        ? `because ${why.details}`
        : `because ${why.details || why.service} is paused`;
    case "threads":
    case "max_running":
      return `for a free slot${details}`;
    default:
      return `because it is ${why.text}${why.text.includes(why.details) ? "" : details}`;
  }
}

function howFar(progress) {
  const share = progress.fraction === null ? null : `${Math.round(progress.fraction * 100)} %`;
  return [share, progress.text].filter(Boolean).join(", ");
}

function facts(one) {
  const fact = (name, value, title) =>
    value === null || value === undefined || value === ""
      ? null
      : h("div", { key: name, title }, h("dt", null, name), h("dd", null, value));
  const moment = (name, time) =>
    fact(
      name,
      time
        ? [clock(time), h("small", null, time > now() ? `in ${whole(time - now())}` : ago(time, now()))]
        : null,
    );
  return h(
    "dl.facts",
    null,
    fact("task", h("a", { href: listOf({ task: one.task }) }, one.task)),
    fact("queue", h("a", { href: listOf({ queue: one.queue }) }, one.queue)),
    fact(
      "services",
      one.services.length
        ? one.services.map((name, index) => [
            index ? ", " : "",
            h("a", { key: name, href: listOf({ service: name }) }, name),
          ])
        : null,
    ),
    fact("priority", one.priority ? number(one.priority) : null),
    fact("attempt", number(one.attempt)),
    moment("submitted", one.created_at),
    moment("runs at", one.run_at),
    moment("started", one.started_at),
    moment("ended", one.completed_at),
    moment("retry due", one.state === "pending" ? one.next_retry_at : null),
    fact("took", one.duration === null || one.duration === undefined ? null : span(one.duration)),
    moment("expires", one.state === "pending" ? one.expires_at : null),
    fact("progress", one.progress ? howFar(one.progress) : null),
    fact("timeout", one.timeout ? span(one.timeout) : null),
    fact("retry", one.retry ? (typeof one.retry === "string" ? one.retry : JSON.stringify(one.retry)) : null),
    fact("label", one.title || null),
    fact("group", one.group ? h("a", { href: listOf({ group: one.group }) }, one.group) : null),
    fact("tags", tagged(one.tags)),
    fact("key", one.idempotency_key ? h("code", null, one.idempotency_key) : null),
    fact("worker", one.worker ? h("code", null, one.worker) : null),
  );
}

/** Tags, each with a link to the units that have it. */
function tagged(tags) {
  const all = Object.entries(tags).map(([name, value]) => `${name}=${value}`);
  return all.length
    ? all.map((tag, index) => [index ? ", " : "", h("a", { key: tag, href: listOf({ tag }) }, tag)])
    : null;
}

function attempts(one) {
  const entry = (attempt) =>
    h(
      "tr",
      { key: attempt.number },
      h("td.number", { "data-label": "Attempt" }, number(attempt.number)),
      h("td", { "data-label": "Started" }, attempt.at ? clock(attempt.at) : "never"),
      h("td.number", { "data-label": "Took" }, span(attempt.duration)),
      h("td", { "data-label": "Error" }, h("span.error", null, attempt.error)),
      h("td", { "data-label": "Worker" }, attempt.worker ? h("code", null, attempt.worker) : "–"),
    );
  return h(
    "section.card.table-card",
    { key: "attempts", "aria-label": "Failed attempts" },
    h("h2", null, "Failed attempts"),
    table(["Attempt", "Started", "Took", "Error", "Worker"], one.history.map(entry)),
  );
}

function block(title, text) {
  return h(
    "section.card.pad",
    { key: title, "aria-label": title },
    h("h2", null, title),
    h("pre", { tabindex: 0 }, text),
  );
}

function printed(id, streams, changed) {
  const current = output.attempt ?? output.latest;
  const pick = (stream, attempt) => async () => {
    choose(stream, attempt === output.latest ? null : attempt); // who looks at the latest goes on to the next
    changed();
    try {
      await tail(id);
    } catch (error) {
      output.error = error.message;
    }
    changed();
  };
  const follow = (node) => {
    if (output.isFollowed) requestAnimationFrame(() => node.scrollTo(0, node.scrollHeight));
  };
  return h(
    "section.card.pad.output",
    { key: "output", "aria-label": "Output" },
    h(
      "header",
      null,
      h("h2", null, "Output"),
      h(
        "span.tabs.small",
        null,
        streams.map((one) =>
          h(
            "button.tab",
            {
              key: `${one.attempt} ${one.stream}`,
              type: "button",
              "aria-pressed": one.stream === output.stream && one.attempt === current ? "true" : "false",
              onclick: pick(one.stream, one.attempt),
            },
            streams.length > 2 ? `${one.stream} #${one.attempt}` : one.stream,
            h("span.number", null, bytes(one.size)),
          ),
        ),
      ),
      h(
        "label.follow",
        null,
        h("input", {
          type: "checkbox",
          checked: output.isFollowed,
          onchange: (event) => ((output.isFollowed = event.target.checked), changed()),
        }),
        "follow",
      ),
    ),
    output.error ? h("p.bad", { role: "alert" }, output.error) : null,
    output.start
      ? h("p.muted", null, `The last ${bytes(output.end - output.start)} of ${bytes(output.size)}.`)
      : null,
    h(
      "pre.log",
      {
        tabindex: 0,
        key: `${output.stream} ${current} ${output.isFollowed ? output.text.length : "still"}`,
        onmount: follow,
      },
      output.text || "nothing printed",
    ),
  );
}
