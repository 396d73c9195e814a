// Sends requests to the server, at addresses relative to the page, because the dashboard may be mounted anywhere.

/** An error answer: its line of text and its status (0: no answer came). */
class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** GET the object at `path`; empty values of `query` are left out. */
export function get(path, query = {}) {
  const given = Object.entries(query).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  const text = new URLSearchParams(given).toString();
  return call("GET", text ? `${path}?${text}` : path);
}

/** POST to `path`, and return the answer. */
export function post(path, body = {}) {
  return call("POST", path, body);
}

/** PATCH `path`, and return the answer. */
export function patch(path, body) {
  return call("PATCH", path, body);
}

/** A path made of these parts, each of them encoded. */
export function at(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

async function call(method, path, body) {
  const options = { method, credentials: "same-origin", headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Refused("The dashboard does not answer. Is it still running?", 0);
  }
  let value = null;
  try {
    value = await answer.json();
  } catch {
    throw new Refused(
      `The dashboard answered ${answer.status} with something else than JSON.`,
      answer.status,
    );
  }
  if (!answer.ok)
    throw new Refused(value?.error ?? `The dashboard answered ${answer.status}.`, answer.status);
  return value;
}
