// Light, dark, or as the system says; remembered in this browser.

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const WORDS = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };

function stored() {
  try {
    return localStorage.getItem("octavo-theme") ?? "auto";
  } catch {
    return "auto"; // storage may be forbidden; the page works without
  }
}

/** Let `button` switch the theme. Whoever paints with colours of their own hears `octavo-theme` on the document. */
export function watchTheme(button) {
  let theme = stored() in NEXT ? stored() : "auto";
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = WORDS[theme];
    document.dispatchEvent(new Event("octavo-theme"));
  };
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    try {
      localStorage.setItem("octavo-theme", theme);
    } catch {
      // as above
    }
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("octavo-theme")));
  apply();
}
