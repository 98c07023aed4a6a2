// Walk: one request from admission to eviction. The stops come from the server, played by its own scheduler.

import { fill, h } from "./dom.js";
import { look } from "./palette.js";
import { request } from "./server.js";

export async function mount(panel, { setParams }) {
  const answer = await request("walk/stops");
  if (!answer.ok) throw new Error(`the server says ${answer.status}`);
  const { stops, words } = await answer.json();
  const hues = huesOf(stops);
  const blocks = h("ol", { class: "walk-blocks", "aria-label": "The blocks of the pool" });
  const heading = h("h2", { tabindex: "-1", id: "walk-title" });
  const text = h("div", { class: "walk-text" });
  const formula = h("div", { class: "walk-formula" });
  const counts = h("p", { class: "hint" });
  const tables = h("div", { class: "lab-scroll", tabindex: "0", role: "region", "aria-label": "Block tables at this stop" });
  const events = h("ol", { class: "walk-events" });
  const none = h("p", { class: "hint" }, "Nothing that it tells of; a block that fills up is everyday work.");
  const back = h("button", { type: "button", onclick: () => go(place - 1) }, "Back");
  const next = h("button", { type: "button", class: "primary", onclick: () => go(place + 1) }, "Next");
  const dots = h(
    "ol",
    { class: "walk-stops" },
    stops.map((stop, i) => h("li", {}, h("button", { type: "button", class: "small", onclick: () => go(i) }, `${i + 1}. ${stop.title}`))),
  );
  let place = 0;

  fill(
    panel,
    h(
      "p",
      { class: "lab-lead" },
      "The life of one request's memory in " + `${stops.length} stops, from its admission to the moment when its blocks are given away. ` +
        "What you see was decided by the scheduler and the allocator that the server uses, on a pool small enough to watch.",
    ),
    h(
      "div",
      { class: "walk" },
      h(
        "article",
        { class: "card walk-stop", "aria-labelledby": "walk-title" },
        h("div", { class: "buttons walk-buttons" }, back, next),
        heading,
        text,
        h("h3", {}, "In numbers"),
        formula,
        h("h3", {}, "What the scheduler said"),
        events,
        none,
      ),
      h(
        "section",
        { class: "card walk-map", "aria-label": "The pool at this stop" },
        h("h3", {}, "The pool"),
        h("p", { class: "hint" }, "Each box is a block with its slots, filled from the left; the framed ones are what this stop is about."),
        blocks,
        counts,
        tables,
      ),
      h("nav", { class: "card walk-nav", "aria-label": "Stops of the walk" }, h("h3", {}, "All stops"), dots),
      h(
        "section",
        { class: "card walk-words", "aria-labelledby": "walk-words" },
        h("h3", { id: "walk-words" }, "Words"),
        h("dl", {}, Object.entries(words).flatMap(([word, meaning]) => [h("dt", {}, word), h("dd", {}, meaning)])),
      ),
    ),
  );

  panel.addEventListener("keydown", (event) => {
    if (event.target.closest("canvas, input, select, textarea") || event.altKey || event.ctrlKey || event.metaKey) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) go(place + step);
  });

  function go(wanted) {
    if (wanted < 0 || wanted >= stops.length) return;
    show(wanted);
    setParams(wanted ? { stop: wanted + 1 } : {});
    heading.focus({ preventScroll: true });
  }

  function show(wanted) {
    place = wanted;
    const stop = stops[place];
    panel.dataset.stop = String(place + 1);
    heading.textContent = `${place + 1}. ${stop.title}`;
    fill(text, stop.text.map((paragraph) => h("p", {}, paragraph)));
    fill(formula, h("p", { class: "hint" }, stop.formula.name), h("p", {}, `${stop.formula.expression} = `, h("strong", {}, stop.formula.result)));
    fill(events, stop.events.map((line) => h("li", {}, line)));
    events.hidden = stop.events.length === 0;
    none.hidden = stop.events.length > 0;
    fill(blocks, stop.cells.map((cell, number) => box(cell, number, stop.blocks.includes(number), hues)));
    const { live, cached, free } = stop.pool;
    counts.textContent = `Step ${stop.step}: ${live} live, ${cached} cached, ${free} free.`;
    fill(tables, blockTables(stop));
    back.disabled = place === 0;
    next.disabled = place === stops.length - 1;
    for (const [i, item] of [...dots.children].entries()) {
      if (i === place) item.firstChild.setAttribute("aria-current", "step");
      else item.firstChild.removeAttribute("aria-current");
    }
  }

  return {
    show(params) {
      const wanted = Number(params.get("stop") ?? 1);
      show(Number.isInteger(wanted) && wanted >= 1 && wanted <= stops.length ? wanted - 1 : 0);
    },
  };
}

/** Request -> number that gives its colour, in the order in which they appear in the story. */
function huesOf(stops) {
  const names = new Set(stops.flatMap((stop) => stop.cells.flatMap((cell) => cell.holders)));
  return new Map([...names].map((name, i) => [name, i + 1]));
}

/** A block of the pool: whose it is and which of its slots hold a token. */
function box(cell, number, marked, hues) {
  const who = cell.state === "live" ? cell.holders.join(" + ").replaceAll("-", "\u2011") : cell.state;
  const hue = cell.state === "live" ? look(hues.get(cell.holders[0])).hue : null;
  const slots = Array.from({ length: cell.slots }, (_, slot) =>
    h("span", {
      class: `swatch${cell.state === "cached" ? " cached" : ""}`,
      "aria-hidden": "true",
      dataset: hue !== null && slot < cell.filled ? { hue } : {},
    }),
  );
  const full = cell.state === "free" ? "" : `, ${cell.filled} of ${cell.slots} slots filled`;
  return h(
    "li",
    { class: `walk-block${marked ? " marked" : ""}`, dataset: { block: number, state: cell.state } },
    h("span", { class: "hint" }, `block ${number}`),
    h("span", { class: "who" }, who, h("span", { class: "unseen" }, full + (marked ? "; this stop is about it" : ""))),
    h("span", { class: "walk-slots" }, slots),
  );
}

function blockTables(stop) {
  const marked = new Set(stop.blocks);
  const rows = [
    ...stop.requests.map(({ id, tokens, blocks }) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, id),
        h("td", { class: "number" }, String(tokens)),
        h("td", {}, blocks.map((block) => [h(marked.has(block) ? "strong" : "span", {}, String(block)), " "]).flat()),
      ),
    ),
    ...stop.waiting.map((id) => h("tr", {}, h("th", { scope: "row" }, id), h("td", { class: "number" }, "–"), h("td", {}, "waits"))),
  ];
  if (!rows.length) return h("p", { class: "hint" }, "Nobody runs.");
  const head = ["Request", "Tokens held", "Its blocks, in order"];
  return h(
    "table",
    {},
    h("thead", {}, h("tr", {}, head.map((word, i) => h("th", { scope: "col", class: i === 1 ? "number" : null }, word)))),
    h("tbody", {}, rows),
  );
}
