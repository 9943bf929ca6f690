// Settings of the user, stored in this browser only.

const listeners = new Set();

function read(name, fallback) {
  try {
    return localStorage.getItem(`bmqtwist.${name}`) ?? fallback;
  } catch {
    return fallback; // the browser stores nothing for this site
  }
}

function write(name, value) {
  try {
    localStorage.setItem(`bmqtwist.${name}`, value);
  } catch {
    // then the setting ends with the page
  }
}

let utc = read("utc", "0") === "1";
let theme = read("theme", "auto");

export const settings = {
  get utc() {
    return utc;
  },
  set utc(value) {
    utc = Boolean(value);
    write("utc", utc ? "1" : "0");
    changed();
  },
  get theme() {
    return theme;
  },
  set theme(value) {
    theme = ["light", "dark"].includes(value) ? value : "auto";
    write("theme", theme);
    document.documentElement.dataset.theme = theme;
    changed();
  },
  /** Calls the listener after each change. */
  watch(listener) {
    listeners.add(listener);
  },
};

function changed() {
  for (const listener of listeners) listener();
}
