// What the page asks before it acts, and what it says afterwards.

import { h, render } from "./dom.js";
import { icon } from "./icons.js";

const STAYS = 6000;

let timer = 0;

/** Say how something went: seen for a moment, read out by screen readers. */
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

/** Do something and say how it went; false when it was refused. */
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

/** Open a dialog; `body(close)` describes its inside, and is asked again by the function that this returns. */
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

/** A dialog with one question: what happens, and the button that does it. */
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
