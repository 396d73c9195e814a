// Keyboard shortcuts, the usual ones of such pages.

import { h } from "./dom.js";
import { freeze, live } from "./live.js";
import { dialog } from "./talk.js";

const PLACES = {
  o: "#/",
  w: "#/works",
  f: "#/works?state=failed",
  c: "#/schedules",
  s: "#/services",
  k: "#/workers",
};
const SOON = 1200;
const KEYS = [
  ["/", "search"],
  ["g o", "overview"],
  ["g w", "work"],
  ["g f", "failed units"],
  ["g c", "schedules"],
  ["g s", "services"],
  ["g k", "workers"],
  ["j k", "down and up a list"],
  ["enter", "open"],
  ["esc", "back, or close"],
  ["f", "freeze the page"],
  ["?", "these keys"],
];

let gone = -Infinity;

/** Start to listen to keys. */
export function keys() {
  addEventListener("keydown", press);
}

/** Show the list of keys. */
export function help() {
  if (document.querySelector("dialog[open]")) return;
  dialog("Keys", () =>
    h(
      "dl.keys",
      null,
      KEYS.map(([key, meaning]) =>
        h(
          "div",
          { key },
          h(
            "dt",
            null,
            key.split(" ").map((one) => h("kbd", { key: one }, one)),
          ),
          h("dd", null, meaning),
        ),
      ),
    ),
  );
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const isTyping = event.target.matches?.("input, textarea, select");
  if (isTyping) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (performance.now() - gone < SOON && PLACES[event.key]) {
    gone = -Infinity;
    location.hash = PLACES[event.key];
    event.preventDefault();
    return;
  }
  gone = event.key === "g" ? performance.now() : -Infinity;
  const action = ACTIONS[event.key];
  if (!action) return;
  action();
  event.preventDefault();
}

const ACTIONS = {
  "/": search,
  "?": help,
  j: () => move(1),
  k: () => move(-1),
  f: () => freeze(!live.isFrozen),
  Escape: back,
};

function search() {
  const find = () => document.getElementById("search");
  if (find()) {
    find().select();
    return;
  }
  location.hash = "#/works";
  const watch = new MutationObserver(() => {
    if (!find()) return;
    watch.disconnect();
    requestAnimationFrame(() => find()?.focus());
  });
  watch.observe(document.getElementById("view"), { childList: true, subtree: true });
}

function move(step) {
  const rows = [...document.querySelectorAll("a.row")];
  if (!rows.length) return;
  const current = rows.indexOf(document.activeElement);
  const next =
    current < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, current + step));
  rows[next].focus();
}

function back() {
  const path = location.hash;
  if (document.activeElement?.matches("a.row")) document.activeElement.blur();
  else if (path.startsWith("#/works/")) history.length > 1 ? history.back() : (location.hash = "#/works");
  else if (path.length > 2) location.hash = "#/";
}
