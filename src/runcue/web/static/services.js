// Services: how much of each limit is used, what blocks them, and a dialog that changes the limits.

import { hold, isReadOnly } from "./actions.js";
import { at, patch } from "./api.js";
import { meter } from "./charts.js";
import { h } from "./dom.js";
import { count, number, short, whole } from "./format.js";
import { icon } from "./icons.js";
import { live, now, refresh } from "./live.js";
import { pausedQueues, queues } from "./queues.js";
import { listOf } from "./rows.js";
import { attempt, dialog } from "./talk.js";

const MOST_PAUSED = 200;
const CIRCUITS = {
  closed: "circuit closed",
  open: "circuit open",
  half_open: "circuit half open, one is tried",
};

/** What keeps a service from starting units now, in words. */
function blockade(service) {
  if (service.paused) return h("span.flag.is-paused", null, icon("pause"), "paused");
  if (!service.blocked) return null;
  const seconds =
    service.until === null || service.until === undefined ? null : Math.max(0, service.until - now());
  const isCircuit = service.blocked === "circuit";
  return h(
    "span.flag",
    { class: isCircuit ? "is-bad" : "is-full" },
    icon(isCircuit ? "bolt" : "pending"),
    isCircuit ? "circuit open" : `${service.blocked.replace("_", " ")} used up`,
    seconds === null ? null : h("span.until", null, whole(seconds)),
  );
}

function line(label, used, limit, unit) {
  return h(
    "div.limit",
    { key: label },
    h("span.label", null, label),
    h("span.used", null, `${short(used)} / ${limit === null ? "∞" : short(limit)}${unit ?? ""}`),
    meter(used, limit, label),
  );
}

const WINDOWS = { 1: "s", 60: "min", 3600: "h", 86400: "day" };

/** The window of a quantity, as it is written: /min. */
function per(quantity) {
  if (quantity.per === null || quantity.per === undefined) return "";
  const window =
    WINDOWS[quantity.per] ?? (typeof quantity.per === "number" ? `${quantity.per}s` : quantity.per);
  return `/${window}`;
}

/** The bars for the limits of a service. */
function bars(service) {
  const width = service.adaptive;
  return [
    service.concurrent === null && !width
      ? h(
          "div.limit.is-open",
          { key: "running" },
          h("span.label", null, "running"),
          h("span.used", null, number(service.running)),
        )
      : line(
          width ? `slots (adaptive, ${width.min} to ${width.max})` : "slots",
          service.running,
          service.concurrent,
        ),
    service.rates.map((rate) => line(rate.rate, rate.used, rate.limit)),
    service.quantities.map((quantity) =>
      line(`${quantity.name}${per(quantity)}`, quantity.used, quantity.limit),
    ),
  ];
}

/** A service in a few lines, for the overview. */
export function brief(service) {
  return h(
    "li.service",
    { key: service.name },
    h("div.head", null, h("a.name", { href: "#/services" }, service.name), blockade(service)),
    bars(service),
  );
}

function circuit(service) {
  if (!service.circuit) return h("span.muted", null, "no circuit breaker");
  const glyph = service.circuit === "closed" ? "check" : "bolt";
  return h(
    "span.circuit",
    { class: `is-${service.circuit}` },
    icon(glyph),
    CIRCUITS[service.circuit],
    service.circuit_threshold
      ? h("span.muted", null, `opens after ${count(service.circuit_threshold, "failure")}`)
      : null,
  );
}

function card(service) {
  return h(
    "article.card.service",
    { key: service.name, "aria-label": service.name },
    h("div.head", null, h("h2.name", null, service.name), blockade(service)),
    h("div.bars", null, bars(service)),
    h("p.circuit-line", null, circuit(service)),
    service.declared
      ? h("p.by-hand", null, icon("tune"), `set by hand; the program says ${service.declared}`)
      : null,
    h(
      "footer",
      null,
      h("a.button.quiet", { href: listOf({ service: service.name }) }, "Work"),
      isReadOnly()
        ? h("span.note", null, "read-only")
        : [
            h(
              "button.quiet",
              { key: "limits", type: "button", onclick: () => limits(service) },
              icon("tune"),
              "Change limits",
            ),
            h(
              "button",
              {
                key: "pause",
                type: "button",
                onclick: () => hold("services", service.name, !service.paused),
              },
              icon(service.paused ? "play" : "pause"),
              service.paused ? "Resume" : "Pause",
            ),
          ],
    ),
  );
}

/** The page of all services. */
export function services() {
  const found = live.status.services;
  const more = live.status.services_more;
  return [
    h("div.page-head", null, h("h1", null, "Services"), h("p.muted", null, count(found.length, "service"))),
    pausedQueues(MOST_PAUSED),
    found.length ? h("div.grid", { key: "services" }, found.map(card)) : none(),
    more ? h("p.muted", { key: "more" }, `and ${number(more)} more, not shown`) : null,
    queues(),
  ];
}

function none() {
  return h(
    "div.card.empty",
    { key: "none" },
    h("h2", null, "No services yet"),
    h(
      "p",
      null,
      "Limits belong to services. Declare one with ",
      h("code", null, 'cue.service("api", rate="60/min")'),
      ".",
    ),
  );
}

const NUMBERS = {
  concurrent: ["At once", /^\d+$/, "a whole number such as 5"],
  circuit_threshold: ["Circuit opens after", /^\d+$/, "a whole number such as 5"],
  circuit_timeout: ["Circuit stays open for", /^\d+(\.\d+)?$/, "a number of seconds such as 30 or 2.5"],
};

/** A text with 1,000 written as 1000; a comma between two limits stays. */
function plain(text) {
  return text.replace(/(?<![\d./])\d{1,3}(,\d{3})+(?![\d,])/g, (found) => found.replaceAll(",", ""));
}

/** The limits that differ from those that the dialog showed; or an error, and nothing is sent. */
function difference(service, form) {
  const body = {};
  const told = (name, before) => {
    const value = form.get(name)?.trim();
    return value === undefined || value === before ? undefined : value;
  };
  const rate = told("rate", rates(service));
  if (rate !== undefined) {
    const parts = plain(rate).split(/[\s,;]+(?=\d)/).filter(Boolean);
    body.rate = parts.length > 1 ? parts : (parts[0] ?? null);
  }
  for (const [name, [label, pattern, example]] of Object.entries(NUMBERS)) {
    const value = told(name, text(service[name]));
    if (value === undefined) continue;
    const digits = plain(value);
    if (digits !== "" && !pattern.test(digits))
      return { wrong: `${label}: “${value}” is not ${example}. Nothing was changed.` };
    body[name] = digits === "" ? null : Number(digits);
  }
  for (const quantity of service.quantities) {
    const value = told(`quantity ${quantity.name}`, `${quantity.limit}${per(quantity)}`);
    if (value !== undefined) body.quantities = { ...body.quantities, [quantity.name]: plain(value) || null };
  }
  return { body };
}

const rates = (service) => service.rates.map((rate) => rate.rate).join(", ");
const text = (value) => (value === null || value === undefined ? "" : String(value));

/** The dialog that changes a service's limits. */
function limits(service) {
  let error = "";
  const draw = dialog(`Limits of ${service.name}`, (close) => {
    const send = async (event) => {
      event.preventDefault();
      const { body, wrong } = difference(service, new FormData(event.target));
      error = wrong ?? "";
      if (wrong) return draw();
      if (!Object.keys(body).length) return close();
      const isDone = await attempt(
        () =>
          patch(at("services", service.name), body).catch((refused) => {
            error = refused.message;
            throw refused;
          }),
        () => `Changed the limits of ${service.name}.`,
      );
      if (isDone) {
        await refresh();
        return close();
      }
      return draw();
    };
    return h(
      "form",
      { onsubmit: send, novalidate: true },
      h(
        "div.body",
        null,
        h(
          "p.muted",
          null,
          "Holds at once and for all processes, until the program declares other limits than now.",
        ),
        error ? h("p.bad", { role: "alert" }, error) : null,
        field("rate", "Rates", rates(service), "such as 60/min, 1000/day; empty: no limit"),
        service.quantities.map((one) =>
          field(`quantity ${one.name}`, one.name, `${one.limit}${per(one)}`, "empty: no limit"),
        ),
        service.adaptive
          ? h(
              "p.muted",
              null,
              `Places: found by itself, between ${service.adaptive.min} and ${service.adaptive.max}.`,
            )
          : field("concurrent", "At once", text(service.concurrent), "empty: no limit", "numeric"),
        h(
          "div.pair",
          null,
          field(
            "circuit_threshold",
            "Circuit opens after",
            text(service.circuit_threshold),
            "failures in a row; empty: never",
            "numeric",
          ),
          field("circuit_timeout", "and stays open for", text(service.circuit_timeout), "seconds", "decimal"),
        ),
      ),
      h(
        "footer",
        null,
        h("button.quiet", { type: "button", onclick: close }, "Keep as it is"),
        h("button.is-main", { type: "submit" }, "Change limits"),
      ),
    );
  });
}

function field(name, label, value, hint, mode) {
  return h(
    "label.field",
    null,
    h("span", null, label),
    h("input", {
      name,
      value,
      inputmode: mode,
      autocomplete: "off",
      spellcheck: "false",
      autofocus: name === "rate",
    }),
    h("small", null, hint),
  );
}
