// A run that is watched step by step: one map or two, the same steps for both. The server keeps the run and makes the steps.

import { count, fill, h, percent, plural, term } from "./dom.js";
import { PoolState } from "./frames.js";
import { facts } from "./lab_form.js";
import { labLog } from "./lab_log.js";
import { POLICIES, TERMS, policyName } from "./lab_words.js";
import { mapLegend, mapView } from "./map_view.js";

const JUMP_MAX = 500;
const TICK_MS = 100;
export const SPEEDS = [1, 2, 5, 10, 20, 50, 100, 200, 500];

const ROWS = [
  [["Sequences now", TERMS.sequences[1]], (side) => count(side.now.sequences)],
  [["Waiting now", "Requests in the queue; it is kept long, so that memory is always wanted."], (side) => count(side.now.waiting)],
  [["Tokens a step, so far", "The mean since the first step, discarded ones taken off."], (side) => side.so_far.tokens_per_step.toFixed(1)],
  [["Effective now", TERMS.effective[1]], (side) => `${side.now.effective.toFixed(1)} %`],
  [["Effective so far", TERMS.effective[1]], (side) => `${side.so_far.effective.toFixed(1)} %`],
  [["Reserved now", TERMS.reserved[1]], (side) => share(side, "reserved")],
  [["Internal waste now", TERMS.internal[1]], (side) => share(side, "internal")],
  [["External waste now", TERMS.external[1]], (side) => share(side, "external")],
  [["Preemptions so far", TERMS.preemptions[1]], (side) => count(side.so_far.preemptions)],
  [["Discarded so far", TERMS.discarded[1]], (side) => plural(side.so_far.discarded_tokens, "token")],
  [["Steps blocked so far", TERMS.blocked[1]], (side) => count(side.so_far.blocked_steps)],
];

const slotsOf = (side) => side.frame.pool.total * side.frame.pool.block_size;
const share = (side, name) => percent(side.now[name] / slotsOf(side));

/**
 * `server`: {open(source), frames(session, steps, whole), close(session)}, each a promise of a response.
 * `onMove({step, speed, playing})`: the reader moved it. `complain(error)`: a source was refused.
 * Returns {element, open(source, step), setSpeed(value), pause()}.
 */
export function playerView({ server, onMove, complain, steps }) {
  const log = labLog();
  const maps = h("div", { class: "lab-maps" });
  const readouts = h("div", { class: "lab-scroll", tabindex: "0", role: "region", "aria-label": "Read-outs of the run" });
  const about = h("dl", { class: "lab-about", hidden: true });
  const differs = h("p", { class: "lab-complaint", role: "alert", hidden: true });
  const place = h("output", { class: "lab-step", for: "lab-seek" });
  const play = button("Play", () => (playing ? pause(true) : start()), "primary");
  const seekSlider = h("input", {
    type: "range",
    id: "lab-seek",
    min: 0,
    max: steps,
    step: 1,
    "aria-label": "Step of the run",
    oninput: () => seek(Number(seekSlider.value)),
    onchange: () => onMove({ step: Number(seekSlider.value), done: true }),
  });
  const speed = h(
    "select",
    { id: "lab-speed", onchange: () => onMove({ speed: Number(speed.value), done: true }) },
    SPEEDS.map((value) => h("option", { value }, `${value} steps/s`)),
  );
  const element = h(
    "section",
    { class: "card lab-player", "aria-labelledby": "lab-player-title" },
    h("h2", { id: "lab-player-title" }, "Watch it run"),
    h("p", { class: "hint" }, "The same run, step by step: in a step every sequence gets one token. Two maps see the same requests at the same steps."),
    h(
      "div",
      { class: "lab-bar-controls" },
      play,
      button("Step", () => byHand(1)),
      button("+ 100", () => byHand(100)),
      button("Restart", () => (pause(false), seek(0), onMove({ step: 0, done: true }))),
      h("label", { for: "lab-speed" }, "Speed"),
      speed,
      seekSlider,
      place,
    ),
    differs,
    about,
    maps,
    mapLegend(),
    readouts,
    log.element,
  );

  let source = null;
  let session = null;
  let sides = [];
  let step = 0;
  let ended = false;
  let playing = false;
  let generation = 0; // of opened runs: answers to an older one are dropped
  let target = 0;
  let working = false;

  // ---------------------------------------------------------------- the run

  // The server keeps few runs. A page that comes back from the browser's cache finds its own closed and opens it anew.
  window.addEventListener("pagehide", () => session !== null && server.close(session));

  function open(newSource, firstStep) {
    pause(false);
    source = newSource;
    return reopen(firstStep);
  }

  async function reopen(firstStep) {
    const mine = ++generation;
    if (session !== null) server.close(session);
    session = null;
    target = firstStep;
    const found = await json(server.open(source));
    if (mine !== generation) return found && server.close(found.session);
    if (found === null) {
      target = Number(element.dataset.step ?? firstStep); // given up: the next step is the one after what is shown
      return undefined;
    }
    complain(null);
    session = found.session;
    log.clear();
    build(found.sides);
    take(found);
    seekSlider.max = String(source.recording ? Math.max(steps, firstStep) : steps);
    return work();
  }

  /** What the server answers; null if it refused or is not there, which the reader is told. */
  async function json(asked) {
    let response, value;
    try {
      response = await asked;
      value = await response.json();
    } catch (error) {
      pause(false);
      complain({ message: `The server does not answer: ${error.message}` });
      return null;
    }
    if (response.ok) return value;
    if (response.status === 404 && value.error.param === "session") {
      const there = Math.max(target, step); // closed while nobody looked: go on where it was
      step = 0;
      await reopen(there);
    } else complain(value.error);
    return null;
  }

  /** Advance to `target`, a piece at a time; one question is on its way at most. */
  async function work() {
    if (working) return;
    working = true;
    const mine = generation;
    try {
      while (mine === generation && session !== null && step < target && !ended) {
        const found = await json(server.frames(session, Math.min(JUMP_MAX, target - step), false));
        if (found === null || mine !== generation) break;
        complain(null);
        await take(found);
      }
    } finally {
      working = false;
    }
    if (mine !== generation) await work();
  }

  function seek(wanted) {
    target = wanted;
    place.textContent = `step ${count(wanted)}…`;
    return wanted < step || session === null ? reopen(wanted) : work().then(showStep);
  }

  async function take(found) {
    [step, ended] = [found.step, found.ended];
    for (const [i, side] of found.sides.entries()) {
      if (!sides[i].state.apply(side.frame)) {
        const whole = await json(server.frames(session, 0, true));
        if (whole !== null) await take(whole);
        return;
      }
      log.add(side.policy, side.frame.log, side.frame.log_missing);
      sides[i].show(side);
    }
    drawReadouts(found.sides);
    showStep();
  }

  function showStep() {
    if (ended) pause(false);
    element.dataset.step = String(step);
    element.dataset.ended = String(ended);
    if (document.activeElement !== seekSlider || step >= Number(seekSlider.value)) seekSlider.value = String(step);
    if (step > Number(seekSlider.max)) seekSlider.max = String(step);
    place.textContent = `step ${count(step)}${ended ? ", the end" : ""}`;
  }

  // ---------------------------------------------------------------- playing

  function start() {
    if (session === null || playing) return;
    playing = true;
    play.textContent = "Pause";
    element.dataset.playing = "true";
    tick();
  }

  function pause(told) {
    if (told) onMove({ step, done: true });
    if (!playing) return;
    playing = false;
    play.textContent = "Play";
    element.dataset.playing = "false";
  }

  async function tick() {
    while (playing && !ended) {
      const began = performance.now();
      const rate = Number(speed.value);
      const every = Math.max(TICK_MS, 1000 / rate);
      target = step + Math.max(1, Math.round((rate * every) / 1000));
      await work();
      onMove({ step, done: false });
      await new Promise((wake) => setTimeout(wake, Math.max(0, every - (performance.now() - began))));
    }
    onMove({ step: heading(), done: true }); // also after a pause: a piece that was on its way has come since
  }

  /** The step that is shown once all that was asked for has come. */
  function heading() {
    return working || session === null ? target : step; // a target that nobody works at was given up
  }

  async function byHand(more) {
    pause(false);
    const wanted = heading() + more;
    onMove({ step: wanted, done: true }); // said first: a run that is opened anew meanwhile has to go there, too
    await seek(wanted);
    onMove({ step: heading(), done: true });
  }

  // ---------------------------------------------------------------- what is shown

  function build(found) {
    sides = found.map((side, i) => {
      const state = new PoolState();
      const name = source.recording ? "The recorded run" : policyName(side.policy);
      const view = mapView({
        label: `Memory map, ${name}`,
        legend: false,
        onSelect: (block) => view.map.highlight(state.owner[block] ? state.table(state.owner[block]) : null),
      });
      const sentence = h("p", { class: "hint" });
      const figure = h(
        "div",
        { class: "lab-side", dataset: { policy: side.policy, side: i } },
        h("h3", {}, POLICIES[side.policy] ? term(name, POLICIES[side.policy].meaning) : name),
        sentence,
        view.element,
      );
      return {
        state,
        figure,
        show(news) {
          const cell = news.slots_per_cell > 1 ? ` A block of this map is ${news.slots_per_cell} neighbouring slots.` : "";
          sentence.textContent =
            `${plural(news.now.sequences, "sequence")}, ${news.now.effective.toFixed(1)} % of the held memory holds tokens.` + cell;
          figure.dataset.sequences = String(news.now.sequences);
          figure.dataset.requests = state.running.map(({ number }) => number).join(" ");
          view.draw(state);
        },
      };
    });
    fill(maps, sides.map((side) => side.figure));
    maps.dataset.sides = String(sides.length);
  }

  function drawReadouts(found) {
    const told = found[0].about;
    about.hidden = !told;
    if (told) facts(about, Object.entries({ ...told, blocks: count(found[0].frame.pool.total), "block size": found[0].frame.pool.block_size }));
    const different = found[0].differences ?? [];
    differs.hidden = different.length === 0;
    differs.textContent = different.length ? `From here on this Octavo decides otherwise: ${different.join("; ")}` : "";
    if (readouts.contains(document.activeElement) && document.activeElement !== readouts) return; // a definition is open
    fill(
      readouts,
      h(
        "table",
        { class: "lab-figures" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Read-out"), found.map((side) => h("th", { scope: "col", class: "number" }, policyName(side.policy))))),
        h(
          "tbody",
          {},
          ROWS.map(([[word, meaning], text]) =>
            h("tr", {}, h("th", { scope: "row", title: meaning }, word), found.map((side) => h("td", { class: "number" }, text(side)))),
          ),
        ),
      ),
    );
  }

  return {
    element,
    open,
    pause: () => pause(false),
    setSpeed: (value) => (speed.value = String(value)),
    get step() {
      return step;
    },
  };
}

function button(word, act, kind = "") {
  return h("button", { type: "button", class: kind || null, onclick: act }, word);
}
