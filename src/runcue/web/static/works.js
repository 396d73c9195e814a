// The list of works: filter, search, page by page, and actions on all that the filter finds.

import { isReadOnly, many, VERBS } from "./actions.js";
import { get } from "./api.js";
import { h } from "./dom.js";
import { count, number } from "./format.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { listOf, rows } from "./rows.js";

const PAGE = 50;
const STATES = ["pending", "running", "completed", "failed", "cancelled"];
const NAMES = ["state", "task", "queue", "service", "search"];
const PATIENCE = 250;
const FRESH = 2000;
const SHARE = 20;

const shown = { key: null, works: [], next: null, pages: 1, error: "", isLoading: false, at: 0, took: 0 };
let timer = 0;

/** The filter that an address holds. */
function filterOf(query) {
  return Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]).filter(([, value]) => value));
}

async function load(filter, pages, changed) {
  const key = JSON.stringify(filter);
  if (shown.key !== key) Object.assign(shown, { key, works: [], next: null, error: "" });
  shown.isLoading = true;
  shown.pages = pages;
  shown.at = Date.now();
  try {
    const answer = await get("works", { ...filter, limit: Math.min(500, PAGE * pages) });
    if (shown.key !== key) return;
    Object.assign(shown, { works: answer.works, next: answer.next, error: "" });
  } catch (error) {
    if (shown.key === key) shown.error = error.message;
  }
  shown.isLoading = false;
  shown.took = Date.now() - shown.at;
  changed();
}

async function further(filter, changed) {
  const key = shown.key;
  shown.isLoading = true;
  changed();
  try {
    const answer = await get("works", { ...filter, before: shown.next, limit: PAGE });
    if (shown.key !== key) return;
    shown.works = [...shown.works, ...answer.works];
    shown.next = answer.next;
    shown.pages += 1;
  } catch (error) {
    shown.error = error.message;
  }
  shown.isLoading = false;
  changed();
}

/** Let the next drawing ask the server again. */
export function stale() {
  shown.at = 0;
}

/** The page; `query` is that of its address. */
export function works(query, changed) {
  const filter = filterOf(query);
  const isOther = shown.key !== JSON.stringify(filter);
  const fresh = Math.max(FRESH, SHARE * shown.took); // a search through a long list is not repeated all the time
  const isOld = !live.isFrozen && shown.pages === 1 && Date.now() - shown.at > fresh;
  if (isOther || (isOld && !shown.isLoading)) load(filter, 1, changed);
  return [
    h(
      "div.page-head",
      null,
      h("h1", null, "Works"),
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
      NAMES.slice(1, 4).map((name) => choice(name, filter)),
    ),
    shown.error ? h("p.bad", { role: "alert" }, shown.error) : null,
    h(
      "section.card.panel",
      { "aria-label": "Works" },
      h("header", null, h("span.note", null, summary()), bulk(filter, changed)),
      shown.isLoading && !shown.works.length
        ? h("div.empty", null, "Loading …")
        : rows("Works", shown.works, { empty: advice(filter), changed }),
      shown.next
        ? h(
            "div.more",
            null,
            h(
              "button",
              { type: "button", disabled: shown.isLoading, onclick: () => further(filter, changed) },
              shown.isLoading ? "Loading …" : "Show older",
            ),
          )
        : null,
    ),
  ];
}

function summary() {
  if (!shown.works.length) return "";
  return shown.next ? `the latest ${number(shown.works.length)}` : count(shown.works.length, "work");
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
      placeholder: "Search id, target, params, error",
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
  const about = words.length ? `All works with ${words.join(", ")}.` : "All works of this queue.";
  const again = () => {
    stale();
    changed();
  };
  return h(
    "span.actions",
    null,
    fits.map(([name, verb]) =>
      h(
        "button.quiet.small",
        {
          key: name,
          type: "button",
          title: `${verb.word} all that this filter finds`,
          onclick: () => many(name, filter, about, again),
        },
        icon(verb.icon),
        `${verb.word} all …`,
      ),
    ),
  );
}
