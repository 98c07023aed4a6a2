// Live: the running server's pool, its requests, its figures and its decisions; now, or some moments ago.

import { chatView } from "./chat.js";
import { connect } from "./connection.js";
import { count, fill, h, seconds, term } from "./dom.js";
import { PoolState } from "./frames.js";
import { History } from "./history.js";
import { figuresView } from "./live_figures.js";
import { logView, shortened } from "./log.js";
import { mapView } from "./map_view.js";
import { requestsView } from "./requests.js";

const PLOT_EVERY_MS = 500;
const LEAVING = new Set(["Preempted", "Finished"]);
const STATES = { connected: "Connected", connecting: "Connecting…", lost: "Connection lost; trying again…" };

export function mount(panel, { config }) {
  const newest = new PoolState();
  const history = new History();
  let boot = null;
  let moment = null; // what is shown; null: the newest
  let shown = newest;
  let lastPlots = 0;
  const focus = makeFocus();

  const map = mapView({ label: "Memory map", onSelect: (block) => pick(shown.owner[block] || null) });
  const requests = requestsView({ onPick: pick, isMine: focus.isMine });
  const log = logView({ onPick: goTo });
  const figures = figuresView();
  const chat = chatView({ model: config.model, onRequest: focusMine, onEnd: () => draw() });
  const time = timeBar();
  const focusNote = h("p", { class: "focus-note" });

  layout(panel, { map, requests, log, figures, chat, time, focusNote, config });
  connect("page/feed", { onFrame, onState });
  document.addEventListener("visibilitychange", () => draw());

  // ---------------------------------------------------------------- frames

  function onFrame(frame, size) {
    if (frame.boot && frame.boot !== boot) {
      if (boot !== null) startAfresh();
      boot = frame.boot;
    }
    if (!newest.apply(frame)) return false;
    history.add(frame, newest, size);
    log.add(frame.log, frame.log_missing);
    focus.learn(newest);
    if (moment !== null && moment < history.first) moment = history.first;
    draw();
    return true;
  }

  function startAfresh() {
    history.clear();
    log.clear();
    focus.clear();
    moment = null;
  }

  function onState(word) {
    const place = document.getElementById("connection");
    place.textContent = STATES[word];
    place.dataset.state = word;
  }

  // ---------------------------------------------------------------- drawing

  function draw() {
    if (!newest.ready || panel.hidden || document.hidden) return;
    if (moment === null) shown = newest;
    map.map.highlight(focus.blocks(shown));
    map.draw(shown);
    requests.draw(shown);
    log.draw(shown.time, newest.time);
    time.draw();
    figures.tiles(history.pointAt(moment ?? history.last), shown);
    focusNote.textContent = focus.sentence(shown);
    if (performance.now() - lastPlots >= PLOT_EVERY_MS || moment !== null) {
      lastPlots = performance.now();
      figures.plots(history.figures.points, newest.time, moment === null ? null : shown.time);
    }
  }

  function showMoment(wanted) {
    moment = wanted;
    if (wanted !== null) shown = history.stateAt(wanted);
    draw();
  }

  function pick(number) {
    requests.pick(number);
    focus.pick(number);
    draw();
    if (number !== null) showMap();
  }

  /** What lights up should be seen: on a small screen the map may be far above. */
  function showMap() {
    if (map.element.getBoundingClientRect().bottom < 120) map.element.scrollIntoView({ block: "start" });
  }

  function focusMine(id) {
    requests.pick(null);
    focus.mine(id);
    draw();
  }

  /** The moment of a decision, with the blocks that it was about. */
  function goTo(entry) {
    const at = history.momentOf(entry.time);
    showMoment(at);
    let blocks = entry.blocks ?? null;
    if (LEAVING.has(entry.kind)) {
      // Who has just lost its blocks is shown where they were, and what became of them.
      const before = history.stateAt(at - 1);
      blocks = before.numbersOf(entry.request).flatMap((number) => before.table(number));
    }
    const number = entry.request === null ? null : shown.numberOf(entry.request);
    requests.pick(number);
    if (blocks?.length) focus.pin(blocks, entry.line);
    else focus.pick(number);
    draw();
    showMap();
  }

  // ---------------------------------------------------------------- time

  function timeBar() {
    const pause = h("button", { type: "button", "aria-pressed": "false", onclick: () => showMoment(moment === null ? history.last : null) }, "Pause");
    const slider = h("input", { type: "range", id: "moment", min: "0", max: "0", value: "0", "aria-label": "Moment shown, from the oldest kept to now" });
    const back = h("button", { type: "button", class: "small", "aria-label": "One moment earlier", onclick: () => step(-1) }, "◀");
    const on = h("button", { type: "button", class: "small", "aria-label": "One moment later", onclick: () => step(1) }, "▶");
    const words = h("span", { class: "map-shown", id: "moment-words" });
    slider.addEventListener("input", () => showMoment(Number(slider.value)));
    const step = (by) => showMoment(Math.max(history.first, Math.min(history.last, (moment ?? history.last) + by)));
    return {
      element: h("div", { class: "time-bar" }, pause, back, slider, on, words),
      draw() {
        const at = moment ?? history.last;
        pause.textContent = moment === null ? "Pause" : "Back to now";
        pause.setAttribute("aria-pressed", String(moment !== null));
        slider.min = String(history.first);
        slider.max = String(history.last);
        slider.value = String(at);
        const ago = seconds(Math.max(0, newest.time - shown.time));
        const step = shown.step === null ? "before the first step" : `step ${count(shown.step)}`;
        words.textContent = moment === null ? `now, ${step}` : `${ago} ago, ${step}`;
        slider.setAttribute("aria-valuetext", words.textContent);
      },
    };
  }

  return { show: draw };
}

/** Which blocks are lit up: those of a chosen request, of one's own questions, or of an event. */
function makeFocus() {
  const mine = new Map(); // request id -> Map block -> hash, as last seen
  let chosen = null; // number of a request
  let pinned = null; // {blocks, line}
  let latest = null; // own request id

  const held = (state, id) => [...new Set(state.numbersOf(id).flatMap((number) => state.table(number)))];
  /** Own blocks of an ended request that still hold what they held. */
  const kept = (state, id) => {
    const same = ([block, hash]) => hash !== null && state.hash(block) === hash;
    return [...(mine.get(id) ?? [])].filter(same).map(([block]) => block);
  };
  const own = (state, id) => {
    const now = held(state, id);
    return now.length ? now : kept(state, id);
  };
  return {
    isMine: (id) => [...mine.keys()].some((own) => id === own || id.startsWith(`${own}-`)),
    mine(id) {
      mine.set(id, new Map());
      [chosen, pinned, latest] = [null, null, id];
    },
    learn(state) {
      for (const [id, blocks] of mine) {
        const table = held(state, id);
        if (!table.length) continue;
        blocks.clear();
        for (const block of table) blocks.set(block, state.hash(block));
      }
    },
    pick(number) {
      [chosen, pinned] = [number, null];
      if (number === null) latest = null;
    },
    pin(blocks, line) {
      [chosen, pinned] = [null, { blocks, line }];
    },
    clear() {
      mine.clear();
      [chosen, pinned, latest] = [null, null, null];
    },
    blocks(state) {
      if (pinned) return pinned.blocks;
      if (chosen !== null) return state.table(chosen);
      if (latest === null) return null;
      const blocks = own(state, latest);
      return blocks.length ? blocks : null;
    },
    sentence(state) {
      if (pinned) return `Lit up: the blocks of “${shortened(pinned.line)}”. Choose a free block to let go.`;
      if (chosen !== null) {
        if (!state.requests.has(chosen)) return "The chosen request is not here at this moment.";
        return `Lit up: the ${count(state.table(chosen).length)} blocks of request ${state.nameOf(chosen)}.`;
      }
      if (latest === null) return "";
      const now = held(state, latest);
      if (now.length) return `Lit up: the ${count(now.length)} blocks of your question, ${count(now.filter((block) => state.refs[block] > 1).length)} of them shared.`;
      const rest = kept(state, latest);
      return rest.length ? `Lit up: ${count(rest.length)} blocks of your last answer; it has ended, and they can still be found.` : "";
    },
  };
}

function layout(panel, { map, requests, log, figures, chat, time, focusNote, config }) {
  const block = term("block", "Room for the keys and values of a few neighbouring tokens: the unit in which memory is handed out.");
  const pool = term("pool", "All blocks together: the memory that this server set aside for keys and values when it started.");
  fill(
    panel,
    h(
      "div",
      { class: "live" },
      h(
        "section",
        { class: "card live-map", "aria-labelledby": "map-title" },
        h("h2", { id: "map-title" }, "Memory map"),
        h("p", { class: "hint" }, "Each cell is a ", block, " of the ", pool, `; its colour says which request of ${config.model} holds it.`),
        time.element,
        map.element,
        focusNote,
      ),
      chat.element,
      h("div", { class: "wide two" }, requests.element, log.element),
      h("div", { class: "wide" }, figures.tilesElement),
      h("div", { class: "wide" }, figures.plotsElement),
    ),
  );
}
