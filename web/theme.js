// Theme of the user, applied before the first paint. The templates load it in their heads; `settings.js` stores the choice
// of the user.
(() => {
  try {
    const theme = localStorage.getItem("bmqtwist.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // the browser stores nothing for this site: use the system's theme
  }
})();
