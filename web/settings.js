// Settings of the user, stored in this browser only. Read by `app.js`, `chart.js` and `dom.js`; `theme.js` applies the
// theme before this module is loaded.

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
    // the setting is lost when the page is closed
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
    notifyListeners();
  },
  get theme() {
    return theme;
  },
  set theme(value) {
    theme = ["light", "dark"].includes(value) ? value : "auto";
    write("theme", theme);
    document.documentElement.dataset.theme = theme;
    notifyListeners();
  },
  /** Calls the listener after each change. */
  onChange(listener) {
    listeners.add(listener);
  },
};

function notifyListeners() {
  for (const listener of listeners) listener();
}
