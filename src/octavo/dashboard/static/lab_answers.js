// What each of the three policies makes of the controls: whole runs, told first from fewer steps where they take long.

import { count, fill, h, percent, plural, term } from "./dom.js";
import { POLICIES, TERMS, mebibytes, policyName } from "./lab_words.js";

const NAMES = ["reserved", "oracle", "paged"];
const PATIENCE_MS = 150;
const PARTS = ["written", "reserved", "internal", "external"];

const ROWS = [
  ["sequences", (line) => count(Math.round(line.tokens_per_step))],
  ["tokens", (line) => line.tokens_per_step.toFixed(1)],
  ["slowed", (line) => line.slowed_tokens_per_step.toFixed(1)],
  ["effective", (line) => `${line.effective.toFixed(1)} %`],
  ["reserved", (line) => percent(line.reserved / line.slots)],
  ["internal", (line) => percent(line.internal / line.slots)],
  ["external", (line) => percent(line.external / line.slots)],
  ["empty", (line) => mebibytes(line.empty_mib)],
  ["preemptions", (line) => count(line.preemptions)],
  ["discarded", (line) => count(line.discarded_tokens)],
  ["blocked", (line) => count(line.blocked_steps)],
  ["table", (line) => (line.table_mib ? mebibytes(line.table_mib) : "none")],
  ["shared", (line) => (line.shared_tokens ? plural(line.shared_tokens, "token") : "none")],
];

/** The lines of a response, as they come. */
async function* linesOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

/**
 * `ask(values, signal)` resolves to the response of the server; `complain(error or null)`: it refused the controls.
 * Returns {element, numbers, request(values)}: call it with every move; the latest one wins.
 */
export function answersView({ ask, complain, steps, warmup }) {
  const cards = new Map(NAMES.map((name) => [name, makeCard(name)]));
  const state = h("p", { class: "hint", role: "status" });
  const element = h(
    "section",
    { class: "card lab-answers", "aria-labelledby": "lab-answers-title" },
    h("h2", { id: "lab-answers-title" }, "Three answers"),
    h(
      "p",
      { class: "hint" },
      "A queue that is never empty, one pool, three ways to hand it out: who gets most work done? Means over ",
      `${count(steps - warmup)} steps, after ${count(warmup)} to warm up.`,
    ),
    h("div", { class: "lab-cards" }, [...cards.values()].map((card) => card.element)),
    h("div", { class: "lab-under" }, legend(), state),
  );
  const numbers = h(
    "section",
    { class: "card", "aria-labelledby": "lab-figures-title" },
    h("h2", { id: "lab-figures-title" }, "The answers in numbers"),
    h("p", { class: "hint" }, "Every figure of the three runs; shares are of the whole pool. Choose a word to see what it means."),
    figures(cards),
  );
  let latest = null; // {values, began, controller, shown}
  let coming = null;
  let timer = null;

  function request(values) {
    coming = { values, asked: performance.now() };
    // While a slider is dragged each answer gets a moment to appear before the next question ends it.
    if (latest !== null && !latest.shown) {
      timer ??= setTimeout(next, Math.max(0, latest.began + PATIENCE_MS - performance.now()));
    } else next();
  }

  function next() {
    clearTimeout(timer);
    timer = null;
    if (coming === null) return;
    latest?.controller.abort();
    const now = { ...coming, began: performance.now(), controller: new AbortController(), shown: false };
    coming = null;
    latest = now;
    element.setAttribute("aria-busy", "true");
    answer(now)
      .catch((error) => {
        if (error.name !== "AbortError" && latest === now) state.textContent = `No answer: ${error.message}`;
      })
      .finally(() => {
        if (latest !== now) return;
        latest = null;
        if (coming !== null) next();
        else element.setAttribute("aria-busy", "false");
      });
  }

  async function answer(now) {
    const response = await ask(now.values, now.controller.signal);
    if (!response.ok) {
      const { error } = await response.json();
      if (latest === now) complain(error);
      now.shown = true;
      return;
    }
    let complete = 0;
    const seen = new Set();
    delete element.dataset.first;
    for await (const line of linesOf(response)) {
      if (latest !== now) return;
      if (line.error) throw new Error(line.error.message);
      complain(null);
      const ms = Math.round(performance.now() - now.asked);
      now.shown = true;
      seen.add(line.policy);
      // Read by those who measure: when every card showed something of these controls.
      if (seen.size === NAMES.length) element.dataset.first ??= String(ms);
      complete += line.complete ? 1 : 0;
      cards.get(line.policy).show(line);
      compare(cards);
      if (complete === 0) continue;
      state.textContent =
        complete < NAMES.length ? "Still running…" : `Three runs of ${count(steps)} steps by the scheduler itself; redrawn after ${ms} ms.`;
      if (complete === NAMES.length) Object.assign(element.dataset, { ms, answered: Number(element.dataset.answered ?? 0) + 1 });
    }
  }

  return { element, numbers, request };
}

function makeCard(name) {
  const value = h("strong", { class: "lab-value" }, "–");
  const sentence = h("p", {});
  const early = h("p", { class: "lab-early", hidden: true });
  const bar = h("div", { class: "lab-bar", role: "img", "aria-label": "How the pool is used" });
  const times = h("span", { class: "lab-times" });
  const element = h(
    "article",
    { class: "lab-card", dataset: { policy: name } },
    h("h3", {}, term(policyName(name), POLICIES[name].meaning)),
    h("p", {}, value, " tokens a step ", times),
    bar,
    sentence,
    early,
  );
  const card = { name, element, line: null, cells: new Map(), times };
  card.show = (line) => {
    card.line = line;
    element.dataset.complete = String(line.complete);
    element.dataset.tokens = String(line.tokens_per_step);
    element.dataset.effective = String(line.effective);
    value.textContent = line.tokens_per_step.toFixed(1);
    sentence.textContent = `${plural(Math.round(line.tokens_per_step), "sequence")} at once, ${line.effective.toFixed(1)} % effective.`;
    early.hidden = line.complete;
    early.textContent = `From the first ${count(line.steps)} steps; the whole run is coming.`;
    const shares = PARTS.map((part) => line[part] / line.slots);
    bar.setAttribute("aria-label", `Of the pool: ${PARTS.map((part, i) => `${percent(shares[i])} ${TERMS[part][0]}`).join(", ")}`);
    fill(
      bar,
      PARTS.map((part, i) => {
        const piece = h("span", { class: `lab-part ${part}` });
        piece.style.width = `${100 * shares[i]}%`;
        return piece;
      }),
    );
    for (const [key, text] of ROWS) card.cells.get(key).textContent = text(line);
  };
  return card;
}

/** How many times the contiguous policy's tokens the others get. */
function compare(cards) {
  const base = cards.get("reserved").line;
  for (const card of cards.values()) {
    const factor = base && card.line ? card.line.tokens_per_step / base.tokens_per_step : NaN;
    card.times.textContent = card.name === "reserved" || !Number.isFinite(factor) ? "" : `${factor.toFixed(1)} × contiguous`;
  }
}

function legend() {
  return h(
    "ul",
    { class: "legend" },
    PARTS.map((part) => h("li", {}, h("span", { class: `swatch lab-part ${part}`, "aria-hidden": "true" }), term(...TERMS[part]))),
    h("li", {}, h("span", { class: "swatch", "aria-hidden": "true" }), term("Free", "Slots that the next request can have.")),
  );
}

function figures(cards) {
  const list = [...cards.values()];
  return h(
    "div",
    { class: "lab-scroll", tabindex: "0", role: "region", "aria-label": "All figures of the three policies" },
    h(
      "table",
      { class: "lab-figures" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Figure"), list.map(({ name }) => h("th", { scope: "col", class: "number" }, policyName(name))))),
      h(
        "tbody",
        {},
        ROWS.map(([key]) =>
          h(
            "tr",
            { dataset: { figure: key } },
            h("th", { scope: "row" }, term(...TERMS[key])),
            list.map((card) => {
              const cell = h("td", { class: "number", dataset: { policy: card.name } }, "–");
              card.cells.set(key, cell);
              return cell;
            }),
          ),
        ),
      ),
    ),
  );
}
