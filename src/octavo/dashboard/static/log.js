// The decision log: what the scheduler decided, in words, filterable by kind and by text.

import { count, fill, h, seconds } from "./dom.js";

const KEPT_MAX = 4000;
const SHOWN_MAX = 150;

export const MEANINGS = {
  Admitted: "A waiting request got a row of the block table and its first blocks.",
  Preempted: "A running request lost its blocks because an older one needed memory; it will be computed again, or wait in the second tier.",
  Refused: "A request that could never fit was turned away at the door.",
  Blocked: "The request at the queue's head did not fit although enough slots were free: they lie scattered.",
  Evicted: "Cached blocks lost their content to make room.",
  Spilled: "Content of evicted blocks went to the second tier, where it can still be found.",
  Damaged: "The second tier's file was not intact; the request computes those tokens again.",
  Forked: "A further answer or beam took over all blocks of another; nothing was computed or copied for it.",
  BeamsDecided: "A beam search, which follows several continuations at once, has found its answers.",
  Copied: "A shared block was copied because one of its holders is about to write into it.",
  Finished: "A request ended; its full blocks stay cached, to be found again.",
  AdmissionPaused: "Preemptions came so often that nobody is admitted for a while.",
  AdmissionResumed: "Admission goes on.",
};

/** The server's own request ids are long: eight digits tell them apart. */
export const shortened = (line) => line.replace(/\b(chatcmpl|cmpl)-([0-9a-f]{8})[0-9a-f]{24}/g, "$1-$2…");

/** `onPick(entry)`: an entry was chosen. */
export function logView({ onPick }) {
  const entries = [];
  let missing = 0;
  let shownTo = Infinity;
  let now = 0;
  const kind = h(
    "select",
    { id: "log-kind" },
    h("option", { value: "" }, "every kind"),
    Object.keys(MEANINGS).map((name) => h("option", { value: name }, name)),
  );
  const text = h("input", { type: "search", id: "log-text", placeholder: "a request, a number…" });
  const list = h("ol", { class: "log" });
  const total = h("p", { class: "hint" });
  kind.addEventListener("change", redraw);
  text.addEventListener("input", redraw);

  function matches(entry) {
    const words = text.value.trim().toLowerCase();
    return (
      entry.time <= shownTo &&
      (!kind.value || entry.kind === kind.value) &&
      (!words || entry.line.toLowerCase().includes(words))
    );
  }

  function row(entry) {
    const when = h("span", { class: "log-when" }, `${entry.step === null ? "–" : `step ${count(entry.step)}`}`);
    const act = h(
      "button",
      { type: "button", class: "log-line", dataset: { kind: entry.kind }, onclick: () => onPick(entry) },
      when,
      h("span", { class: `log-kind kind-${entry.kind}` }, entry.kind),
      h("span", { class: "log-text" }, shortened(entry.line)),
    );
    act.title = `${seconds(Math.max(0, now - entry.time))} ago: ${entry.line}`;
    return h("li", {}, act);
  }

  let drawn = null;
  function redraw() {
    const found = [];
    for (let i = entries.length - 1; i >= 0 && found.length < SHOWN_MAX; i--) if (matches(entries[i])) found.push(entries[i]);
    const same = drawn !== null && drawn.length === found.length && drawn.every((entry, i) => entry === found[i]);
    if (!same) {
      // A focused line stays where the reader is: rows are made anew only when the list has changed.
      const focused = list.contains(document.activeElement) ? document.activeElement.closest("li").entry : null;
      fill(list, found.map((entry) => Object.assign(row(entry), { entry })));
      if (focused) [...list.children].find((item) => item.entry === focused)?.firstChild.focus();
      drawn = found;
    }
    const note = missing ? `; ${count(missing)} more came too fast to be told` : "";
    total.textContent = entries.length
      ? `${count(entries.length)} decisions since the page was opened${note}. The newest is on top.`
      : "Nothing was decided since the page was opened.";
  }

  const element = h(
    "section",
    { class: "card", "aria-labelledby": "log-title" },
    h("h2", { id: "log-title" }, "Decision log"),
    h("p", { class: "hint" }, "Why each request was let in, turned away, set back or ended. Choose a line to see its moment and its blocks."),
    h(
      "div",
      { class: "log-filter" },
      h("label", { for: "log-kind" }, "Kind"),
      kind,
      h("label", { for: "log-text" }, "Containing"),
      text,
    ),
    h("div", { class: "scroll log-scroll", tabindex: "0", role: "region", "aria-label": "Decisions, newest first" }, list),
    total,
    h(
      "details",
      {},
      h("summary", {}, "What the kinds mean"),
      h("dl", {}, Object.entries(MEANINGS).map(([name, meaning]) => [h("dt", {}, name), h("dd", {}, meaning)])),
    ),
  );
  redraw();
  return {
    element,
    add(events, lost = 0) {
      entries.push(...events);
      missing += lost;
      entries.splice(0, Math.max(0, entries.length - KEPT_MAX));
    },
    /** Show what had been decided by `time`, as seen at `newest`. */
    draw(time, newest) {
      shownTo = time;
      now = newest;
      redraw();
    },
    clear() {
      entries.length = 0;
      missing = 0;
      redraw();
    },
  };
}

