// Light, dark, or what the system says; kept in this browser.

const NAME = "runcue-theme";
const ORDER = ["system", "light", "dark"];

/** The choice that holds. */
export function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

/** Go on to the next choice. */
export function nextTheme() {
  keep(ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length]);
}

function keep(choice) {
  show(choice);
  try {
    localStorage.setItem(NAME, choice);
  } catch {
    // a browser that keeps nothing shows the choice until the page is left
  }
}

function show(choice) {
  if (choice === "system" || !ORDER.includes(choice)) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
}

try {
  show(localStorage.getItem(NAME) ?? "system");
} catch {
  show("system");
}
