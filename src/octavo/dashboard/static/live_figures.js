// The figures of a pool: tiles for the moment, plots for the last minutes, and why prompts were not found.

import { count, fill, h, percent, plural, seconds, short, term } from "./dom.js";
import { plot } from "./plots.js";

const POINTS_MAX = 600;

const WASTES = {
  internal: "Slots inside a request's blocks that none of its tokens can fill: the rest of a last block, rounding.",
  reserved: "Slots set aside for tokens that a request may still write. Paging sets none aside.",
  external: "Free slots that the next request cannot use because they do not lie side by side. Paging has none.",
};
const MISSES = {
  never_seen: "that nobody had computed",
  unknown: "that nobody had computed, or that were evicted too long ago to tell",
  other_salt: "that are there for somebody else's texts alone",
  evicted: "that were there and had made room for others",
  being_computed: "that a running request was about to compute",
  behind_a_miss: "that were there, behind one that was not: blocks are found from the front",
  not_looked_up: "that were not looked for",
};

const ago = (value) => (Math.abs(value) < 0.05 ? "now" : `${short(value).replace("-", "−").replace(/\.0+$/, "")} s`);

export function figuresView() {
  const tiles = h("dl", { class: "tiles" });
  const misses = h("p", { class: "hint" });
  const x = { label: "at", format: ago };
  const charts = [
    plot({
      title: "Blocks",
      unit: "blocks",
      sentence: "Held by requests, kept to be found again, or empty: they always sum to the pool.",
      series: [{ label: "live" }, { label: "cached" }, { label: "free" }],
      x,
    }),
    plot({
      title: "Wasted slots",
      unit: "slots",
      sentence: "Room for tokens that is taken or unusable and holds none.",
      series: [{ label: "internal" }, { label: "reserved" }, { label: "external" }],
      x,
    }),
    plot({ title: "Speed", unit: "tokens a second", sentence: "Tokens generated for all requests together.", series: [{ label: "generated" }], x }),
    plot({ title: "Time to the first token", unit: "seconds", sentence: "Mean of the last ten seconds; gaps where nobody asked.", series: [{ label: "mean" }], x }),
    plot({ title: "Found in the pool", unit: "% of prompt tokens", sentence: "Since the start: what prompts needed not be computed again.", series: [{ label: "found" }], ceiling: 100, x }),
    plot({ title: "Requests and preemptions", unit: "count", sentence: "Running, waiting, and how often one was set back since the start.", series: [{ label: "running" }, { label: "waiting" }, { label: "preemptions" }], x }),
  ];
  const names = {};

  function tile(key, word, meaning) {
    const value = h("dd", {});
    names[key] = value;
    return h("div", {}, h("dt", {}, term(word, meaning)), value);
  }
  fill(
    tiles,
    tile("blocks", "Live, cached, free", "Blocks held by requests; held by nobody, but still to be found; empty. They sum to the pool."),
    tile("speed", "Tokens a second", "Generated for all requests together, over the last two seconds."),
    tile("ttft", "First token after", "How long a question waited for its first token: the mean of the last ten seconds."),
    tile("hits", "Found in the pool", "Share of all prompt tokens since the start whose keys and values were still there."),
    tile("requests", "Running, waiting", "Requests that hold blocks, and requests that wait for room."),
    tile("preemptions", "Preemptions", "How often since the start a running request lost its blocks to an older one."),
    tile("internal", "Internal waste", WASTES.internal),
    tile("reserved", "Reserved waste", WASTES.reserved),
    tile("external", "External waste", WASTES.external),
  );

  const set = (key, text) => {
    if (names[key].textContent !== text) names[key].textContent = text;
  };

  return {
    tilesElement: h(
      "section",
      { class: "card", "aria-labelledby": "tiles-title" },
      h("h2", { id: "tiles-title" }, "Figures of the moment"),
      h("p", { class: "hint" }, "How full the pool is, how fast answers come, and what memory holds nothing of use."),
      tiles,
      misses,
    ),
    plotsElement: h(
      "section",
      { class: "card", "aria-labelledby": "plots-title" },
      h("h2", { id: "plots-title" }, "The last minutes"),
      h("p", { class: "hint" }, "From the moment this page was opened, five minutes at most."),
      h("div", { class: "plots" }, charts.map((chart) => chart.element)),
    ),

    tiles(point, state) {
      if (!point) return;
      set("blocks", `${count(point.live)}, ${count(point.cached)}, ${count(point.free)}`);
      set("speed", short(point.tokensPerSecond));
      set("ttft", point.ttft === null ? "–" : seconds(point.ttft));
      set("hits", point.hitRate === null ? "–" : percent(point.hitRate));
      set("requests", `${count(point.running)}, ${count(point.waiting)}`);
      set("preemptions", count(point.preemptions));
      for (const kind of Object.keys(WASTES)) set(kind, `${count(point[kind])} slots`);
      const text = whyNotFound(state.figures);
      if (misses.textContent !== text) misses.textContent = text;
    },

    /** `mark`: the time that is shown, or null for now. */
    plots(points, now, mark) {
      const step = Math.ceil(points.length / POINTS_MAX) || 1;
      const some = points.filter((_, i) => (points.length - 1 - i) % step === 0);
      const of = (key) => some.map((point) => point[key]);
      const xs = some.map((point) => point.time - now);
      const lines = [
        [of("live"), of("cached"), of("free")],
        [of("internal"), of("reserved"), of("external")],
        [of("tokensPerSecond")],
        [of("ttft")],
        [some.map((point) => (point.hitRate === null ? null : 100 * point.hitRate))],
        [of("running"), of("waiting"), of("preemptions")],
      ];
      charts.forEach((chart, i) => {
        chart.mark(mark === null ? null : mark - now);
        chart.set(xs, ...lines[i]);
      });
    },
  };
}

/** "Whole blocks of prompts since the start: 4 found; 12 that nobody had computed; …" */
function whyNotFound({ lookups, totals }) {
  if (!lookups?.blocks) return "";
  const some = Object.entries(lookups.misses).filter(([, blocks]) => blocks > 0);
  const parts = some.map(([kind, blocks]) => `${count(blocks)} ${MISSES[kind] ?? kind.replaceAll("_", " ")}`);
  const rest = totals.misses?.partial_block ?? 0;
  const behind = rest ? ` ${plural(rest, "token")} lay behind the last whole block, which cannot be found.` : "";
  const missed = parts.length ? `; not found: ${parts.join("; ")}` : "";
  return `Of ${plural(lookups.blocks, "whole block")} of prompts since the start, ${count(lookups.hits)} found in the pool${missed}.${behind}`;
}
