// Actions on units: on one, on a group, on all that match a filter.
//
// An action on several units first asks the server how many there are, and shows some of them.

import { at, post } from "./api.js";
import { h } from "./dom.js";
import { count, number } from "./format.js";
import { icon } from "./icons.js";
import { live, refresh } from "./live.js";
import { attempt, confirm, say } from "./talk.js";

export const VERBS = {
  retry: { word: "Retry", done: "Retried", icon: "retry", states: ["failed", "cancelled"] },
  cancel: { word: "Cancel", done: "Cancelled", icon: "cancelled", states: ["pending", "running"] },
  purge: { word: "Discard", done: "Discarded", icon: "discard", states: ["failed"], isBad: true },
};

/** Whether the dashboard is read-only. */
export function isReadOnly() {
  return Boolean(live.status?.queue.read_only);
}

/** Buttons for the actions on one unit. */
export function buttons(work, changed) {
  if (isReadOnly()) return h("span.note", null, "read-only");
  return Object.entries(VERBS)
    .filter(([, verb]) => verb.states.includes(work.state))
    .map(([name, verb]) =>
      h(
        "button",
        {
          key: name,
          type: "button",
          class: verb.isBad ? "is-bad" : undefined,
          onclick: () => one(name, work, changed),
        },
        icon(verb.icon),
        verb.word,
      ),
    );
}

/** Run an action on one unit; discarding and cancelling ask for confirmation. */
export function one(name, work, changed) {
  const verb = VERBS[name];
  const act = async () => {
    await attempt(
      () => post(`${at("works", work.id)}/${name}`, { cascade: false }),
      ({ changed: isChanged }) =>
        isChanged
          ? `${verb.done} ${work.id}.`
          : `${work.id} is no longer ${verb.states.join(" or ")}: nothing changed.`,
    );
    changed(name);
  };
  if (name === "retry") return act();
  const loss =
    name === "purge"
      ? "It is deleted without a trace."
      : "It will not run, and units that depend on it fail.";
  return confirm({
    title: `${verb.word} this unit?`,
    body: [
      h("p", null, h("strong", null, work.task), " ", h("code", null, work.id)),
      h("p.muted", null, loss),
    ],
    yes: verb.word,
    isBad: true,
    act,
  });
}

/** Run an action on all units that match a filter, after showing how many and which. */
export async function many(name, filter, about, changed = () => {}) {
  const verb = VERBS[name];
  let found;
  try {
    found = await post(`works/${name}`, { filter, dry_run: true });
  } catch (error) {
    say(error.message, true);
    return;
  }
  if (!found.count) {
    say(`Nothing to ${verb.word.toLowerCase()}: no unit of this selection is ${verb.states.join(" or ")}.`);
    return;
  }
  const total = found.more ? `the first ${number(found.count)} units` : count(found.count, "unit");
  confirm({
    title: `${verb.word} ${total}?`,
    body: [
      h("p", null, about),
      h(
        "ul.sample",
        null,
        found.sample.map((id) => h("li", { key: id }, h("code", null, id))),
      ),
      found.count > found.sample.length
        ? h("p.muted", null, `and ${number(found.count - found.sample.length)} more`)
        : null,
      found.more
        ? h("p", null, `More match than are done at a time: these ${number(found.count)} are, the rest remains.`)
        : null,
      name === "purge" ? h("p.bad", null, "They are deleted without a trace.") : null,
    ],
    yes: `${verb.word} ${total}`,
    isBad: name !== "retry",
    act: async () => {
      await attempt(
        () => post(`works/${name}`, { filter }),
        (answer) =>
          `${verb.done} ${number(answer.changed)}${answer.skipped ? `, skipped ${number(answer.skipped)}` : ""}.` +
          rest(answer.left, found.more),
      );
      await refresh();
      changed();
    },
  });
}

/** How many units an action left for the next one, in words; the server may not know the number. */
function rest(left, isMore) {
  if (left) return ` ${number(left)} ${left === 1 ? "remains" : "remain"}: do it again to go on.`;
  return isMore && left !== 0 ? " Others remain: do it again to go on." : "";
}

/** Pause or resume a service or a queue. */
export async function hold(kind, name, isPaused) {
  await attempt(
    () => post(`${at(kind, name)}/${isPaused ? "pause" : "resume"}`),
    (answer) => `${answer.paused ? "Paused" : "Resumed"} ${name}.`,
  );
  await refresh();
}
