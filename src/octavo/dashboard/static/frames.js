// The pool as frames describe it: what `octavo.dashboard.frames` packs, unpacked and kept up to date.

export const LIVE = 1;
export const FINDABLE = 2;
export const PARTIAL = 4;
export const SHARED = 8;

const KINDS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };

function bytesOf(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

/** ["u2", base64] -> typed array. Every machine that runs a browser is little-endian, as the data are. */
export function unpack([kind, text]) {
  const bytes = bytesOf(text);
  return new (KINDS[kind])(bytes.buffer, 0, bytes.length / KINDS[kind].BYTES_PER_ELEMENT);
}

/** The state between two steps. `apply` frames in order; after a snapshot nothing older matters. */
export class PoolState {
  constructor() {
    this.ready = false;
    this.sequence = 0;
    this.step = null;
    this.time = 0;
    /** When the watching began: what was released before has an age that is only known to be at least that. */
    this.since = 0;
    this.pool = { total: 0, live: 0, cached: 0, free: 0, block_size: 16, allocator: "", superblock: null };
    this.figures = {};
    /** Request number -> {number, name, id, prompt, limit, cached, priority, preemptions}. */
    this.requests = new Map();
    /** Running requests, oldest first: {number, computed, known, blocks}. */
    this.running = [];
    this.waiting = { number: [], count: 0 };
    /** Request number -> {positions, blocks} of table entries whose block has an older owner. */
    this.borrowed = new Map();
    /** Events of the latest frame. */
    this.log = [];
    this.logMissing = 0;
    /** Blocks that the latest frame changed; null: all. */
    this.changed = null;
    this._allocate(0);
  }

  _allocate(total) {
    this.flags = new Uint8Array(total);
    this.owner = new Uint32Array(total);
    this.position = new Uint32Array(total);
    this.fill = new Uint16Array(total);
    this.refs = new Uint32Array(total);
    this.released = new Float64Array(total);
    this.name = new Uint8Array(3 * total);
  }

  /** False if the frame does not follow the one before: a snapshot is needed then, and nothing was changed. */
  apply(frame) {
    if (frame.kind === "snapshot") {
      this._allocate(frame.pool.total);
      this.requests = new Map();
      this.borrowed = new Map();
    } else if (!this.ready || frame.sequence !== this.sequence + 1) {
      return false;
    }
    this.ready = true;
    for (const key of ["sequence", "step", "time", "since", "pool", "figures", "waiting", "log"]) this[key] = frame[key];
    this.logMissing = frame.log_missing;
    this._applyBlocks(frame.blocks);
    this._applyRequests(frame);
    return true;
  }

  _applyBlocks(blocks) {
    const index = blocks.index && unpack(blocks.index);
    const flags = unpack(blocks.flags);
    const [owner, position, fill, refs, idle] = ["owner", "position", "fill", "refs", "idle"].map((key) =>
      unpack(blocks[key]),
    );
    const names = bytesOf(blocks.name);
    const full = this.pool.block_size;
    let live = 0, partial = 0, shared = 0, cached = 0, named = 0;
    for (let i = 0; i < blocks.count; i++) {
      const block = index ? index[i] : i;
      const flag = flags[i];
      this.flags[block] = flag;
      if (flag & LIVE) {
        this.owner[block] = owner[live];
        this.position[block] = position[live++];
        this.fill[block] = flag & PARTIAL ? fill[partial++] : full;
        this.refs[block] = flag & SHARED ? refs[shared++] : 1;
      } else {
        this.owner[block] = this.position[block] = this.refs[block] = 0;
        this.fill[block] = flag & FINDABLE ? full : 0;
        if (flag & FINDABLE) this.released[block] = this.time - idle[cached++] / 100;
      }
      if (flag & FINDABLE) {
        for (let k = 0; k < 3; k++) this.name[3 * block + k] = names[3 * named + k];
        named++;
      }
    }
    this.changed = index;
  }

  _applyRequests(frame) {
    for (const request of frame.requests) this.requests.set(request.number, request);
    const { number, computed, known, blocks } = frame.running;
    this.running = number.map((n, i) => ({ number: n, computed: computed[i], known: known[i], blocks: blocks[i] }));
    for (const [n, positions, held] of frame.borrowed) {
      const table = { positions: unpack(positions), blocks: unpack(held) };
      if (table.blocks.length) this.borrowed.set(n, table);
      else this.borrowed.delete(n);
    }
    const here = new Set([...number, ...frame.waiting.number]);
    for (const n of this.requests.keys()) if (!here.has(n)) this.requests.delete(n);
    for (const n of this.borrowed.keys()) if (!here.has(n)) this.borrowed.delete(n);
  }

  /** Block numbers of a running request, in the order of its tokens. */
  table(number) {
    const row = [];
    for (let block = 0; block < this.owner.length; block++) {
      if (this.owner[block] === number) row[this.position[block]] = block;
    }
    const borrowed = this.borrowed.get(number);
    if (borrowed) for (let i = 0; i < borrowed.blocks.length; i++) row[borrowed.positions[i]] = borrowed.blocks[i];
    return row.filter((block) => block !== undefined);
  }

  /** "free", "cached" or "live". */
  kind(block) {
    const flag = this.flags[block];
    return flag & LIVE ? "live" : flag & FINDABLE ? "cached" : "free";
  }

  /** Six hexadecimal digits of a findable block's hash, else null. */
  hash(block) {
    if (!(this.flags[block] & FINDABLE)) return null;
    const digits = [...this.name.subarray(3 * block, 3 * block + 3)].map((byte) => byte.toString(16).padStart(2, "0"));
    return digits.join("");
  }

  /** Clock units since a cached block was released, and whether that is only a lower bound. */
  age(block) {
    return { value: Math.max(0, this.time - this.released[block]), atLeast: this.released[block] <= this.since };
  }

  /** What a request is called: its number, or a beam's part of it. */
  nameOf(number) {
    return this.requests.get(number)?.name ?? String(number);
  }

  /** Numbers of what runs or waits under this id: a request, its several answers (id-0, id-1), or its beams. */
  numbersOf(id) {
    const found = [...this.requests.values()].filter((one) => one.id === id || one.id.startsWith(`${id}-`));
    return found.map((one) => one.number);
  }

  /** The first of them, or null. */
  numberOf(id) {
    return this.numbersOf(id)[0] ?? null;
  }

  clone() {
    const copy = Object.assign(new PoolState(), this);
    for (const key of ["flags", "owner", "position", "fill", "refs", "released", "name"]) copy[key] = this[key].slice();
    copy.requests = new Map(this.requests);
    copy.borrowed = new Map(this.borrowed);
    copy.running = this.running.slice();
    return copy;
  }

  /** Bytes that a clone takes, roughly. */
  get bytes() {
    return 26 * this.flags.length + 300 * this.requests.size + 2000;
  }
}
