// Queues: which are paused, and the buttons that pause and resume them.

import { hold, isReadOnly } from "./actions.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { listOf } from "./rows.js";

const MOST = 100;
const seen = new Set(["default"]);

/** The button that holds a queue back, or lets it go on; quiet where it stands among others. */
export function pauser(name, isQuiet = false) {
  if (isReadOnly()) return null;
  const isPaused = live.status.paused.includes(name);
  const verb = isPaused ? "Resume" : "Pause";
  return h(
    "button.small",
    {
      key: `queue ${name}`,
      type: "button",
      class: isQuiet ? "quiet" : undefined,
      "aria-label": `${verb} queue ${name}`,
      onclick: () => hold("queues", name, !isPaused),
    },
    icon(isPaused ? "play" : "pause"),
    isQuiet ? `${verb} queue` : verb,
  );
}

/** The paused queues, at most so many. */
export function pausedQueues(most) {
  const paused = live.status.paused;
  if (!paused.length) return null;
  const rest = paused.length - most;
  return h(
    "ul.paused-queues",
    { key: "paused", "aria-label": "Paused queues" },
    paused
      .slice(0, most)
      .map((name) =>
        h(
          "li",
          { key: `queue ${name}` },
          icon("pause"),
          h(
            "span",
            null,
            "Queue ",
            h("a", { href: listOf({ queue: name }) }, name),
            " is paused: nothing of it starts.",
          ),
          pauser(name),
        ),
      ),
    rest > 0
      ? h("li", { key: "rest" }, icon("pause"), h("a", { href: "#/services" }, `and ${number(rest)} more`))
      : null,
  );
}

/** The queues that this page has seen and that are not paused. */
export function queues() {
  if (isReadOnly()) return null;
  const { paused, services, waiting, running, recent, workers } = live.status;
  for (const work of [...running, ...waiting.rows, ...recent]) seen.add(work.queue);
  for (const worker of workers) for (const name of worker.queues ?? []) seen.add(name);
  const taken = new Set([...paused, ...services.map((service) => service.name)]);
  const names = [...seen].filter((name) => !taken.has(name)).sort();
  if (!names.length) return null;
  return h(
    "section.card.pad.queues",
    { key: "queues", "aria-label": "Queues" },
    h("h2", null, "Queues"),
    h("p.muted", null, "What a paused queue holds does not start; what runs goes on."),
    h(
      "ul",
      null,
      names
        .slice(0, MOST)
        .map((name) =>
          h(
            "li",
            { key: `queue ${name}` },
            h("a.name", { href: listOf({ queue: name }) }, name),
            pauser(name),
          ),
        ),
    ),
  );
}
