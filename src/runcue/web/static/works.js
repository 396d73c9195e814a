// The list of units: filter, search, pages, and actions on all units that match.

import { isReadOnly, many, VERBS } from "./actions.js";
import { get } from "./api.js";
import { h } from "./dom.js";
import { count, number } from "./format.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { pauser } from "./queues.js";
import { listOf, rows } from "./rows.js";

const PAGE = 50;
const MOST = 500;
const STATES = ["pending", "running", "completed", "failed", "cancelled"];
const NAMES = ["state", "task", "queue", "service", "group", "tag", "search"];
const PATIENCE = 250;
const FRESH = 2000;
const SHARE = 20;

const shown = {
  key: null,
  works: [],
  next: null,
  group: null,
  pages: 1,
  error: "",
  isLoading: false,
  isExtending: false,
  turn: 0,
  at: 0,
  took: 0,
};
let timer = 0;

/** The filter in an address. */
function filterOf(query) {
  return Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]).filter(([, value]) => value));
}

/** The newest units, page after page, up to so many or to the end of the list. */
async function newest(filter, most) {
  let works = [];
  let next = null;
  let group = null;
  do {
    const limit = Math.min(MOST, most - works.length);
    const answer = await get("works", { ...filter, before: next, limit });
    works = [...works, ...answer.works];
    next = answer.next;
    group = answer.group;
  } while (next && works.length < most);
  return { works, next, group };
}

/** Ask for a list, and keep the answer unless the page asked for another list meanwhile. */
async function load(ask, keep, changed) {
  const turn = ++shown.turn;
  const began = Date.now();
  Object.assign(shown, { isLoading: true, at: began });
  let found;
  try {
    found = { ...keep(await ask()), error: "" };
  } catch (error) {
    found = { error: error.message };
  }
  if (turn !== shown.turn) return;
  Object.assign(shown, found, { isLoading: false, isExtending: false, took: Date.now() - began });
  changed();
}

/** Load all pages again that are shown. */
function again(filter, changed) {
  const key = JSON.stringify(filter);
  if (shown.key !== key) Object.assign(shown, { key, works: [], next: null, group: null, pages: 1, error: "" });
  const most = PAGE * shown.pages;
  load(
    () => newest(filter, most),
    (answer) => answer,
    changed,
  );
}

/** Load one more page. */
function further(filter, changed) {
  const before = shown.next;
  shown.isExtending = true;
  load(
    () => get("works", { ...filter, before, limit: PAGE }),
    (answer) => ({
      works: [...shown.works, ...answer.works],
      next: answer.next,
      pages: shown.pages + 1,
    }),
    changed,
  );
  changed();
}

/** Have the next drawing ask the server again. */
export function stale() {
  shown.at = 0;
}

/** The page; `query` is that of its address. */
export function works(query, changed) {
  const filter = filterOf(query);
  const isOther = shown.key !== JSON.stringify(filter);
  const fresh = Math.max(FRESH, SHARE * shown.took); // a search through a long list is not repeated all the time
  const isOld = !live.isFrozen && Date.now() - shown.at > fresh;
  if (isOther || (isOld && !shown.isLoading)) again(filter, changed);
  return [
    h(
      "div.page-head",
      null,
      h("h1", null, "Work"),
      h(
        "p.muted",
        null,
        live.status ? `${number(Object.values(live.status.counts).reduce((a, b) => a + b, 0))} in all` : "",
      ),
    ),
    states(filter),
    h(
      "div.filters",
      null,
      search(filter),
      NAMES.slice(1, 6).map((name) => choice(name, filter)),
    ),
    filter.group && shown.group?.name === filter.group ? progress(shown.group) : null,
    shown.error ? h("p.bad", { role: "alert" }, shown.error) : null,
    h(
      "section.card.panel",
      { "aria-label": "Work" },
      h(
        "header",
        null,
        h("span.note", null, summary()),
        h("span.actions", null, filter.queue ? pauser(filter.queue, true) : null, bulk(filter, changed)),
      ),
      shown.isLoading && !shown.works.length
        ? h("div.empty", null, "Loading …")
        : rows("Units", shown.works, { empty: advice(filter), changed }),
      shown.next
        ? h(
            "div.more",
            null,
            h(
              "button",
              { type: "button", disabled: shown.isExtending, onclick: () => further(filter, changed) },
              shown.isExtending ? "Loading …" : "Show older",
            ),
          )
        : null,
    ),
  ];
}

/** How far a group is. */
function progress(group) {
  return h(
    "div.group-progress",
    { role: "group", "aria-label": `Group ${group.name}` },
    h("strong", null, group.name),
    h("progress", { max: 1, value: group.fraction, "aria-label": "ended" }),
    h("span.muted", null, group.text),
  );
}

function summary() {
  if (!shown.works.length) return "";
  return shown.next ? `the latest ${number(shown.works.length)}` : count(shown.works.length, "unit");
}

function advice(filter) {
  if (!Object.keys(filter).length)
    return ["This queue is empty. ", h("code", null, 'await cue.submit("task")'), " puts something into it."];
  return ["Nothing matches. ", h("a", { href: "#/works" }, "Show everything"), "."];
}

function states(filter) {
  const counts = live.status?.counts ?? {};
  const tab = (state, word) =>
    h(
      "a.tab",
      {
        key: word,
        href: listOf({ ...filter, state }),
        "aria-current": (filter.state ?? "") === state ? "page" : undefined,
        class: state ? `is-${state}` : undefined,
      },
      state ? icon(state) : null,
      word,
      state ? h("span.number", null, number(counts[state])) : null,
    );
  return h(
    "nav.tabs",
    { "aria-label": "State" },
    tab("", "all"),
    STATES.map((state) => tab(state, state)),
  );
}

function go(filter) {
  const address = listOf(filter);
  if (location.hash !== address) history.replaceState(null, "", address);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

function search(filter) {
  return h(
    "label.search",
    null,
    icon("search"),
    h("input", {
      id: "search",
      type: "search",
      value: filter.search ?? "",
      placeholder: "Search id, key, label, params, error",
      "aria-label": "Search",
      autocomplete: "off",
      spellcheck: "false",
      oninput: (event) => {
        clearTimeout(timer);
        const text = event.target.value;
        timer = setTimeout(() => go({ ...filter, search: text }), PATIENCE);
      },
    }),
    h("kbd", null, "/"),
  );
}

function choice(name, filter) {
  return h(
    "label.choice",
    { key: name },
    h("span", null, name),
    h("input", {
      value: filter[name] ?? "",
      placeholder: "any",
      list: name === "service" ? "services" : undefined,
      "aria-label": name,
      autocomplete: "off",
      spellcheck: "false",
      onchange: (event) => go({ ...filter, [name]: event.target.value.trim() }),
    }),
    name === "service"
      ? h(
          "datalist",
          { id: "services" },
          (live.status?.services ?? []).map((service) =>
            h("option", { key: service.name, value: service.name }),
          ),
        )
      : null,
  );
}

function bulk(filter, changed) {
  if (isReadOnly() || !shown.works.length) return null;
  const fits = Object.entries(VERBS).filter(
    ([, verb]) => !filter.state || verb.states.includes(filter.state),
  );
  const words = Object.entries(filter).map(([name, value]) => `${name} ${value}`);
  const about = words.length ? `All units with ${words.join(", ")}.` : "All units of this queue.";
  const acted = () => {
    stale();
    changed();
  };
  return fits.map(([name, verb]) =>
    h(
      "button.quiet.small",
      {
        key: name,
        type: "button",
        title: `${verb.word} all that this filter finds`,
        onclick: () => many(name, filter, about, acted),
      },
      icon(verb.icon),
      `${verb.word} all …`,
    ),
  );
}
