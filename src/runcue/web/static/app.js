// Starts the page: its frame, its addresses, its keyboard.
//
// Addresses stand behind the #, so that the page works wherever it is mounted: #/ #/works?state=failed
// #/works/<id> #/schedules #/services #/workers.

import { h, render } from "./dom.js";
import { clock } from "./format.js";
import { icon, mark } from "./icons.js";
import { begin, freeze, live } from "./live.js";
import { help, keys } from "./keys.js";
import { overview } from "./overview.js";
import { schedules } from "./schedules.js";
import { services } from "./services.js";
import { nextTheme, theme } from "./theme.js";
import { work } from "./work.js";
import { stale, works } from "./works.js";
import { workers } from "./workers.js";

const TICK = 1000;
const PLACES = [
  ["", "Overview", overview],
  ["works", "Work", (changed, rest, query) => (rest ? work(rest, changed) : works(query, changed))],
  ["schedules", "Schedules", schedules],
  ["services", "Services", services],
  ["workers", "Workers", workers],
];
const LINES = {
  connecting: "connecting",
  live: "live",
  lost: "reconnecting",
  unavailable: "unavailable",
  refused: "signed out",
};

let isAsked = false;
let address = null;

/** Draw the page again with the next animation frame; several calls draw once. */
function changed() {
  if (isAsked || document.hidden) return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    draw();
  });
}

/** The parts of the address: the place, the rest of the path, and the query. */
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [name, ...rest] = path.split("/");
  let id = "";
  try {
    id = decodeURIComponent(rest.join("/"));
  } catch {
    id = rest.join("/"); // a broken address names no work, and the server says so
  }
  return {
    place: PLACES.find(([known]) => known === name) ?? PLACES[0],
    id,
    query: new URLSearchParams(query),
  };
}

function draw() {
  const { place, id, query } = route();
  const [name, title, view] = place;
  render(document.getElementById("bar"), bar(name));
  render(document.getElementById("banner"), banner());
  const main = document.getElementById("view");
  main.classList.toggle("is-stale", live.line === "unavailable" || live.line === "lost");
  if (live.line === "refused") render(main, refused());
  else if (!live.status) render(main, h("div.boot", { key: "boot" }, live.error || "Loading …"));
  else render(main, h(`div.view.at-${name || "overview"}`, { key: name }, view(changed, id, query)));
  render(document.getElementById("foot"), foot());
  document.title = `${id || title} · ${live.status?.queue.name ?? "runcue"}`;
}

function bar(current) {
  const status = live.status;
  return [
    h(
      "a.brand",
      { href: "#/", "aria-label": "runcue, overview" },
      mark(),
      h("span.word", null, "runcue"),
      status ? h("span.queue", { title: status.queue.path ?? "in memory" }, status.queue.name) : null,
    ),
    h(
      "nav.places",
      { "aria-label": "Pages" },
      PLACES.map(([name, title]) =>
        h(
          "a",
          { key: name, href: `#/${name}`, "aria-current": name === current ? "page" : undefined },
          title,
        ),
      ),
    ),
    h(
      "div.tools",
      null,
      status?.queue.read_only
        ? h("span.chip", { title: "Nothing can be changed from this page" }, "read-only")
        : null,
      line(),
      h(
        "button.quiet.bare",
        {
          type: "button",
          "aria-pressed": live.isFrozen ? "true" : "false",
          "aria-label": "Freeze the page",
          title: "Freeze (f)",
          onclick: () => freeze(!live.isFrozen),
        },
        icon(live.isFrozen ? "play" : "pause"),
      ),
      h(
        "button.quiet.bare",
        {
          type: "button",
          "aria-label": `Colours: ${theme()}`,
          title: `Colours: ${theme()}`,
          onclick: () => (nextTheme(), changed()),
        },
        icon({ light: "sun", dark: "moon", system: "system" }[theme()]),
      ),
      h(
        "button.quiet.bare.only-wide",
        { type: "button", "aria-label": "Help", title: "Keys (?)", onclick: help },
        icon("help"),
      ),
    ),
  ];
}

function line() {
  if (live.isFrozen && live.line === "live")
    return h("span.line.is-frozen", { key: "line" }, h("i"), "frozen");
  return h("span.line", { key: "line", class: `is-${live.line}` }, h("i"), LINES[live.line]);
}

function banner() {
  if (live.line === "unavailable")
    return h(
      "div.banner",
      { key: "bad" },
      icon("warning"),
      h(
        "span",
        null,
        h("strong", null, "The queue cannot be read. "),
        live.error,
        " What you see is from ",
        h("span", null, live.status ? clock(live.status.at) : "before"),
        ".",
      ),
    );
  if (live.line === "lost" && live.status)
    return h(
      "div.banner",
      { key: "lost" },
      icon("warning"),
      h(
        "span",
        null,
        h("strong", null, "Disconnected. "),
        "The dashboard does not answer; trying again. What you see is from ",
        clock(live.status.at),
        ".",
      ),
    );
  return null;
}

function refused() {
  return h(
    "div.card.empty",
    { key: "refused" },
    h("h2", null, "Signed out"),
    h(
      "p",
      null,
      "This page needs the link with its token, which the dashboard printed when it was started: open it, or start ",
      h("code", null, "runcue dashboard"),
      " again.",
    ),
  );
}

function foot() {
  return [
    h("span", null, live.status?.queue.path ?? (live.status ? "a queue in memory" : "")),
    h("span.only-wide", null, h("kbd", null, "?"), " keys"),
  ];
}

addEventListener("hashchange", () => {
  const { place, id } = route();
  const now = `${place[0]}/${id}`;
  if (now !== address && address !== null) {
    scrollTo(0, 0);
    document.getElementById("view").focus({ preventScroll: true });
  }
  address = now;
  stale();
  changed();
});
address = `${route().place[0]}/${route().id}`;
document.querySelector(".skip").onclick = (event) => {
  event.preventDefault(); // what stands behind the # is the page's address
  document.getElementById("view").focus();
};
keys();
begin(changed);
setInterval(() => live.isFrozen || changed(), TICK);
changed();
