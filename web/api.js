// Requests to the node that served this page. Used by every page; live documents come over `live.js`. The server side is
// `bmqtwist/console/server.py`.

const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";
export const prefix = meta("prefix");
export const role = meta("role") || "viewer";
export const user = meta("user");
const ROLES = ["viewer", "operator", "admin"];
const TIMEOUT_MS = 15000;

export class ApiError extends Error {
  constructor(text, status, field) {
    super(text);
    this.status = status;
    this.field = field;
  }
}

/** Returns a path of this console with its query: path("/queue", {uri}). */
export function path(name, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return `${prefix}${name}${text ? `?${text}` : ""}`;
}

/** Returns whether the user's role includes the permissions of the role `wanted`. */
export function hasRole(wanted) {
  return ROLES.indexOf(role) >= ROLES.indexOf(wanted);
}

export function get(name, query) {
  return request(path(name, query), { headers: { Accept: "application/json" } });
}

export function post(name, body) {
  return request(path(name), {
    method: "POST",
    body: JSON.stringify(body),
    headers: { Accept: "application/json", "Content-Type": "application/json", "X-CSRF-Token": meta("csrf") },
  });
}

async function request(url, options) {
  let answer;
  try {
    answer = await fetch(url, { ...options, credentials: "same-origin", signal: AbortSignal.timeout(TIMEOUT_MS) });
  } catch (error) {
    const timedOut = error.name === "TimeoutError";
    throw new ApiError(
      timedOut
        ? `The node did not respond within ${TIMEOUT_MS / 1000} s.`
        : "The node is not reachable. The page is connecting to another node; try again in a few seconds.",
      0,
    );
  }
  let document = null;
  try {
    document = await answer.json();
  } catch {
    // not JSON: only the status is reported
  }
  if (answer.status === 401) {
    location.assign(path("/login", { next: location.pathname + location.search }));
    throw new ApiError("Your login has expired. Log in again.", 401);
  }
  if (!answer.ok || document === null) {
    throw new ApiError(
      document?.error ?? `The node responded with ${answer.status} ${answer.statusText}.`,
      answer.status,
      document?.field,
    );
  }
  return document;
}

// --- the state of a page is in its URL ------------------------------------------------------------------------------

export function query() {
  return new URLSearchParams(location.search);
}

/** Changes the query of this page without loading it; empty values are omitted. */
export function setQuery(changes) {
  const now = query();
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === "") now.delete(name);
    else now.set(name, String(value));
  }
  const text = now.toString();
  history.replaceState(null, "", `${location.pathname}${text ? `?${text}` : ""}`);
}
