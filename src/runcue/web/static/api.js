// Talks to the server, with addresses relative to the page: it may be mounted anywhere.

/** An answer that was an error: its one line, and its status (0: no answer at all). */
class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The object at `path`; `query` is left out where it is empty. */
export function get(path, query = {}) {
  const given = Object.entries(query).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  const text = new URLSearchParams(given).toString();
  return call("GET", text ? `${path}?${text}` : path);
}

/** Do something; what the server answers. */
export function post(path, body = {}) {
  return call("POST", path, body);
}

/** Change something; what the server answers. */
export function patch(path, body) {
  return call("PATCH", path, body);
}

/** A path of these parts, each safe whatever it contains. */
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
