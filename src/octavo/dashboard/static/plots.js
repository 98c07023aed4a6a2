// Plots by uPlot, which is installed from npm when the page is built; where it is absent every plot is its table alone.

import { fill, h, short } from "./dom.js";
import { HUES, themeColour } from "./palette.js";
import { config } from "./server.js";

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 2], [12, 6]];
let loading = null;

/** The uPlot class, or null where it is not installed. */
function library() {
  loading ??= load();
  return loading;
}

async function load() {
  if (!(await config()).plots) return null;
  const style = new URL("./vendor/uPlot.min.css", import.meta.url).href;
  document.head.prepend(h("link", { rel: "stylesheet", href: style }));
  return (await import("./vendor/uPlot.esm.js")).default;
}

/** Whether plots can be drawn. */
export const plotsAvailable = () => library().then((found) => found !== null);

/**
 * Lines over one axis. `series`: [{label, colour?, dash?}], colours and dashes by place unless given; `x`: {label, format?};
 * `unit`: of the values; `floor`/`ceiling`: what the vertical axis includes at least (or a fixed end).
 * Returns {element, set(xs, ...values), mark(x or null)}; `xs` and each of `values` are equally long arrays.
 */
export function plot({ title, sentence = "", series, x = { label: "" }, unit = "", height = 150, floor = 0, ceiling = null }) {
  const place = h("div", { class: "plot-place" });
  const rows = h("tbody");
  const table = h(
    "table",
    {},
    h("thead", {}, h("tr", {}, ["", "Now", "Least", "Most"].map((word) => h("th", { scope: "col" }, word)))),
    rows,
  );
  const details = h("details", { class: "plot-numbers" }, h("summary", {}, `${title} in numbers`), table);
  const element = h(
    "figure",
    { class: "plot" },
    h("figcaption", {}, h("strong", {}, title), unit ? ` (${unit})` : "", sentence ? h("span", { class: "hint" }, ` ${sentence}`) : null),
    place,
    details,
  );
  let chart = null;
  let data = [[], ...series.map(() => [])];
  let marked = null;

  function redrawTable() {
    if (!details.open) return;
    fill(
      rows,
      series.map(({ label }, i) => {
        const values = data[i + 1].filter(Number.isFinite);
        const figures = values.length ? [data[i + 1].at(-1), Math.min(...values), Math.max(...values)] : [NaN, NaN, NaN];
        return h("tr", {}, h("th", { scope: "row" }, label), figures.map((value) => h("td", {}, short(value ?? NaN))));
      }),
    );
  }

  function options(UPlot) {
    const axis = { stroke: () => themeColour("--ink-soft"), grid: { stroke: () => themeColour("--line"), width: 1 }, ticks: { show: false } };
    return {
      width: Math.max(200, place.clientWidth),
      height,
      legend: { show: true, live: true, markers: { width: 3 } },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: {
        x: { time: false },
        y: { range: (_, low, high) => [Math.min(floor, low ?? 0), ceiling ?? Math.max(high ?? 1, floor + 1e-9) * 1.05] },
      },
      axes: [
        { ...axis, label: null, values: (_, ticks) => ticks.map(x.format ?? short), size: 24, space: 60 },
        { ...axis, values: (_, ticks) => ticks.map(tick), size: 52 },
      ],
      series: [
        { label: x.label || "x", value: (_, value) => (value === null ? "–" : (x.format ?? short)(value)) },
        ...series.map(({ label, colour, dash }, i) => ({
          label,
          stroke: colour ?? HUES[i % HUES.length],
          width: 2,
          dash: dash ?? DASHES[i % DASHES.length],
          points: { show: false },
          value: (_, value) => (value === null || value === undefined ? "–" : short(value)),
        })),
      ],
      hooks: { draw: [(u) => drawMark(u, UPlot)] },
    };
  }

  function drawMark(u) {
    if (marked === null) return;
    const at = Math.round(u.valToPos(marked, "x", true));
    u.ctx.save();
    u.ctx.strokeStyle = themeColour("--map-mark");
    u.ctx.lineWidth = 2;
    u.ctx.beginPath();
    u.ctx.moveTo(at, u.bbox.top);
    u.ctx.lineTo(at, u.bbox.top + u.bbox.height);
    u.ctx.stroke();
    u.ctx.restore();
  }

  library().then((UPlot) => {
    if (UPlot === null) {
      fill(place, h("p", { class: "hint" }, "The plot library is not installed here, so this is a table: “make page” installs it."));
      details.open = true;
      redrawTable();
      return;
    }
    const draw = () => {
      if (chart === null && place.clientWidth > 0) chart = new UPlot(options(UPlot), data, place);
      else chart?.setSize({ width: place.clientWidth, height });
    };
    new ResizeObserver(draw).observe(place);
    document.addEventListener("octavo-theme", () => chart?.redraw(false, true));
    draw();
  });
  details.addEventListener("toggle", redrawTable);

  return {
    element,
    set(xs, ...values) {
      data = [xs, ...values];
      chart?.setData(data);
      // Where the pointer is elsewhere the legend tells the newest values.
      if (chart && chart.cursor.left < 0 && xs.length) chart.setLegend({ idx: xs.length - 1 });
      redrawTable();
    },
    /** A vertical line at this x. */
    mark(value) {
      if (value === marked) return;
      marked = value;
      chart?.redraw(false);
    },
  };
}

function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${value / 1e6}M`;
  if (size >= 1e4) return `${value / 1e3}k`;
  return String(Number(value.toPrecision(3)));
}
