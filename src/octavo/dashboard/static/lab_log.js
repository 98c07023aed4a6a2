// The decisions of a run in the lab, newest first.

import { count, fill, h } from "./dom.js";
import { policyName } from "./lab_words.js";

const KEPT_MAX = 2000;
const SHOWN_MAX = 100;
const EVERYDAY = new Set(["Admitted", "Finished", "Forked", "Copied"]);

/** Returns {element, add(policy, entries, missing), clear()}. */
export function labLog() {
  const entries = [];
  let missing = 0;
  const everyday = h("input", { type: "checkbox", id: "lab-log-everyday", onchange: draw });
  const list = h("ol", { class: "lab-log-lines" });
  const note = h("p", { class: "hint" });
  const element = h(
    "section",
    { class: "card lab-log", "aria-labelledby": "lab-log-title" },
    h("h3", { id: "lab-log-title" }, "Decision log"),
    h("label", { class: "lab-check" }, everyday, "admissions and ends too"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Decisions, newest first" }, list),
    note,
  );

  function draw() {
    const found = [];
    for (let i = entries.length - 1; i >= 0 && found.length < SHOWN_MAX; i--) {
      if (everyday.checked || !EVERYDAY.has(entries[i].kind)) found.push(entries[i]);
    }
    fill(
      list,
      found.map((entry) =>
        h(
          "li",
          { dataset: { kind: entry.kind, policy: entry.policy } },
          h("span", { class: "hint" }, `step ${count((entry.step ?? 0) + 1)}, ${policyName(entry.policy)}: `),
          entry.line,
        ),
      ),
    );
    const lost = missing ? `; ${count(missing)} more came in one go and are not told` : "";
    note.textContent = found.length
      ? `${count(entries.length)} decisions${lost}.`
      : `Nobody was preempted, evicted or kept out by scattered memory so far; ${count(entries.length)} admissions and ends${lost}.`;
  }

  return {
    element,
    add(policy, news, lost) {
      for (const entry of news) entries.push({ ...entry, policy });
      entries.splice(0, Math.max(0, entries.length - KEPT_MAX));
      missing += lost;
      draw();
    },
    clear() {
      entries.length = missing = 0;
      draw();
    },
  };
}
