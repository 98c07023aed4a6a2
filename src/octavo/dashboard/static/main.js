// The shell: tabs, theme, the key, and the address that says which part is shown.
//
// A part is a module with `mount(panel, context)`, called once when it is first shown, which may return
// {show(params), hide()}. `context`: {config, fetch, setParams(params), notice(text)}. The address is #part?params.

import { fill, h } from "./dom.js";
import { config as loadConfig, request } from "./server.js";
import { watchTheme } from "./theme.js";

const PARTS = {
  live: { title: "Live", load: () => import("./live.js") },
  lab: { title: "Lab", load: () => import("./lab.js") },
  walk: { title: "Walk", load: () => import("./walk.js") },
};
const mounted = new Map();
let shown = null;

function address() {
  const [part, query = ""] = location.hash.slice(1).split("?");
  return { part, params: new URLSearchParams(query) };
}

function notice(text) {
  const place = document.getElementById("notice");
  place.textContent = text ?? "";
  place.hidden = !text;
}

function context(name, config) {
  return {
    config,
    fetch: request,
    notice,
    /** Put this part's state into the address, without a new entry in the history. */
    setParams(params) {
      const query = new URLSearchParams(params).toString();
      const hash = `#${name}${query ? `?${query}` : ""}`;
      if (shown === name && location.hash !== hash) history.replaceState(null, "", hash);
    },
  };
}

async function show(name, params, config) {
  if (shown !== null && shown !== name) mounted.get(shown)?.hide?.();
  shown = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.dataset.part === name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    document.getElementById(`panel-${tab.dataset.part}`).hidden = !chosen;
  }
  document.title = `Octavo: ${PARTS[name].title}`;
  if (!mounted.has(name)) {
    mounted.set(name, null);
    const module = await PARTS[name].load();
    mounted.set(name, (await module.mount(document.getElementById(`panel-${name}`), context(name, config))) ?? {});
  }
  if (shown === name) mounted.get(name)?.show?.(params);
}

function buildTabs(config) {
  const parts = config.parts.filter((name) => name in PARTS);
  const go = (name) => {
    location.hash = name;
    document.querySelector(`[data-part=${name}]`).focus();
  };
  const onKey = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    go(parts[(parts.indexOf(event.currentTarget.dataset.part) + step + parts.length) % parts.length]);
  };
  fill(
    document.getElementById("tabs"),
    parts.map((name) =>
      h(
        "button",
        {
          type: "button",
          role: "tab",
          id: `tab-${name}`,
          "aria-controls": `panel-${name}`,
          dataset: { part: name },
          onclick: () => go(name),
          onkeydown: onKey,
        },
        PARTS[name].title,
      ),
    ),
  );
  document
    .getElementById("main")
    .append(
      ...parts.map((name) =>
        h("section", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, hidden: true }),
      ),
    );
  return parts;
}

async function start() {
  watchTheme(document.getElementById("theme"));
  const config = await loadConfig();
  const parts = buildTabs(config);
  const route = () => {
    const { part, params } = address();
    if (part === "main") return;
    show(parts.includes(part) ? part : parts[0], params, config).catch((error) => {
      console.error(error);
      notice(`This part could not be shown: ${error.message}`);
    });
  };
  window.addEventListener("hashchange", route);
  route();
}

start().catch((error) => notice(`The server does not answer: ${error.message}`));
