// Numbers and times as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = [
  ["d", 86400],
  ["h", 3600],
  ["m", 60],
  ["s", 1],
];

/** 12345 as 12,345. */
export function number(value) {
  return WHOLE.format(value ?? 0);
}

/** A number for a small place: 1234 stays, 123456 becomes 123k. */
export function short(value) {
  if (value < 10_000) return number(value);
  if (value < 1_000_000) return `${trimmed(value / 1000)}k`;
  return `${trimmed(value / 1_000_000)}M`;
}

function trimmed(value) {
  return value < 10 ? value.toFixed(1).replace(/\.0$/, "") : number(Math.floor(value));
}

/** A rate a second: 0, 0.4, 12, 1,240. */
export function pace(value) {
  if (!value) return "0";
  if (value < 0.1) return "<0.1";
  return value < 10 ? value.toFixed(1) : number(value);
}

/** A length of time: 4 ms, 1.2 s, 48 s, 4 m 10 s, 2 h 5 m, 3 d. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0005) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  return whole(seconds);
}

/** A length of time without fractions of a second, for countdowns and ages. */
export function whole(seconds) {
  const rest = Math.max(0, Math.round(seconds));
  const first = UNITS.findIndex(([, size]) => rest >= size);
  if (first < 0) return "0 s";
  const [name, size] = UNITS[first];
  const small = UNITS[first + 1];
  const left = small ? Math.floor((rest % size) / small[1]) : 0;
  return `${Math.floor(rest / size)} ${name}${left && first !== 0 ? ` ${left} ${small[0]}` : ""}`;
}

/** How long ago a moment is: now, 12 s ago. */
export function ago(moment, now) {
  if (moment === null || moment === undefined) return "–";
  const passed = now - moment;
  return passed < 1 ? "now" : `${whole(passed)} ago`;
}

/** A moment as date and time of day here. */
export function clock(moment) {
  if (moment === null || moment === undefined) return "–";
  const date = new Date(moment * 1000);
  const today = new Date();
  const time = date.toLocaleTimeString("en-GB");
  if (date.toDateString() === today.toDateString()) return time;
  return `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" })}, ${time}`;
}

/** A size in bytes: 12 B, 4.0 kB. */
export function bytes(size) {
  if (size < 1000) return `${size} B`;
  return size < 1_000_000 ? `${(size / 1000).toFixed(1)} kB` : `${(size / 1_000_000).toFixed(1)} MB`;
}

/** "1 unit", "2 units". */
export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}
