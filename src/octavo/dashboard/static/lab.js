// Lab: the article's experiment. The server runs it; the address holds every control, the step and the speed.

import { fill, h } from "./dom.js";
import { answersView } from "./lab_answers.js";
import { labForm } from "./lab_form.js";
import { SPEEDS, playerView } from "./lab_player.js";
import { request } from "./server.js";

const FIRST_STEP = 100;
const FIRST_SPEED = 10;
const STEP_MAX = 10_000_000;
const REST_MS = 250;

const json = { "content-type": "application/json" };
const post = (path, body, options = {}) => request(path, { method: "POST", headers: json, body: JSON.stringify(body), ...options });

export async function mount(panel, { setParams }) {
  const answer = await request("lab/settings");
  if (!answer.ok) throw new Error(`the server says ${answer.status}`);
  const described = await answer.json();
  return new Lab(panel, described, setParams);
}

class Lab {
  constructor(panel, described, setParams) {
    this.page = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16)).join("");
    this.setParams = setParams;
    this.defaults = Object.fromEntries(described.controls.map(({ name, value }) => [name, value]));
    this.values = { ...this.defaults };
    this.step = FIRST_STEP;
    this.speed = FIRST_SPEED;
    this.recording = null;
    this.visible = false;
    this.opened = null;
    this.form = labForm(described, { onInput: (name, value) => this.move(name, value), onChange: () => this.rest() });
    this.answers = answersView({
      ask: (settings, signal) => post("lab/answers", { settings, page: this.page }, { signal }),
      complain: (error) => this.form.complain("answers", error),
      steps: described.steps,
      warmup: described.warmup_steps,
    });
    this.player = playerView({
      server: {
        open: (source) => post("lab/sessions", source),
        frames: (session, steps, whole) => request(`lab/sessions/${session}/frames?steps=${steps}&whole=${whole ? 1 : 0}`),
        close: (session) => request(`lab/sessions/${session}`, { method: "DELETE", keepalive: true }).catch(() => {}),
      },
      onMove: (news) => this.moved(news),
      complain: (error) => (this.recording === null ? this.form.complain("run", error) : this.tellRecording(error)),
      steps: described.steps,
    });
    this.layout(panel, described);
  }

  layout(panel, described) {
    this.notice = h("p", { class: "lab-complaint", role: "alert", hidden: true });
    const file = h("input", { type: "file", id: "lab-file", onchange: () => file.files.length && this.upload(file) });
    this.back = h("button", { type: "button", hidden: true, onclick: () => this.closeRecording() }, "Back to the experiment");
    const given = described.recording
      ? h("button", { type: "button", onclick: () => this.openRecording(described.recording) }, "Open the one given on the command line")
      : null;
    this.experiment = h("div", { class: "lab-top" }, this.answers.element, this.form.element);
    this.numbers = h("div", { class: "lab-bottom" }, this.answers.numbers);
    fill(
      panel,
      h(
        "p",
        { class: "lab-lead" },
        "One pool of memory, one queue of requests, three ways to hand the memory out: move a control and see what each of them gets done. " +
          "It is the experiment of the article, run by Octavo's own scheduler on a clock that counts steps; no model runs.",
      ),
      this.experiment,
      h("div", { class: "lab-bottom" }, this.player.element),
      this.numbers,
      h(
        "section",
        { class: "card lab-recording", "aria-labelledby": "lab-recording-title" },
        h("h2", { id: "lab-recording-title" }, "A recorded run"),
        h("p", { class: "hint" }, "Open a file that “octavo serve --record FILE” wrote, and step through what a real server decided."),
        this.notice,
        h("div", { class: "lab-pair" }, h("label", { for: "lab-file" }, "Recording"), file, given, this.back),
      ),
    );
  }

  // ---------------------------------------------------------------- the address

  /** What the address says, in place of what is shown. */
  show(params) {
    const here = this.visible;
    this.visible = true;
    // Somebody came back from another part: the address is bare, and the lab is as it was left.
    if (!here && this.opened !== null && params.size === 0) return this.tellAddress(false);
    const given = Object.fromEntries(params);
    const { step = FIRST_STEP, speed = FIRST_SPEED, recording = null, ...values } = given;
    this.values = { ...this.defaults, ...values };
    this.recording = recording;
    const wrong = wrongNumber("step", step, 0, STEP_MAX) ?? (SPEEDS.includes(Number(speed)) ? null : wrongSpeed(speed));
    this.step = wrong ? FIRST_STEP : Number(step);
    this.speed = wrong ? FIRST_SPEED : Number(speed);
    this.player.setSpeed(this.speed);
    this.form.set(this.values);
    this.form.complain("address", wrong);
    this.showSource();
    return undefined;
  }

  hide() {
    this.visible = false;
    this.player.pause();
  }

  /** Put the state into the address. `entry`: as a new entry of the history. */
  tellAddress(entry) {
    const params = {};
    if (this.recording !== null) params.recording = this.recording;
    else {
      for (const [name, value] of Object.entries(this.values)) {
        if (String(value) !== String(this.defaults[name])) params[name] = value;
      }
    }
    if (this.step !== FIRST_STEP) params.step = this.step;
    if (this.speed !== FIRST_SPEED) params.speed = this.speed;
    const query = new URLSearchParams(params).toString();
    const hash = `#lab${query ? `?${query}` : ""}`;
    if (entry && this.visible && location.hash !== hash) history.pushState(null, "", hash);
    else this.setParams(params);
  }

  // ---------------------------------------------------------------- controls

  move(name, value) {
    this.values = { ...this.values, [name]: value };
    this.form.set(this.values);
    this.answers.request(this.values);
  }

  /** A control has come to rest: this state can be gone back to, and the run that is watched follows. */
  rest() {
    this.tellAddress(true);
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.openRun(), REST_MS);
  }

  moved({ step = this.step, speed = this.speed, done }) {
    [this.step, this.speed] = [step, speed];
    // A browser allows so many changes of the address in a time; a run that plays tells of every one when it stops.
    if (!done) return;
    this.form.complain("address", null);
    this.tellAddress(false);
  }

  showSource() {
    this.tellRecording(null);
    this.experiment.hidden = this.numbers.hidden = this.recording !== null;
    this.back.hidden = this.recording === null;
    if (this.recording === null) this.answers.request(this.values);
    this.openRun();
  }

  openRun() {
    const source = this.recording === null ? { settings: this.values } : { recording: this.recording };
    // The penalty slows no step down, so the run on the maps stays.
    const key = JSON.stringify({ ...source, settings: source.settings && { ...source.settings, kernel_penalty: 0 }, step: this.step });
    if (this.opened === key && this.player.step === this.step) return;
    this.opened = key;
    this.player.open(source, this.step);
  }

  // ---------------------------------------------------------------- recordings

  tellRecording(error) {
    this.notice.textContent = error?.message ?? "";
    this.notice.hidden = !error;
  }

  async upload(field) {
    const answer = await request("lab/recordings", { method: "POST", body: field.files[0] });
    field.value = "";
    const found = await answer.json().catch(() => ({ error: { message: `the server says ${answer.status}` } }));
    if (answer.ok) this.openRecording(found.recording);
    else this.tellRecording(found.error);
  }

  openRecording(name) {
    [this.recording, this.step] = [name, 0];
    this.tellAddress(true);
    this.showSource();
  }

  closeRecording() {
    [this.recording, this.step] = [null, FIRST_STEP];
    this.tellAddress(true);
    this.showSource();
  }
}

function wrongNumber(name, text, least, most) {
  const fits = /^\d+$/.test(String(text)) && Number(text) >= least && Number(text) <= most;
  return fits ? null : { param: name, message: `${name} is “${text}”; it must be a whole number from ${least} to ${most}` };
}

function wrongSpeed(text) {
  return { param: "speed", message: `speed is “${text}”; it must be one of ${SPEEDS.join(", ")}` };
}
