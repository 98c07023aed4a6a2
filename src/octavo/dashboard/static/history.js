// The last minutes of a pool: whole states now and then, the frames between them, and the figures of each moment.

const KEY_SECONDS = 10;
const RATE_SECONDS = 2;
const TTFT_SECONDS = 10;

/** What the plots and tiles need of a frame. Rates look back over the points before. */
export class Figures {
  constructor() {
    this.points = [];
  }

  add(time, figures) {
    const totals = figures.totals ?? {};
    const point = { time, ...figures, ...totals, ttftCount: figures.ttft?.count ?? 0, ttftSum: figures.ttft?.sum ?? 0 };
    point.wasted = figures.reserved + figures.internal + figures.external;
    const rate = this._before(time - RATE_SECONDS);
    const span = rate ? time - rate.time : 0;
    point.tokensPerSecond = span > 0 ? Math.max(0, (point.generation_tokens - rate.generation_tokens) / span) : 0;
    const long = this._before(time - TTFT_SECONDS);
    const firsts = long ? point.ttftCount - long.ttftCount : 0;
    point.ttft = firsts > 0 ? (point.ttftSum - long.ttftSum) / firsts : null;
    point.hitRate = point.queries ? point.hits / point.queries : null;
    this.points.push(point);
    return point;
  }

  /** The newest point that is not after `time`, or the oldest there is. */
  _before(time) {
    for (let i = this.points.length - 1; i >= 0; i--) if (this.points[i].time <= time) return this.points[i];
    return this.points[0];
  }
}

/** Bounded in seconds and in bytes; the oldest goes first. Moments have numbers that stay theirs. */
export class History {
  constructor({ secondsMax = 300, bytesMax = 64 << 20 } = {}) {
    this.secondsMax = secondsMax;
    this.bytesMax = bytesMax;
    this.clear();
  }

  clear() {
    this.figures = new Figures();
    /** [{first, key: PoolState, frames: [frame], times, bytes}]: frame i leads to moment first + i + 1. */
    this._segments = [];
    this._bytes = 0;
    this.first = 0;
    this.last = -1;
  }

  /** `state`: after `frame`; `size`: of the frame in bytes, roughly. */
  add(frame, state, size) {
    let segment = this._segments.at(-1);
    const fresh = !segment || frame.kind === "snapshot" || frame.time - segment.times[0] >= KEY_SECONDS;
    this.last++;
    if (fresh) {
      segment = { first: this.last, key: state.clone(), frames: [], times: [], bytes: state.bytes };
      this._segments.push(segment);
      this._bytes += state.bytes;
    } else {
      segment.frames.push(frame);
      // Strings take two bytes a character at worst.
      segment.bytes += 2 * size;
      this._bytes += 2 * size;
    }
    segment.times.push(frame.time);
    this.figures.add(frame.time, frame.figures);
    this._trim(frame.time);
  }

  _trim(now) {
    while (this._segments.length > 1) {
      const [oldest, next] = this._segments;
      if (now - next.times[0] < this.secondsMax && this._bytes <= this.bytesMax) break;
      this._segments.shift();
      this._bytes -= oldest.bytes;
    }
    this.first = this._segments[0].first;
    const points = this.figures.points;
    points.splice(0, Math.max(0, points.length - (this.last - this.first + 1)));
  }

  get bytes() {
    return this._bytes;
  }

  /** The figures of a moment. */
  pointAt(moment) {
    return this.figures.points[moment - this.first];
  }

  /** The state of a moment, made anew; the oldest one for moments that are gone. */
  stateAt(moment) {
    const wanted = Math.max(this.first, Math.min(this.last, moment));
    const segment = this._segments.findLast((one) => one.first <= wanted);
    const state = segment.key.clone();
    for (const frame of segment.frames.slice(0, wanted - segment.first)) {
      if (!state.apply(frame)) throw new Error(`moment ${wanted}: frame ${frame.sequence} does not follow ${state.sequence}`);
    }
    return state;
  }

  /** The first moment at which what happened at `time` can be seen. */
  momentOf(time) {
    const at = this.figures.points.findIndex((point) => point.time >= time);
    return at < 0 ? this.last : this.first + at;
  }
}
