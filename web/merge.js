// JSON merge patch (RFC 7386), and lists that are sent as objects so that single rows can be patched. `live.js` applies
// patches with it, pages read lists with `rowsOf`; `bmqtwist/console/documents.py` makes the patches.

/** Returns the document after the patch; unchanged parts are shared with the old document. */
export function merge(target, patch) {
  if (!isObject(patch)) return patch;
  const result = isObject(target) ? { ...target } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete result[name];
    else define(result, name, merge(own(result, name), value));
  }
  return result;
}

/** Returns the rows of a list: an array, {rows, order}, or an object by key, in the order of `order` or of its keys. */
export function rowsOf(container, order) {
  if (!container) return [];
  if (Array.isArray(container)) return container;
  if (Array.isArray(container.rows)) return container.rows;
  if (isObject(container.rows)) return inOrder(container.rows, container.order);
  return inOrder(container, order);
}

function inOrder(rows, order) {
  const keys = order ?? Object.keys(rows).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  return keys.filter((key) => Object.hasOwn(rows, key)).map((key) => rows[key]);
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function own(object, name) {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

// A key named __proto__ is an ordinary key.
function define(object, name, value) {
  Object.defineProperty(object, name, { value, writable: true, enumerable: true, configurable: true });
}
