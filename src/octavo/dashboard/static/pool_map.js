// The memory map: every block of the pool as a cell of a canvas, or several blocks a cell where they would be too small.
// Pixels are set in one array and shown at once: a hundred thousand blocks cost a few milliseconds, whatever changed.

import { FINDABLE, LIVE, PARTIAL, SHARED } from "./frames.js";
import { look, mapColours } from "./palette.js";

const CELL_MIN = 6;
const CELL_MAX = 34;
const PATTERN_MIN = 8;
const BLOCKS_MIN = 64;
const FOLLOW_MIN = 256;
const AGES = [1, 10, 60];
/** Clock units up to which a cached block is drawn in each of the first shades. */

const powerAbove = (value) => 2 ** Math.ceil(Math.log2(Math.max(1, value)));

export class PoolMap {
  /**
   * `onHover(block, box, moved)`: the block under the pointer or the cursor and its cell on the page, or null; `moved`
   * is false where only the picture has changed.
   * `onSelect(block)`: clicked, or Enter. `onView(view)`: what is shown has changed.
   */
  constructor(canvas, { onHover, onSelect, onView } = {}) {
    this.canvas = canvas;
    this.state = null;
    this.onHover = onHover ?? (() => {});
    this.onSelect = onSelect ?? (() => {});
    this.onView = onView ?? (() => {});
    this.first = 0;
    this.shown = 0;
    /** Whether the part in use is shown, whatever it is. */
    this.follows = true;
    this.cursor = null;
    this.drawMs = 0;
    this._marks = null;
    this._pending = false;
    this._colours = null;
    this._grid = null;
    this._pointer = null;
    canvas.addEventListener("pointermove", (event) => this._point(event));
    canvas.addEventListener("pointerleave", () => this._point(null));
    canvas.addEventListener("click", (event) => this._click(this._blockAt(event)));
    canvas.addEventListener("keydown", (event) => this._key(event));
    canvas.addEventListener("blur", () => this._hover(null));
    new ResizeObserver(() => this._schedule()).observe(canvas);
    for (const event of ["octavo-theme"]) document.addEventListener(event, () => this.recolour());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
  }

  draw(state) {
    const other = this.state === null || this.state.flags.length !== state.flags.length;
    this.state = state;
    if (other) this.follow();
    this._schedule();
  }

  /** Mark these blocks and pale all others; null marks none. */
  highlight(blocks) {
    if (blocks === null || this.state === null) {
      this._marks = null;
    } else {
      this._marks = new Uint8Array(this.state.flags.length);
      for (const block of blocks) this._marks[block] = 1;
    }
    this._schedule();
  }

  recolour() {
    this._colours = null;
    this._schedule();
  }

  // ---------------------------------------------------------------- what is shown

  follow() {
    this.follows = true;
    this._schedule();
  }

  showAll() {
    this._show(0, this.total);
  }

  /** `factor` 2 shows half as many blocks, around the cursor or the middle. */
  zoom(factor) {
    const middle = this.cursor ?? this.first + this.shown / 2;
    const shown = Math.round(this.shown / factor);
    this._show(Math.round(middle - shown / 2), shown);
  }

  showFrom(first) {
    this._show(first, this.shown);
  }

  /** Bring these blocks into view without a change of scale where that suffices. */
  reveal(blocks) {
    if (!blocks.length) return;
    const low = blocks.reduce((a, b) => Math.min(a, b)), high = blocks.reduce((a, b) => Math.max(a, b));
    if (low >= this.first && high < this.first + this.shown) return;
    this._show(low, Math.max(this.shown, high - low + 1));
  }

  get total() {
    return this.state?.flags.length ?? 0;
  }

  _show(first, shown) {
    this.follows = false;
    this.shown = Math.max(Math.min(BLOCKS_MIN, this.total), Math.min(this.total, shown));
    this.first = Math.max(0, Math.min(this.total - this.shown, first));
    this._schedule();
  }

  _followUse() {
    let last = this.total - 1;
    while (last >= 0 && this.state.flags[last] === 0) last--;
    let shown = Math.max(FOLLOW_MIN, this._room(), powerAbove(last + 1));
    if (shown * 1.25 >= this.total) shown = this.total; // a small rest is shown, too
    // Grows at once and shrinks only when much less is used, so that the map does not breathe.
    if (shown > this.shown || shown * 4 <= this.shown || this.first !== 0) [this.first, this.shown] = [0, shown];
    this.shown = Math.min(this.shown, this.total);
  }

  /** Blocks that fit at the largest cells. */
  _room() {
    const box = this.canvas.getBoundingClientRect();
    return Math.floor(box.width / CELL_MAX) * Math.floor(box.height / CELL_MAX);
  }

  _layout() {
    const ratio = window.devicePixelRatio || 1;
    const box = this.canvas.getBoundingClientRect();
    const width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
    if (this.canvas.width !== width || this.canvas.height !== height) {
      [this.canvas.width, this.canvas.height] = [width, height];
    }
    // Columns are whole groups, so that a superblock never wraps; cells are as wide as the canvas then lets them be.
    const group = this.state.pool.superblock ?? 4;
    const least = CELL_MIN * ratio, most = CELL_MAX * ratio;
    for (let perCell = 1; ; perCell *= 2) {
      const cells = Math.ceil(this.shown / perCell);
      const step = width / least >= 2 * group ? group : 1;
      for (let columns = Math.ceil(width / most / step) * step; columns * least <= width; columns += step) {
        const size = Math.min(Math.floor(width / columns), Math.floor(most));
        const rows = Math.ceil(cells / columns);
        if (rows * size <= height) return { ratio, width, height, size, columns, rows, cells, perCell };
      }
      if (perCell > this.shown) return { ratio, width, height, size: 1, columns: 1, rows: 1, cells: 1, perCell };
    }
  }

  // ---------------------------------------------------------------- drawing

  _schedule() {
    if (this._pending) return;
    this._pending = true;
    requestAnimationFrame(() => {
      this._pending = false;
      if (this.state !== null && this.state.flags.length && this.canvas.isConnected) this._paint();
    });
  }

  _paint() {
    const began = performance.now();
    if (this.follows) this._followUse();
    const grid = (this._grid = this._layout());
    this._colours ??= mapColours();
    const context = this.canvas.getContext("2d");
    if (this._image?.width !== grid.width || this._image?.height !== grid.height) {
      this._image = context.createImageData(grid.width, grid.height);
      this._pixels = new Uint32Array(this._image.data.buffer);
    }
    this._pixels.fill(this._colours.back);
    const gap = Math.max(1, Math.round(grid.ratio));
    const side = grid.size - gap;
    for (let cell = 0; cell < grid.cells; cell++) {
      const x = (cell % grid.columns) * grid.size, y = Math.floor(cell / grid.columns) * grid.size;
      const block = this.first + cell * grid.perCell;
      if (grid.perCell === 1) this._paintBlock(block, x, y, side);
      else this._paintSummary(block, Math.min(grid.perCell, this.first + this.shown - block), x, y, side);
    }
    if (grid.perCell === 1 && this.state.pool.superblock) this._paintSuperblocks(grid);
    if (this.cursor !== null) this._outlineBlock(this.cursor, 2, this._colours.ink);
    context.putImageData(this._image, 0, 0);
    this.drawMs = performance.now() - began;
    if (this._pointer !== null || this.cursor !== null) this._hover(this._blockAt(this._pointer), false);
    const view = `${this.first} ${this.shown} ${grid.perCell} ${this.total}`;
    if (view !== this._view) {
      this._view = view;
      this.onView({ first: this.first, shown: this.shown, perCell: grid.perCell, total: this.total });
    }
  }

  _rect(x, y, width, height, colour) {
    const stride = this._image.width;
    for (let row = y; row < y + height; row++) this._pixels.fill(colour, row * stride + x, row * stride + x + width);
  }

  _outline(x, y, side, thick, colour) {
    this._rect(x, y, side, thick, colour);
    this._rect(x, y + side - thick, side, thick, colour);
    this._rect(x, y, thick, side, colour);
    this._rect(x + side - thick, y, thick, side, colour);
  }

  _paintBlock(block, x, y, side) {
    const { state, _colours: colours } = this;
    const flag = state.flags[block];
    const marked = this._marks !== null && this._marks[block] === 1;
    const dim = this._marks !== null && !marked;
    if (flag & LIVE) {
      const { hue, pattern } = look(state.owner[block]);
      const colour = dim ? colours.dims[hue] : colours.hues[hue];
      if (flag & PARTIAL) {
        const filled = Math.round((side * state.fill[block]) / state.pool.block_size);
        this._rect(x, y, side, side - filled, colours.tints[hue]);
        this._rect(x, y + side - filled, side, filled, colour);
      } else {
        this._rect(x, y, side, side, colour);
      }
      if (side >= PATTERN_MIN && pattern && !dim) this._pattern(pattern, x, y, side, colours.shades[hue]);
      if (flag & SHARED) this._corner(x, y, side, colours);
    } else if (flag & FINDABLE) {
      const age = state.time - state.released[block];
      const shade = AGES.findIndex((limit) => age < limit);
      const inset = side >= PATTERN_MIN ? Math.round(side / 5) : 0;
      if (inset) this._rect(x, y, side, side, colours.free);
      const colour = dim ? colours.cachedDim : colours.cached[shade < 0 ? AGES.length : shade];
      this._rect(x + inset, y + inset, side - 2 * inset, side - 2 * inset, colour);
    } else {
      this._rect(x, y, side, side, colours.free);
    }
    if (marked) this._outline(x, y, side, Math.max(1, Math.round(side / 9)), colours.mark);
  }

  _pattern(pattern, x, y, side, colour) {
    const stride = this._image.width;
    for (let row = 1; row < side - 1; row++) {
      for (let column = 1; column < side - 1; column++) {
        const on = pattern === 1 ? (row + column) % 6 < 2 : row % 4 < 2 && column % 4 < 2;
        if (on) this._pixels[(y + row) * stride + x + column] = colour;
      }
    }
  }

  _corner(x, y, side, colours) {
    const leg = Math.max(2, Math.round(side / 2));
    for (let row = 0; row < leg; row++) this._rect(x + side - leg + row, y + row, leg - row, 1, colours.ink);
  }

  /** Several blocks: how much of them is live and how much of that holds tokens; in a request's colour if all are its. */
  _paintSummary(first, count, x, y, side) {
    let live = 0, cached = 0, marked = 0, tokens = 0, owner = null;
    for (let block = first; block < first + count; block++) {
      const flag = this.state.flags[block];
      if (flag & LIVE) {
        live++;
        tokens += this.state.fill[block];
        owner = owner === null || owner === this.state.owner[block] ? this.state.owner[block] : 0;
      } else if (flag & FINDABLE) cached++;
      if (this._marks !== null) marked += this._marks[block];
    }
    const colours = this._colours;
    // What is there at all is at least a pixel high.
    const high = (part) => (part ? Math.max(1, Math.round((side * part) / count)) : 0);
    const [liveHigh, cachedHigh] = [high(live), Math.min(high(cached), side - high(live))];
    const filledHigh = Math.min(liveHigh, Math.round((side * tokens) / (count * this.state.pool.block_size)));
    const hue = owner ? look(owner).hue : null;
    this._rect(x, y, side, side, colours.free);
    this._rect(x, y + side - liveHigh - cachedHigh, side, cachedHigh, colours.cached[1]);
    this._rect(x, y + side - liveHigh, side, liveHigh, hue === null ? colours.liveTint : colours.tints[hue]);
    this._rect(x, y + side - filledHigh, side, filledHigh, hue === null ? colours.live : colours.hues[hue]);
    if (marked) this._outline(x, y, side, Math.max(1, Math.round(side / 6)), colours.mark);
  }

  /** A line between neighbouring superblocks; where a row of the map begins there is nothing to part. */
  _paintSuperblocks(grid) {
    const group = this.state.pool.superblock, gap = Math.max(1, Math.round(grid.ratio));
    for (let block = Math.ceil(this.first / group) * group; block < this.first + this.shown; block += group) {
      const cell = block - this.first, x = (cell % grid.columns) * grid.size;
      const y = Math.floor(cell / grid.columns) * grid.size;
      if (cell % grid.columns) this._rect(x - gap, y, gap, grid.size - gap, this._colours.edge);
    }
  }

  _outlineBlock(block, thick, colour) {
    const grid = this._grid, cell = Math.floor((block - this.first) / grid.perCell);
    if (cell < 0 || cell >= grid.cells) return;
    const x = (cell % grid.columns) * grid.size, y = Math.floor(cell / grid.columns) * grid.size;
    this._outline(x, y, grid.size - 1, Math.round(thick * grid.ratio), colour);
  }

  // ---------------------------------------------------------------- pointer and keys

  _blockAt(place) {
    const grid = this._grid;
    if (grid === null || place === null) return null;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(((place.clientX - box.left) * grid.ratio) / grid.size);
    const row = Math.floor(((place.clientY - box.top) * grid.ratio) / grid.size);
    const cell = row * grid.columns + column;
    return column < 0 || column >= grid.columns || cell < 0 || cell >= grid.cells
      ? null
      : this.first + cell * grid.perCell;
  }

  /** The cell of a block, in pixels of the page's viewport. */
  cellBox(block) {
    const grid = this._grid, box = this.canvas.getBoundingClientRect();
    const cell = Math.floor((block - this.first) / grid.perCell), side = grid.size / grid.ratio;
    return {
      left: box.left + (cell % grid.columns) * side,
      top: box.top + Math.floor(cell / grid.columns) * side,
      side,
    };
  }

  _point(event) {
    this._pointer = event && { clientX: event.clientX, clientY: event.clientY };
    this._hover(this._blockAt(this._pointer));
  }

  _hover(block, moved = true) {
    if (block === null && document.activeElement === this.canvas && this.cursor !== null) block = this.cursor;
    this.onHover(block, block === null ? null : this.cellBox(block), moved);
  }

  _click(block) {
    if (block === null) return;
    this.cursor = block;
    if (this._grid.perCell > 1) this.zoom(8);
    else this.onSelect(block);
    this._schedule();
  }

  _key(event) {
    const grid = this._grid;
    if (grid === null) return;
    const row = grid.columns * grid.perCell;
    const moves = { ArrowLeft: -grid.perCell, ArrowRight: grid.perCell, ArrowUp: -row, ArrowDown: row };
    moves.PageUp = -8 * row;
    moves.PageDown = 8 * row;
    if (event.key in moves) this._moveTo((this.cursor ?? this.first) + (this.cursor === null ? 0 : moves[event.key]));
    else if (event.key === "Home") this._moveTo(0);
    else if (event.key === "End") this._moveTo(this.total - 1);
    else if (event.key === "Enter" || event.key === " ") this._click(this.cursor);
    else if (event.key === "+" || event.key === "=") this.zoom(2);
    else if (event.key === "-") this.zoom(0.5);
    else if (event.key === "Escape") this.cursor = null;
    else return;
    event.preventDefault();
    this._pointer = null;
    this._schedule();
    this._hover(this.cursor);
  }

  _moveTo(block) {
    this.cursor = Math.max(0, Math.min(this.total - 1, block));
    if (this.cursor < this.first || this.cursor >= this.first + this.shown) {
      this._show(this.cursor - Math.floor(this.shown / 2), this.shown);
    }
  }
}
