// Running and waiting requests with their block tables.

import { count, fill, h, plural, term } from "./dom.js";
import { FINDABLE, SHARED } from "./frames.js";
import { look, lookName } from "./palette.js";

const ROWS_MAX = 60;
const TABLE_MAX = 600;

export function swatch(number) {
  const { hue, pattern } = look(number);
  return h("span", { class: "swatch", dataset: { hue: String(hue), pattern: String(pattern) }, "aria-hidden": "true" });
}

/** `onPick(number or null)`: a request was chosen, or let go. `isMine(id)`: whether the chat box asked it. */
export function requestsView({ onPick, isMine }) {
  const rows = new Map();
  const body = h("tbody");
  const summary = h("p", { class: "hint" });
  const waiting = h("p");
  const chosen = h("div", { class: "block-table" });
  let picked = null;

  const head = [
    ["Request", "A question to the model on its way to an answer. Its colour is that of its blocks in the map."],
    ["Prompt", "Tokens of the question. A token is a word or a piece of one."],
    ["From pool", "Tokens of the prompt that were found in the pool, so that they were not computed again."],
    ["Computed", "Tokens whose keys and values are in the pool now."],
    ["Answer", "Tokens generated so far."],
    ["Blocks", "Entries of its block table: the list that says which block holds which part of its text."],
    ["Preempted", "How often it lost its blocks to an older request and had to be computed again."],
  ];

  function makeRow(request) {
    const cells = Array.from({ length: 6 }, () => h("td", { class: "number" }));
    const button = h(
      "button",
      { type: "button", class: "small", "aria-pressed": "false", onclick: () => onPick(picked === request.number ? null : request.number) },
      swatch(request.number),
      ` ${request.name}`,
      isMine(request.id) ? " (yours)" : "",
    );
    button.title = request.id;
    button.setAttribute("aria-label", `Request ${request.name}, ${lookName(request.number)}${isMine(request.id) ? ", yours" : ""}`);
    const row = { line: h("tr", {}, h("th", { scope: "row" }, button), cells), cells, button };
    rows.set(request.number, row);
    return row;
  }

  function drawRunning(state) {
    const here = new Set();
    state.running.slice(0, ROWS_MAX).forEach(({ number, computed, known, blocks }, place) => {
      const request = state.requests.get(number) ?? { number, name: String(number), id: "", prompt: 0, cached: 0, preemptions: 0 };
      here.add(number);
      const row = rows.get(number) ?? makeRow(request);
      const values = [request.prompt, request.cached, computed, known - request.prompt, blocks, request.preemptions];
      values.forEach((value, i) => {
        const text = count(value);
        if (row.cells[i].textContent !== text) row.cells[i].textContent = text;
      });
      row.button.setAttribute("aria-pressed", String(number === picked));
      if (body.children[place] !== row.line) body.insertBefore(row.line, body.children[place] ?? null);
    });
    for (const [number, row] of rows) {
      if (here.has(number)) continue;
      row.line.remove();
      rows.delete(number);
    }
  }

  function drawTable(state) {
    const running = state.running.find(({ number }) => number === picked);
    if (!running) {
      if (chosen.childElementCount || chosen.textContent) fill(chosen);
      return;
    }
    const table = state.table(picked);
    const shared = table.filter((block) => state.flags[block] & SHARED).length;
    // Made anew only when it has changed: a pointer or a screen reader may be in it.
    const key = `${picked} ${shared} ${table.join()}`;
    if (chosen.dataset.key === key && chosen.childElementCount) return;
    chosen.dataset.key = key;
    fill(
      chosen,
      h("h3", {}, `Block table of request ${state.nameOf(picked)}`),
      h(
        "p",
        { class: "hint" },
        `Its text, ${state.pool.block_size} tokens a block, lies in these blocks of the pool; ${count(shared)} of ${plural(table.length, "block")} shared with others (marked ◥).`,
      ),
      h(
        "ol",
        { class: "entries", start: "0" },
        table.slice(0, TABLE_MAX).map((block) => {
          const flag = state.flags[block];
          const kinds = `${flag & SHARED ? " shared" : ""}${flag & FINDABLE ? " findable" : ""}`;
          return h("li", { class: kinds.trim() }, `${block}${flag & SHARED ? " ◥" : ""}`);
        }),
      ),
      table.length > TABLE_MAX ? h("p", { class: "hint" }, `and ${count(table.length - TABLE_MAX)} more`) : null,
    );
  }

  const element = h(
    "section",
    { class: "card", "aria-labelledby": "requests-title" },
    h("h2", { id: "requests-title" }, "Requests"),
    h("p", { class: "hint" }, "Who holds the blocks. Choose a request to light up its blocks in the map."),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Running requests" },
      h(
        "table",
        {},
        h("caption", { class: "unseen" }, "Running requests, the oldest first"),
        h("thead", {}, h("tr", {}, head.map(([word, meaning], i) => h("th", { scope: "col", class: i ? "number" : "" }, term(word, meaning))))),
        body,
      ),
    ),
    summary,
    waiting,
    chosen,
  );
  return {
    element,
    draw(state) {
      drawRunning(state);
      drawTable(state);
      const more = state.running.length - ROWS_MAX;
      summary.textContent = state.running.length
        ? `${plural(state.running.length, "request")} running${more > 0 ? `; ${count(more)} are not listed` : ""}.`
        : "No request is running: ask the model something.";
      const { number, count: all } = state.waiting;
      const names = number.slice(0, 12).map((n) => `${state.nameOf(n)} (${count(state.requests.get(n)?.prompt ?? 0)} tokens)`);
      waiting.textContent = all ? `${count(all)} waiting for room: ${names.join(", ")}${all > names.length ? "…" : ""}` : "Nobody waits.";
    },
    pick(number) {
      picked = number;
    },
  };
}
