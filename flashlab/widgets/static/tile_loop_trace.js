/**
 * What a trace says at each step: pure functions over the buffers that flashlab/widgets/tile_loop.py packs. Nothing here
 * draws, and node --test runs all of it. Step s means: events 0 to s - 1 have happened.
 */
const CHECKPOINT = 128; // steps between two remembered SRAM states; no draw replays more than this many events
const FIRST = ["q", "k", "v", "o"];

/** @typedef {{lane: number, row0: number, col0: number, rows: number, cols: number}} Tile a rectangle of a tensor */
/** @typedef {Tile & {loads: number[], stores: number[]}} Part a tile of a tensor in HBM, with the events that moved it */
/** @typedef {{loaded: number, stored: number, sram: number, event: number, lane: number, held: Map<string, number>,
 *             tile: Tile | null, tilesDone: number}} State what is true at one step */

/** A typed array over a DataView, or over a copy where it is not aligned. */
export function numbers(Type, view) {
  const start = view.byteOffset ?? 0;
  const buffer = start % Type.BYTES_PER_ELEMENT ? view.buffer.slice(start, start + view.byteLength) : view.buffer;
  return new Type(buffer, buffer === view.buffer ? start : 0, view.byteLength / Type.BYTES_PER_ELEMENT);
}

/** How many of the ascending `events` have happened at `step`. */
export function countBefore(events, step) {
  let low = 0, high = events.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (events[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Read one packed trace: typed columns, running totals, the tiles of every tensor and of the score grid. */
export function readTrace(raw) {
  const n = raw.steps;
  const ints = numbers(Int32Array, raw.events);
  const column = (i) => ints.subarray(i * n, (i + 1) * n);
  const [op, tensor, program, lane, row0, col0, rows, cols] = Array.from({ length: 8 }, (_, i) => column(i));
  const bytes = numbers(Float64Array, raw.bytes);
  const trace = { ...raw, n, op, tensor, program, lane, row0, col0, rows, cols, bytes };
  trace.loaded = new Float64Array(n + 1);
  trace.stored = new Float64Array(n + 1);
  trace.sram = new Float64Array(n + 1);
  trace.checkpoints = [];
  /** @type {Map<string, {parts: Part[], input: boolean, rows: number, cols: number}>} */
  trace.hbm = new Map(Object.entries(raw.tensors).map(([name, [r, c]]) => [name, { parts: [], input: true, seen: false, rows: r, cols: c }]));
  trace.slots = [];
  const seen = new Map();
  const held = new Map();
  for (let e = 0; e < n; e++) {
    if (e % CHECKPOINT === 0) trace.checkpoints.push(new Map(held));
    const name = raw.names[tensor[e]], kind = raw.ops[op[e]];
    const reads = kind === "load", writes = kind === "store" || kind === "atomic";
    trace.loaded[e + 1] = trace.loaded[e] + (reads ? bytes[e] : 0);
    trace.stored[e + 1] = trace.stored[e] + (writes ? bytes[e] : 0);
    const freed = apply(trace, held, e);
    trace.sram[e + 1] = trace.sram[e] + freed + (reads || kind === "hold" ? bytes[e] : 0);
    if ((reads || kind === "hold") && !trace.slots.includes(name)) trace.slots.push(name);
    const home = trace.hbm.get(name);
    if (home && (reads || writes)) {
      if (!home.seen) [home.seen, home.input] = [true, kind !== "store"];
      const key = `${name} ${lane[e]} ${row0[e]} ${col0[e]} ${rows[e]} ${cols[e]}`;
      if (!seen.has(key)) {
        seen.set(key, { lane: lane[e], row0: row0[e], col0: col0[e], rows: rows[e], cols: cols[e], loads: [], stores: [] });
        home.parts.push(seen.get(key));
      }
      (reads ? seen.get(key).loads : seen.get(key).stores).push(e);
    }
  }
  trace.peak = trace.sram.reduce((most, size) => Math.max(most, size), 0);
  readTiles(trace, raw);
  return trace;
}

/** Let event `e` happen to the tiles in SRAM; returns the bytes that became free (0 or less). */
function apply(trace, held, e) {
  const name = trace.names[trace.tensor[e]], kind = trace.ops[trace.op[e]];
  let freed = 0;
  const free = (which) => {
    if (held.has(which)) freed -= trace.bytes[held.get(which)];
    held.delete(which);
  };
  if (!trace.managed && e > 0 && trace.program[e] !== trace.program[e - 1]) [...held.keys()].forEach(free);
  if (kind === "load" || kind === "hold") {
    free(name);
    held.set(name, e);
  } else if (kind === "release") free(name);
  return freed;
}

/** The score grid: each distinct tile with the events that worked on it; and the last tile worked on, by event. */
function readTiles(trace, raw) {
  const flat = numbers(Int32Array, raw.tiles), count = flat.length / 6;
  const [event, lane, row0, col0, rows, cols] = Array.from({ length: 6 }, (_, i) => flat.subarray(i * count, (i + 1) * count));
  /** @type {(Tile & {events: number[]})[]} */
  trace.grid = [];
  trace.tileEvents = event;
  trace.tileOf = new Int32Array(count);
  const seen = new Map();
  for (let i = 0; i < count; i++) {
    const key = `${lane[i]} ${row0[i]} ${col0[i]} ${rows[i]} ${cols[i]}`;
    if (!seen.has(key)) {
      seen.set(key, trace.grid.length);
      trace.grid.push({ lane: lane[i], row0: row0[i], col0: col0[i], rows: rows[i], cols: cols[i], events: [] });
    }
    trace.tileOf[i] = seen.get(key);
    trace.grid[seen.get(key)].events.push(event[i]);
  }
  const first = trace.grid[0]?.lane ?? 0;
  const worked = trace.grid.reduce((sum, tile) => sum + (tile.lane === first ? tile.rows * tile.cols : 0), 0);
  trace.skipped = worked > 0 && worked < trace.n_q * trace.n_k;
}

/** @returns {State} everything that is true at `step`; costs at most CHECKPOINT events. */
export function stateAt(trace, step) {
  const s = Math.max(0, Math.min(step, trace.n)), event = s - 1;
  let from = Math.min(Math.floor(s / CHECKPOINT), Math.max(trace.checkpoints.length - 1, 0));
  const held = new Map(trace.checkpoints[from]);
  for (let e = from * CHECKPOINT; e < s; e++) apply(trace, held, e);
  const tilesDone = countBefore(trace.tileEvents, s);
  const now = tilesDone && trace.tileEvents[tilesDone - 1] === event;
  return {
    loaded: trace.loaded[s], stored: trace.stored[s], sram: trace.sram[s], event, held, tilesDone,
    lane: event < 0 ? 0 : trace.lane[event],
    tile: now ? trace.grid[trace.tileOf[tilesDone - 1]] : null,
  };
}

/** Where the query `row` stands at `step`: {name: {before, after, step}}; numbers are arrays, null where none was noted. */
export function rowAt(trace, row, step, lane = 0) {
  const found = {};
  for (const [name, packed] of Object.entries(trace.values)) {
    const { events, starts, width, all } = rowSeries(trace, packed, row, lane);
    const i = countBefore(events, step) - 1;
    const read = (j) => (j < 0 ? null : Array.from(all.subarray(starts[j], starts[j] + width)));
    found[name] = { before: read(i - 1), after: read(i), step: i < 0 ? 0 : events[i] + 1 };
  }
  return found;
}

/** The events that noted `row`, and where its numbers start; kept until another row is asked for. */
function rowSeries(trace, packed, row, lane) {
  if (packed.series?.row === row && packed.series.lane === lane) return packed.series;
  const all = numbers(Float32Array, packed.numbers), index = numbers(Int32Array, packed.index), count = index.length / 3;
  const events = [], starts = [];
  for (let i = 0, offset = 0; i < count; i++) {
    const event = index[i], inside = row - index[count + i], length = index[2 * count + i];
    if (inside >= 0 && inside < length && trace.lane[event] === lane) {
      events.push(event);
      starts.push((offset + inside) * packed.width);
    }
    offset += length;
  }
  packed.series = { row, lane, events, starts, width: packed.width, all };
  return packed.series;
}

/** A whole number with thousands separated: 1,024. */
export const whole = (x) => Math.round(x).toLocaleString("en-US");

/** A value with 4 significant digits, −∞ included. */
export function value(x) {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "nan" : x < 0 ? "−∞" : "∞";
  return String(Number(x.toPrecision(4))).replaceAll("-", "−");
}

const span = (start, count) => (count === 1 ? `${start}` : `${start} to ${start + count - 1}`);

/** One line that says the step in words: "step 12 of 240: load k rows 16 to 31, 1,024 bytes". */
export function sentence(trace, step) {
  const s = Math.max(0, Math.min(step, trace.n));
  if (s === 0) return `step 0 of ${whole(trace.n)}: nothing has moved yet`;
  const e = s - 1, name = trace.names[trace.tensor[e]], size = `${whole(trace.bytes[e])} bytes`;
  const tensor = trace.tensors[name], part = tensor && trace.cols[e] < tensor[1];
  const columns = part ? `, columns ${span(trace.col0[e], trace.cols[e])}` : "";
  const place = `${name} row${trace.rows[e] === 1 ? "" : "s"} ${span(trace.row0[e], trace.rows[e])}${columns}`;
  const verbs = {
    load: () => `load ${place}, ${size}`,
    store: () => `store ${place}, ${size}`,
    atomic: () => `add to ${place} atomically, ${size}`,
    hold: () => `keep ${name} (${trace.rows[e]} × ${trace.cols[e]}) on the chip, ${size}`,
    release: () => `free ${name}, ${size} of SRAM`,
    compute: () => `work q rows ${span(trace.row0[e], trace.rows[e])} × k rows ${span(trace.col0[e], trace.cols[e])} into ${name}`,
  };
  const head = trace.heads > 1 ? `, batch ${Math.floor(trace.lane[e] / trace.heads)} head ${trace.lane[e] % trace.heads}` : "";
  const over = s === trace.n ? `. Done: ${comparison(trace, s)}` : "";
  return `step ${whole(s)} of ${whole(trace.n)}: ${verbs[trace.ops[trace.op[e]]]()}${head}${over}`;
}

/** What has moved at `step`; at the end, beside what standard attention moves. */
export function comparison(trace, step) {
  const moved = trace.loaded[step] + trace.stored[step], standard = trace.standard_bytes;
  if (step < trace.n) return `${whole(moved)} bytes moved so far`;
  if (!standard || !moved) return `${whole(moved)} bytes moved`;
  if (moved === standard) return `${whole(moved)} bytes moved, what standard attention moves`;
  const ratio = Number((Math.max(moved, standard) / Math.min(moved, standard)).toPrecision(3));
  return `${whole(moved)} bytes moved, ${ratio} × ${moved < standard ? "less" : "more"} than standard attention`;
}

/** [bytes loaded, bytes stored] of one tensor so far, from sums kept per tensor. */
export function movedBy(trace, name, step) {
  trace.moved ??= new Map();
  if (!trace.moved.has(name)) {
    const code = trace.names.indexOf(name), events = [[], []], sums = [[0], [0]];
    for (let e = 0; e < trace.n; e++) {
      const way = trace.tensor[e] !== code ? -1 : ["load", "store"].indexOf(trace.ops[trace.op[e]].replace("atomic", "store"));
      if (way >= 0) events[way].push(e), sums[way].push(sums[way].at(-1) + trace.bytes[e]);
    }
    trace.moved.set(name, (s) => [0, 1].map((way) => sums[way][countBefore(events[way], s)]));
  }
  return trace.moved.get(name)(step);
}
