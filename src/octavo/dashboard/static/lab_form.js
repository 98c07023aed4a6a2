// The lab's controls, drawn from the list that the server checks against.

import { count, fill, h, plural } from "./dom.js";
import { POLICIES } from "./lab_words.js";

/**
 * `onInput(name, value)`: a control moves; `onChange()`: it has come to rest.
 * Returns {element, set(values), complain(source, error or null)}.
 */
export function labForm({ controls, models }, { onInput, onChange }) {
  const places = new Map();
  const complaints = new Map();
  const complaint = h("p", { class: "lab-complaint", role: "alert", hidden: true });
  const poolNote = h("p", { class: "hint", id: "lab-note-pool" });
  const element = h(
    "form",
    { class: "card lab-form", "aria-labelledby": "lab-form-title", onsubmit: (event) => event.preventDefault() },
    h("h2", { id: "lab-form-title" }, "Controls"),
    h("p", { class: "hint" }, "Move one and watch the answers. The address of this page keeps them all, so it can be shared."),
    complaint,
    h("div", { class: "lab-controls" }, controls.map((control) => {
      const place = makeControl(control, (value) => onInput(control.name, value), onChange);
      places.set(control.name, place);
      return h("div", { class: "lab-control" }, place.nodes, h("p", { class: "hint", id: `lab-help-${control.name}` }, control.help),
        control.name === "pool_gib" ? poolNote : null);
    })),
    h("button", { type: "button", onclick: reset }, "Back to the article's defaults"),
  );

  function reset() {
    for (const control of controls) onInput(control.name, control.value);
    set(Object.fromEntries(controls.map((control) => [control.name, control.value])));
    onChange();
  }

  function set(values) {
    for (const [name, place] of places) place.set(values[name]);
    const model = models[values.model];
    const slots = model && Math.floor((Number(values.pool_gib) * 2 ** 30) / model.bytes_per_token);
    poolNote.textContent = model
      ? `${count(slots)} tokens of ${count(model.bytes_per_token)} bytes: 2 × ${model.layers} layers × ${model.kv_heads} kv heads × ` +
        `${model.head_dim} × 2 bytes.`
      : "";
  }

  return {
    element,
    set,
    /** Show what `source` has to complain of, at the control that it names; null: nothing any more. */
    complain(source, error) {
      if (error) complaints.set(source, error);
      else complaints.delete(source);
      const all = [...complaints.values()];
      const text = [...new Set(all.map(({ message }) => message))].join("; ");
      if (complaint.textContent !== text) complaint.textContent = text;
      complaint.hidden = all.length === 0;
      for (const [name, place] of places) place.mark(all.some(({ param }) => param === name));
    },
  };
}

const words = (value) => POLICIES[value]?.long ?? (value === "none" ? "nothing" : String(value));

function makeControl(control, onInput, onChange) {
  if (control.choices.length === 2 && control.choices.includes(true)) return checkbox(control, onInput, onChange);
  if (typeof control.choices[0] === "number") return steps(control, onInput, onChange);
  if (control.choices.length) return select(control, onInput, onChange);
  return numbers(control, onInput, onChange);
}

const idOf = (control) => `lab-${control.name}`;
const helpOf = (control) => `lab-help-${control.name}`;
const unitOf = (control) => (control.unit ? ` (${control.unit})` : "");
const marker = (fields) => (wrong) => fields.forEach((field) => field.setAttribute("aria-invalid", String(wrong)));

function checkbox(control, onInput, onChange) {
  const field = h("input", {
    type: "checkbox",
    id: idOf(control),
    "aria-describedby": helpOf(control),
    onchange: () => (onInput(field.checked), onChange()),
  });
  return {
    nodes: h("label", { class: "lab-check" }, field, control.label),
    set: (value) => (field.checked = String(value) === "true"),
    mark: marker([field]),
  };
}

function select(control, onInput, onChange) {
  const field = h(
    "select",
    { id: idOf(control), "aria-describedby": helpOf(control), onchange: () => (onInput(field.value), onChange()) },
    control.choices.map((choice) => h("option", { value: choice }, words(choice))),
  );
  return {
    nodes: [h("label", { for: idOf(control) }, control.label), field],
    set: (value) => (field.value = String(value)),
    mark: marker([field]),
  };
}

/** A slider over a list of numbers. */
function steps(control, onInput, onChange) {
  const shown = h("output", { for: idOf(control) });
  const field = h("input", {
    type: "range",
    id: idOf(control),
    min: 0,
    max: control.choices.length - 1,
    step: 1,
    "aria-describedby": helpOf(control),
    oninput: () => (show(control.choices[field.value]), onInput(control.choices[field.value])),
    onchange: onChange,
  });
  const show = (value) => {
    shown.textContent = plural(Number(value), control.unit);
    field.setAttribute("aria-valuetext", shown.textContent);
  };
  return {
    nodes: [h("label", { for: idOf(control) }, control.label), h("div", { class: "lab-pair" }, field, shown)],
    set(value) {
      const place = control.choices.map(String).indexOf(String(value));
      if (place >= 0) field.value = String(place);
      show(value);
    },
    mark: marker([field]),
  };
}

/** A number, and a slider where its range is short enough to slide over. */
function numbers(control, onInput, onChange) {
  const bounds = { min: control.least, max: control.most, step: control.step, "aria-describedby": helpOf(control) };
  const slides = control.most - control.least <= 20_000 && control.step >= 1;
  const slider =
    slides &&
    h("input", {
      ...bounds,
      type: "range",
      id: `${idOf(control)}-slider`,
      "aria-label": `${control.label}, slider`,
      oninput: () => ((field.value = slider.value), onInput(slider.value)),
      onchange: onChange,
    });
  const field = h("input", {
    ...bounds,
    step: control.step >= 1 ? control.step : "any",
    type: "number",
    id: idOf(control),
    oninput() {
      if (slider) slider.value = field.value;
      onInput(field.value);
    },
    onchange: onChange,
  });
  return {
    nodes: [
      h("label", { for: idOf(control) }, control.label, h("span", { class: "hint" }, unitOf(control))),
      h("div", { class: "lab-pair" }, slider || null, field),
    ],
    set(value) {
      // Another text for the same number is left alone while somebody types it.
      if (field.value === "" || Number(field.value) !== Number(value)) field.value = String(value);
      if (slider) slider.value = String(value);
    },
    mark: marker(slider ? [field, slider] : [field]),
  };
}

/** Fills a definition list: for recordings, which have facts in place of controls. */
export function facts(list, pairs) {
  return fill(list, pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}
