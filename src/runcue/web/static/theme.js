// Light, dark, or as the system is set; stored in this browser.

const NAME = "runcue-theme";
const ORDER = ["system", "light", "dark"];

/** The present choice. */
export function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

/** Switch to the next choice. */
export function nextTheme() {
  keep(ORDER[(ORDER.indexOf(theme()) + 1) % ORDER.length]);
}

function keep(choice) {
  show(choice);
  try {
    localStorage.setItem(NAME, choice);
  } catch {
    // without storage the choice holds until the page is closed
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
