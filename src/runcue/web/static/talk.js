// Dialogs before an action, and messages after it.

import { h, render } from "./dom.js";
import { icon } from "./icons.js";

const STAYS = 6000;

let timer = 0;

/** Show a message for a moment; screen readers read it out. */
export function say(text, isBad = false) {
  const place = document.getElementById("said");
  render(
    place,
    h(
      "div.toast",
      { key: Date.now(), class: isBad ? "is-bad" : undefined },
      icon(isBad ? "warning" : "check"),
      h("span", null, text),
    ),
  );
  clearTimeout(timer);
  timer = setTimeout(() => render(place), STAYS);
}

/** Run an action and show its outcome; false when it was refused. */
export async function attempt(action, done) {
  try {
    const answer = await action();
    say(done(answer));
    return true;
  } catch (error) {
    say(error.message, true);
    return false;
  }
}

/** Open a dialog; `body(close)` describes its content. Returns a function that draws the content again. */
export function dialog(title, body) {
  const frame = document.createElement("dialog");
  frame.setAttribute("aria-label", title);
  const close = () => frame.close();
  const draw = () =>
    render(
      frame,
      h(
        "header",
        null,
        h("h2", null, title),
        h("button.quiet.bare", { type: "button", "aria-label": "Close", onclick: close }, icon("close")),
      ),
      body(close),
    );
  frame.addEventListener("close", () => frame.remove());
  frame.addEventListener("click", (event) => {
    if (event.target === frame) close();
  });
  document.body.append(frame);
  draw();
  frame.showModal();
  return draw;
}

/** A dialog that asks for confirmation: a text, and the button that acts. */
export function confirm({ title, body, yes, isBad = false, act }) {
  let isBusy = false;
  const draw = dialog(title, (close) =>
    h(
      "form",
      {
        onsubmit: async (event) => {
          event.preventDefault();
          if (isBusy) return;
          isBusy = true;
          draw();
          await act();
          close();
        },
      },
      h("div.body", null, body),
      h(
        "footer",
        null,
        h("button.quiet", { type: "button", onclick: close, autofocus: isBad }, "Keep as it is"),
        h(
          "button",
          { type: "submit", class: isBad ? "is-bad" : "is-main", disabled: isBusy, autofocus: !isBad },
          yes,
        ),
      ),
    ),
  );
}
