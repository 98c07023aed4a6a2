// Colours of the map and the plots: eight hues that stay apart in the common kinds of colour blindness (after Okabe and
// Ito), repeated with stripes and dots, so that no two neighbours in number differ by hue alone.

export const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7fd1"];
export const PATTERNS = ["solid", "striped", "dotted"];
const HUE_NAMES = ["blue", "orange", "green", "pink", "sky blue", "vermilion", "violet"];

/** Colour and pattern of a request, by its number (from 1). */
export function look(number) {
  const place = Math.max(0, number - 1);
  return { hue: place % HUES.length, pattern: Math.floor(place / HUES.length) % PATTERNS.length };
}

/** "blue, striped": for those who hear the page. */
export function lookName(number) {
  const { hue, pattern } = look(number);
  return PATTERNS[pattern] === "solid" ? HUE_NAMES[hue] : `${HUE_NAMES[hue]}, ${PATTERNS[pattern]}`;
}

// The style sheet's variables that scripts paint with. Registered as colours, so that what is read is a colour, too, and
// not the choice between a light and a dark one.
for (const name of ["--ink", "--ink-soft", "--line", "--map-back", "--map-free", "--map-cached", "--map-live", "--map-mark"]) {
  CSS.registerProperty({ name, syntax: "<color>", inherits: true, initialValue: "black" });
}

/** A variable of the style sheet as it is now, "rgb(1, 2, 3)". */
export const themeColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

const parse = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const pack = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
const blend = (a, b, share) => a.map((value, i) => Math.round(value + (b[i] - value) * share));

/** Colours for `PoolMap` as 32-bit pixels, from the style sheet's variables. */
export function mapColours() {
  const named = (name) => themeColour(name).match(/\d+/g).map(Number);
  const back = named("--map-back"), free = named("--map-free"), cached = named("--map-cached"), ink = named("--ink");
  const hues = HUES.map(parse);
  return {
    back: pack(back),
    free: pack(free),
    // From just released to released long ago.
    cached: [0, 0.3, 0.5, 0.66].map((share) => pack(blend(cached, free, share))),
    cachedDim: pack(blend(cached, free, 0.75)),
    ink: pack(ink),
    edge: pack(blend(ink, back, 0.45)),
    mark: pack(named("--map-mark")),
    live: pack(named("--map-live")),
    liveTint: pack(blend(named("--map-live"), free, 0.68)),
    hues: hues.map(pack),
    shades: hues.map((hue) => pack(blend(hue, ink, 0.55))),
    tints: hues.map((hue) => pack(blend(hue, free, 0.68))),
    dims: hues.map((hue) => pack(blend(hue, free, 0.75))),
  };
}
