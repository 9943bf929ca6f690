// Before the first paint: the theme that the user chose.
(() => {
  try {
    const theme = localStorage.getItem("bmqtwist.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // the browser keeps nothing for this site: the system's theme it is
  }
})();
