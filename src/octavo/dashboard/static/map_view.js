// A memory map with everything around it: zoom, legend, the note at the pointer, and the same numbers as a table.

import { count, fill, h, plural, seconds, term } from "./dom.js";
import { LIVE, PARTIAL, SHARED } from "./frames.js";
import { lookName } from "./palette.js";
import { PoolMap } from "./pool_map.js";

const RANGES_MAX = 12;

/** What there is to say about a block, line by line. */
export function blockLines(state, block) {
  const lines = [`Block ${block}: ${state.kind(block)}`];
  const flag = state.flags[block];
  if (flag & LIVE) {
    const owner = state.requests.get(state.owner[block]);
    lines.push(`owner: request ${state.nameOf(state.owner[block])}${owner ? ` (${owner.id})` : ""}`);
    lines.push(`position ${state.position[block]} in its table`);
    lines.push(`${state.fill[block]} of ${state.pool.block_size} slots hold a token`);
    lines.push(state.refs[block] === 1 ? "1 reference" : `${state.refs[block]} references: shared`);
  } else if (state.kind(block) === "cached") {
    const { value, atLeast } = state.age(block);
    lines.push(`released ${atLeast ? "at least " : ""}${seconds(value)} ago`, "0 references");
  }
  const hash = state.hash(block);
  if (hash) lines.push(`hash ${hash}…`);
  return lines;
}

function summaryLines(state, first, perCell) {
  const last = Math.min(first + perCell, state.flags.length);
  const counts = { live: 0, cached: 0, free: 0 };
  for (let block = first; block < last; block++) counts[state.kind(block)]++;
  return [
    `Blocks ${count(first)} to ${count(last - 1)}`,
    `${counts.live} live, ${counts.cached} cached, ${counts.free} free`,
    "select to zoom in",
  ];
}

/** [3, 4, 5, 9] -> "3–5, 9". */
export function ranges(blocks) {
  const parts = [];
  for (let i = 0; i < blocks.length; ) {
    let j = i;
    while (j + 1 < blocks.length && blocks[j + 1] === blocks[j] + 1) j++;
    parts.push(i === j ? `${blocks[i]}` : `${blocks[i]}–${blocks[j]}`);
    i = j + 1;
  }
  const more = parts.length - RANGES_MAX;
  return parts.slice(0, RANGES_MAX).join(", ") + (more > 0 ? ` and ${more} more runs` : "");
}

/** Rows of the table: [who, blocks, shared, partial, tokens, numbers]. */
export function tableRows(state) {
  const owners = new Map();
  const rest = { cached: [], free: [] };
  for (let block = 0; block < state.flags.length; block++) {
    const flag = state.flags[block];
    if (!(flag & LIVE)) {
      rest[state.kind(block)].push(block);
      continue;
    }
    const number = state.owner[block];
    if (!owners.has(number)) owners.set(number, { blocks: [], shared: 0, partial: 0, tokens: 0 });
    const row = owners.get(number);
    row.blocks.push(block);
    row.shared += flag & SHARED ? 1 : 0;
    row.partial += flag & PARTIAL ? 1 : 0;
    row.tokens += state.fill[block];
  }
  const rows = [...owners]
    .sort(([a], [b]) => a - b)
    .map(([number, row]) => [
      `request ${state.nameOf(number)} (${lookName(number)})`,
      count(row.blocks.length),
      count(row.shared),
      count(row.partial),
      count(row.tokens),
      ranges(row.blocks),
    ]);
  for (const kind of ["cached", "free"]) {
    const tokens = kind === "cached" ? count(rest[kind].length * state.pool.block_size) : "0";
    rows.push([kind, count(rest[kind].length), "0", "0", tokens, ranges(rest[kind])]);
  }
  return rows;
}

const LEGEND = [
  ["live", "live", "A running request holds it; each request has a colour and pattern of its own."],
  ["partial", "partly filled", "Filled from below, as far as its slots hold tokens."],
  ["shared", "shared", "More than one request holds it: their texts begin alike, so it is kept once."],
  ["cached", "cached", "Nobody holds it, but its content can still be found and used again; it fades with age."],
  ["free", "free", "Nothing of use is in it."],
];

/** The coloured samples with their meaning. */
export function mapLegend() {
  return h(
    "ul",
    { class: "legend" },
    LEGEND.map(([kind, word, meaning]) =>
      h("li", {}, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), term(word, meaning)),
    ),
  );
}

/**
 * A map in a figure. `label`: what it shows, for screen readers; `onSelect(block)`: a block was chosen.
 * Returns {element, map, draw(state)}.
 */
export function mapView({ label = "Memory map", onSelect, legend = true } = {}) {
  const note = h("div", { class: "map-note", hidden: true });
  const spoken = h("p", { class: "unseen", "aria-live": "polite" });
  const canvas = h("canvas", {
    class: "map",
    tabindex: "0",
    role: "application",
    "aria-roledescription": "memory map",
    "aria-label": `${label}: arrow keys move from block to block, plus and minus zoom, Enter selects`,
  });
  const shown = h("span", { class: "map-shown" });
  const slider = h("input", { type: "range", min: "0", max: "0", value: "0", "aria-label": "First block shown" });
  const table = h("div", { class: "map-table scroll", tabindex: "0", role: "region", "aria-label": `${label} as a table` });
  const details = h("details", {}, h("summary", {}, "The map as a table"), table);
  const map = new PoolMap(canvas, { onHover, onSelect, onView });
  let asked = 0;

  function onHover(block, box, moved) {
    note.hidden = block === null;
    if (block === null) return;
    const state = map.state;
    const perCell = map._grid.perCell;
    const lines = perCell === 1 ? blockLines(state, block) : summaryLines(state, block, perCell);
    fill(note, lines.map((line) => h("div", {}, line)));
    const [width, height] = [note.offsetWidth, note.offsetHeight];
    const left = Math.max(4, Math.min(box.left + box.side + 8, window.innerWidth - width - 8));
    const under = box.top + box.side + 8;
    note.style.left = `${left}px`;
    note.style.top = `${under + height > window.innerHeight ? box.top - height - 8 : under}px`;
    if (moved && document.activeElement === canvas) spoken.textContent = lines.join(", ");
  }

  function onView({ first, shown: blocks, perCell, total }) {
    const scale = perCell === 1 ? "a cell is a block" : `a cell is ${perCell} blocks`;
    const range = blocks === total ? `all ${count(total)} blocks` : `blocks ${count(first)}–${count(first + blocks - 1)} of ${count(total)}`;
    shown.textContent = `${range}; ${scale}`;
    slider.max = String(total - blocks);
    slider.value = String(first);
    slider.hidden = blocks === total;
    // Read by the tests and by people who measure.
    canvas.dataset.perCell = String(perCell);
    canvas.dataset.total = String(total);
  }

  function redrawTable() {
    if (!details.open || map.state === null || performance.now() - asked < 500) return;
    asked = performance.now();
    const head = ["Held by", "Blocks", "Shared", "Partly filled", "Tokens", "Block numbers"];
    fill(
      table,
      h(
        "table",
        {},
        h("caption", {}, `${plural(map.total, "block")}: who holds them`),
        h("thead", {}, h("tr", {}, head.map((word) => h("th", { scope: "col" }, word)))),
        h(
          "tbody",
          {},
          tableRows(map.state).map(([who, ...cells]) =>
            h("tr", {}, h("th", { scope: "row" }, who), cells.map((cell) => h("td", {}, cell))),
          ),
        ),
      ),
    );
  }

  slider.addEventListener("input", () => map.showFrom(Number(slider.value)));
  details.addEventListener("toggle", redrawTable);
  const button = (word, title, act) => h("button", { type: "button", class: "small", "aria-label": title, onclick: act }, word);
  const element = h(
    "figure",
    { class: "map-figure" },
    h(
      "div",
      { class: "map-bar" },
      shown,
      slider,
      h(
        "span",
        { class: "buttons" },
        button("−", "Zoom out: more blocks", () => map.zoom(0.5)),
        button("+", "Zoom in: fewer blocks", () => map.zoom(2)),
        button("In use", "Show the part in use", () => map.follow()),
        button("All", "Show all blocks", () => map.showAll()),
      ),
    ),
    canvas,
    legend ? mapLegend() : null,
    spoken,
    note,
    details,
  );
  return {
    element,
    map,
    draw(state) {
      map.draw(state);
      canvas.dataset.sequence = String(state.sequence);
      redrawTable();
    },
  };
}
