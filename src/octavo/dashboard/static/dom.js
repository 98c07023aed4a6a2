// Small helpers for building the page. Text from anywhere goes in as text nodes, never as markup.

/** An element. `props`: attributes, `class`, `dataset`, and `onName` listeners; a child is a node, a text or null. */
export function h(tag, props = {}, ...children) {
  return build(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function svg(tag, props = {}, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function build(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2).toLowerCase(), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replace what `parent` holds. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  return parent;
}

/** A term with its definition in a popover: keyboard, pointer and screen reader all reach it. */
export function term(word, meaning) {
  const id = `term-${(term.count = (term.count ?? 0) + 1)}`;
  const note = h("span", { class: "term-note", id, role: "note", popover: "auto" }, meaning);
  const button = h(
    "button",
    { class: "term", type: "button", popovertarget: id, "aria-label": `${word}: what it means` },
    word,
  );
  note.addEventListener("toggle", () => {
    const box = button.getBoundingClientRect();
    note.style.left = `${Math.max(8, Math.min(box.left, window.innerWidth - 320))}px`;
    note.style.top = `${box.bottom + 6}px`;
  });
  return h("span", {}, button, note);
}

const WHOLE = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

/** 12345 -> "12,345". */
export const count = (value) => (Number.isFinite(value) ? WHOLE.format(value) : "–");

/** A number with about three significant digits. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  if (Number.isInteger(value)) return WHOLE.format(value);
  const size = Math.abs(value);
  return size >= 100 ? WHOLE.format(value) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** 0.123 -> "12.3 %". */
export const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "–");

/** Seconds as people say them. */
export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  if (value < 90) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  return value < 5400 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

/** 1 block, 2 blocks. */
export const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
