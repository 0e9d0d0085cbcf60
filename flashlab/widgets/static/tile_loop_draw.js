/**
 * The tile loop's pictures: where things stand (geometry) and how they are drawn on a canvas. Colours and fonts are
 * JupyterLab's; a tile's colour is its tensor's, and its letter says the same again.
 */
import { countBefore, movedBy, stateAt, whole } from "./tile_loop_trace.js";

// -- Where things stand -------------------------------------------------------------------------------------------------
const WIDE = 560; // from this width on, HBM, score grid and SRAM stand side by side; below, SRAM goes underneath

/** Rectangles [x, y, width, height] of everything drawn for a canvas of this width, with room for `least` SRAM slots. */
export function geometry(trace, width, least = 0) {
  const wide = width >= WIDE, gap = wide ? 16 : 10, pad = 12;
  const top = wide ? 376 : 300;
  const hbmWidth = Math.round(width * (wide ? 0.31 : 0.46));
  const sramWidth = wide ? Math.round(width * 0.27) : width;
  const columns = wide ? 1 : 2, slotHeight = wide ? Math.min(38, 232 / Math.max(trace.slots.length, 1)) : 36;
  const sramTop = wide ? 0 : top + gap;
  const sramHeight = wide ? top : 34 + Math.ceil(Math.max(trace.slots.length, least) / columns) * slotHeight + 58;
  const place = { width, height: sramTop + sramHeight, wide, pad };
  place.hbm = [0, 0, hbmWidth, top];
  place.sram = [width - sramWidth, sramTop, sramWidth, sramHeight];
  const grid = [hbmWidth + gap, 0, width - hbmWidth - gap - (wide ? sramWidth + gap : 0), top];
  place.grid = grid;

  // HBM: bands for what has one row per query or key, squares for what has n_q × n_k numbers.
  const all = [...trace.hbm.entries()];
  const square = ([name, t]) => !FIRST.includes(name) && t.rows === trace.n_q && t.cols === trace.n_k && t.cols > 1;
  const order = (name) => (FIRST.indexOf(name) + 1 || 9);
  const bands = all.filter((entry) => !square(entry)).sort((a, b) => order(a[0]) - order(b[0]));
  const squares = all.filter(square).map(([name]) => name);
  const ghost = squares.length === 0 && trace.grid.length > 0;
  const squareSide = wide ? 92 : Math.min(58, (hbmWidth - 2 * pad - 8) / 2), squareTop = top - squareSide - pad;
  const weight = ([, t]) => (t.cols === 1 ? 0.45 : 1);
  const space = hbmWidth - 2 * pad, total = bands.reduce((sum, entry) => sum + weight(entry), 0) || 1;
  const between = wide ? 12 : 6, unit = Math.min(40, (space - between * (bands.length - 1)) / total);
  const bandTop = 56, bandHeight = squareTop - bandTop - (wide ? 60 : 28);
  const longest = Math.max(1, ...bands.map(([, t]) => t.rows));
  place.bands = new Map();
  let x = pad + Math.max(0, (space - unit * total - between * (bands.length - 1)) / 2);
  for (const entry of bands) {
    const w = unit * weight(entry);
    place.bands.set(entry[0], [x, bandTop, w, (bandHeight * entry[1].rows) / longest]);
    x += w + between;
  }
  place.squares = new Map();
  const ratio = trace.n_k / Math.max(trace.n_q, 1);
  const [sw, sh] = ratio > 1 ? [squareSide, Math.max(squareSide / ratio, 12)] : [Math.max(squareSide * ratio, 12), squareSide];
  const names = ghost ? [""] : squares;
  names.forEach((name, i) => place.squares.set(name, [pad + i * (sw + (wide ? 30 : 8)), squareTop + squareSide - sh, sw, sh]));

  // The score grid keeps its aspect.
  const [gx, gy, gw] = grid, room = [gw - (wide ? 82 : 42), top - 46 - 62];
  const scale = Math.min(room[0] / Math.max(trace.n_k, 1), room[1] / Math.max(trace.n_q, 1));
  const cells = [Math.max(trace.n_k * scale, 8), Math.max(trace.n_q * scale, 8)];
  place.cells = [gx + 26 + (room[0] - cells[0]) / 2, gy + 46, ...cells];

  place.slots = new Map();
  const [sx, sy] = place.sram, slotWidth = (sramWidth - 2 * pad) / columns;
  trace.slots.forEach((name, i) => {
    place.slots.set(name, [sx + pad + (i % columns) * slotWidth, sy + 34 + Math.floor(i / columns) * slotHeight, slotWidth, slotHeight]);
  });
  place.gauge = [sx + pad, sy + sramHeight - 40, sramWidth - 2 * pad, 14];
  return place;
}

/** The part of rectangle `box` that a tile covers of a tensor with these rows and columns. */
export function within([x, y, w, h], tile, rows, cols) {
  const [r, c] = [Math.max(rows, 1), Math.max(cols, 1)]; // a tensor may have no rows
  return [x + (w * tile.col0) / c, y + (h * tile.row0) / r, (w * tile.cols) / c, (h * tile.rows) / r];
}

// -- How they are drawn -------------------------------------------------------------------------------------------------
const blend = (a, b, t) => a.map((from, i) => from + (b[i] - from) * t);
const ease = (t) => 1 - (1 - t) ** 3;

/** Colours and fonts of JupyterLab's theme, and hatches made from them. */
export function readPalette(root, looks) {
  const style = getComputedStyle(root), dark = document.body.dataset.jpThemeLight === "false";
  const css = (name) => style.getPropertyValue(name).trim();
  const lift = (colour) => (dark ? mix(colour, 0.25) : colour);
  const palette = { text: css("--fl-text"), muted: css("--fl-muted"), line: css("--fl-line"), card: css("--fl-card"), paper: css("--fl-paper") };
  palette.accent = css("--fl-accent");
  palette.wrong = css("--fl-wrong");
  palette.font = css("--fl-font");
  palette.of = (name) => lift(looks.tensors[name] ?? looks.other);
  palette.hatch = hatch(palette.muted, 0.55);
  return palette;
}

/** A hex colour mixed with white. */
function mix(hex, share) {
  const part = (i) => Math.round(parseInt(hex.slice(i, i + 2), 16) * (1 - share) + 255 * share);
  return `rgb(${part(1)}, ${part(3)}, ${part(5)})`;
}

function hatch(colour, alpha) {
  const cell = document.createElement("canvas"), pen = cell.getContext("2d");
  cell.width = cell.height = 7;
  Object.assign(pen, { strokeStyle: colour, globalAlpha: alpha, lineWidth: 1.2 });
  pen.beginPath();
  for (const shift of [-7, 0, 7]) pen.moveTo(shift, 7), pen.lineTo(shift + 7, 0);
  pen.stroke();
  return pen.createPattern(cell, "repeat");
}

/** Short hands for one canvas: fill, frame, write. */
function brush(pen, palette) {
  return {
    fill(box, colour, alpha = 1, radius = 0) {
      pen.globalAlpha = alpha;
      pen.fillStyle = colour;
      if (radius) pen.beginPath(), pen.roundRect(...box, radius), pen.fill();
      else pen.fillRect(...box);
      pen.globalAlpha = 1;
    },
    frame(box, colour, { width = 1, dash = [], alpha = 1, radius = 0 } = {}) {
      Object.assign(pen, { strokeStyle: colour, lineWidth: width, globalAlpha: alpha });
      if (dash.length) pen.setLineDash(dash);
      if (radius) pen.beginPath(), pen.roundRect(...box, radius), pen.stroke();
      else pen.strokeRect(...box);
      if (dash.length) pen.setLineDash([]);
      pen.globalAlpha = 1;
    },
    /** A dashed arrow from the middle of one rectangle to the middle of another. */
    arrow(from, to, colour) {
      const [a, b] = [from, to].map(([x, y, w, h]) => [x + w / 2, y + h / 2]), turn = Math.atan2(b[1] - a[1], b[0] - a[0]);
      const tip = [b[0] - Math.cos(turn) * (to[2] / 2 + 4), b[1] - Math.sin(turn) * (to[3] / 2 + 4)];
      Object.assign(pen, { strokeStyle: colour, fillStyle: colour, lineWidth: 2 });
      pen.setLineDash([6, 4]);
      pen.beginPath();
      pen.moveTo(...a), pen.lineTo(...tip);
      pen.stroke();
      pen.setLineDash([]);
      pen.beginPath();
      for (const side of [0, 2.6, -2.6]) {
        const far = side ? 9 : 2.7;
        pen.lineTo(tip[0] + far * Math.cos(turn + side), tip[1] + far * Math.sin(turn + side));
      }
      pen.fill();
    },
    write(text, x, y, { size = 11, colour = palette.text, align = "left", weight = "", turn = 0 } = {}) {
      Object.assign(pen, { fillStyle: colour, textAlign: align, textBaseline: "middle", font: `${weight} ${size}px ${palette.font}` });
      pen.save();
      pen.translate(x, y);
      pen.rotate(turn);
      pen.fillText(text, 0, 0);
      pen.restore();
    },
  };
}

/** Draw one trace at a step; `t` from 0 to 1 is how far the step's own tile has moved. */
export function draw(pen, trace, place, palette, step, row, t) {
  const state = stateAt(trace, step), d = brush(pen, palette);
  pen.clearRect(0, 0, place.width, place.height);
  drawHbm(d, trace, place, palette, state, Math.min(step, trace.n), t);
  drawGrid(d, trace, place, palette, state, Math.min(step, trace.n), row);
  drawSram(d, trace, place, palette, state, t);
  if (step <= trace.n) drawFlight(d, trace, place, palette, state, t);
}

function card(d, palette, box, title, note) {
  d.fill(box, palette.card, 1, 8);
  d.frame([box[0] + 0.5, box[1] + 0.5, box[2] - 1, box[3] - 1], palette.line, { radius: 8 });
  d.write(title, box[0] + 12, box[1] + 17, { size: 13, weight: "600" });
  if (note) d.write(note, box[0] + box[2] - 12, box[1] + 17, { colour: palette.muted, align: "right" });
}

function drawHbm(d, trace, place, palette, state, step, t) {
  card(d, palette, place.hbm, "HBM", place.wide ? "large and slow" : "");
  const current = state.event >= 0 ? trace.names[trace.tensor[state.event]] : "";
  for (const [name, box] of [...place.bands, ...place.squares]) {
    if (name === "") drawGhost(d, trace, place, palette, box);
    else drawTensor(d, trace, palette, state, step, t, name, box, name === current, place.squares.has(name));
  }
  const [x, , w, h] = place.hbm, ghostTop = Math.min(...[...place.squares.values()].map((box) => box[1]), h);
  const small = { size: 10, colour: palette.muted, align: "center" };
  const above = trace.hbm.has([...place.squares.keys()][0]) ? 27 : 17; // a square's name stands above it
  if (place.wide) d.write("→ read, ← written, × the whole tensor", x + w / 2, ghostTop - above, small);
}

/** Whether event `e` moved exactly this part. */
const covers = (trace, e, part) =>
  trace.row0[e] === part.row0 && trace.col0[e] === part.col0 && trace.rows[e] === part.rows && trace.cols[e] === part.cols;

function drawTensor(d, trace, palette, state, step, t, name, box, current, square) {
  const { parts, input, rows, cols } = trace.hbm.get(name), colour = palette.of(name), thin = cols === 1;
  const [x, y, w, h] = box;
  d.fill(box, palette.paper);
  if (input) d.fill(box, colour, 0.25);
  for (const part of parts) {
    if (part.lane !== state.lane) continue;
    const inside = within(box, part, rows, cols), written = countBefore(part.stores, step);
    if (written && !input) d.fill(inside, colour, 0.45);
    const inSram = state.held.get(name);
    if (inSram !== undefined && covers(trace, inSram, part)) d.fill(inside, colour, 0.45);
    if (inside[3] > 3) d.frame(inside, colour, { alpha: 0.55, width: 0.75 });
    const e = state.event;
    if (current && trace.ops[trace.op[e]] !== "hold" && covers(trace, e, part)) {
      d.fill(inside, colour, trace.ops[trace.op[e]] === "load" ? 0.5 : 0.3 + 0.4 * t);
      d.frame(inside, palette.text, { width: 1.5 });
    }
  }
  d.frame(box, colour, { dash: input ? [] : [3, 2] });
  const size = square ? 10 : 12;
  if (thin) d.write(name, x + w / 2, y + h / 2, { size: 10, align: "center", turn: -Math.PI / 2 });
  else d.write(name, x + w / 2, y - 10, { size, weight: "600", align: "center" });
  const times = (moved) => `${Number((moved / (rows * cols * trace.tensors[name][2] || 1)).toPrecision(2))}×`;
  const [read, written] = movedBy(trace, name, step);
  if (!thin && w > 30 && !square) {
    if (read) d.write(`→${times(read)}`, x + w / 2, y + h + 11, { size: 10, align: "center" });
    if (written) d.write(`←${times(written)}`, x + w / 2, y + h + (read ? 24 : 11), { size: 10, align: "center" });
  }
  if (name === "o") drawWrong(d, trace, palette, step, box, rows);
}

/** Rows of o that differ from the right answer, once stored: filled, with a cross beside each run and a count below. */
function drawWrong(d, trace, palette, step, [x, y, w, h], rows) {
  const wrong = trace.fault.wrong.filter(([, since]) => since <= step).map(([row]) => row), size = h / rows;
  let last = -Infinity;
  for (const row of wrong) {
    const top = y + row * size;
    d.fill([x, top, w, size], palette.wrong, 0.8);
    if (top - last < 13) continue;
    d.write("✗", x + w + 2, top + Math.max(size / 2, 5), { size: 12, weight: "700", colour: palette.wrong });
    last = top;
  }
  const loud = { size: 10, weight: "700", colour: palette.wrong, align: "center" };
  if (wrong.length) d.write(`✗ ${whole(wrong.length)} wrong`, x + w / 2, y + h + 24, loud);
}

function drawGhost(d, trace, place, palette, box) {
  const [x, y, w, h] = box, left = x + w + (place.wide ? 12 : 7), middle = y + h / 2;
  d.fill(box, palette.hatch, 0.35);
  d.frame(box, palette.muted, { dash: [4, 3] });
  const bytes = trace.n_q * trace.n_k * (trace.tensors.q?.[2] ?? 4), small = { size: 11, colour: palette.muted };
  const about = [`${whole(trace.n_q)} × ${whole(trace.n_k)}`, `${whole(bytes)} bytes`];
  const lines = ["scores", ...(place.wide ? [...about, "never stored"] : ["never", "stored"])];
  lines.forEach((text, i) => {
    const top = middle + (i - (lines.length - 1) / 2) * 15;
    d.write(text, left, top, i === 0 ? { weight: "600" } : about.includes(text) ? small : {});
  });
}

function drawGrid(d, trace, place, palette, state, step, row) {
  const [x, y, w, h] = place.cells, [gx, , gw] = place.grid, colour = palette.of("scores");
  d.write("scores", gx + 4, 17, { size: 13, weight: "600" });
  d.write(`${whole(trace.n_q)} × ${whole(trace.n_k)}`, gx + 56, 17, { colour: palette.muted });
  d.write("k rows →", x + w / 2, y - 10, { align: "center", size: 11 });
  d.write("q rows →", x - 12, y + h / 2, { align: "center", size: 11, turn: Math.PI / 2 });
  if (trace.grid.length) d.fill(place.cells, palette.hatch);
  let mark = 0;
  for (const tile of trace.grid) {
    if (tile.lane !== state.lane) continue;
    const box = within(place.cells, tile, trace.n_q, trace.n_k), done = countBefore(tile.events, step) / tile.events.length;
    d.fill(box, palette.paper);
    if (done) d.fill(box, colour, 0.12 + 0.22 * done);
    if (tile === state.tile) d.fill(box, colour, 0.75);
    if (box[3] > 2.5) d.frame(box, palette.line);
    mark = Math.min(box[2], box[3], 18);
    if (mark >= 9 && tile !== state.tile && done) {
      const text = done === 1 ? "✓" : `${Math.round(done * tile.events.length)}/${tile.events.length}`;
      d.write(text, box[0] + box[2] / 2, box[1] + box[3] / 2, { size: mark * 0.66, align: "center", colour: palette.text });
    }
  }
  d.frame(place.cells, palette.muted);
  if (state.event >= 0) drawAxes(d, trace, place, palette, state);
  if (state.tile) d.frame(within(place.cells, state.tile, trace.n_q, trace.n_k), palette.text, { width: 2 });
  const mine = y + (h * (row + 0.5)) / Math.max(trace.n_q, 1);
  d.frame([x, mine, w, 0], palette.accent, { width: 1.25, dash: [5, 3] });
  d.write(place.wide ? `◂ row ${row}` : "◂", x + w + 3, mine, { colour: palette.accent });
  const tiles = trace.grid.filter((tile) => tile.lane === state.lane);
  const done = tiles.filter((tile) => tile.events.at(-1) < step).length;
  d.write(`${whole(done)} of ${whole(tiles.length)} tiles done`, gx + gw / 2, y + h + 14, { align: "center", colour: palette.muted });
  drawLegend(d, palette, [gx, y + h + 28, gw], trace);
}

/** The rows of q and k now in SRAM, along the edges of the grid. */
function drawAxes(d, trace, place, palette, state) {
  const [x, y, w, h] = place.cells, q = state.held.get("q"), k = state.held.get("k");
  const rowsOf = (e) => ({ row0: trace.row0[e], rows: trace.rows[e], col0: 0, cols: 1 });
  const colsOf = (e) => ({ row0: 0, rows: 1, col0: trace.row0[e], cols: trace.rows[e] }); // rows of k are columns of the grid
  if (q !== undefined) d.fill(within([x - 5, y, 4, h], rowsOf(q), trace.n_q, 1), palette.of("q"));
  if (k !== undefined) d.fill(within([x, y - 5, w, 4], colsOf(k), 1, trace.n_k), palette.of("k"));
}

function drawLegend(d, palette, [x, y, w], trace) {
  const colour = palette.of("scores");
  const check = (b) => d.write("✓", b[0] + 5.5, b[1] + 6, { size: 9, align: "center" });
  const entries = [["now", (b) => (d.fill(b, colour, 0.75), d.frame(b, palette.text, { width: 1.5 }))]];
  entries.push(["done", (b) => (d.fill(b, colour, 0.34), d.frame(b, palette.line), check(b))]);
  entries.push(["to come", (b) => d.frame(b, palette.muted)]);
  if (trace.skipped) entries.push(["skipped", (b) => (d.fill(b, palette.hatch), d.frame(b, palette.muted))]);
  const columns = w < 240 ? 2 : entries.length, step = Math.min(w / columns, 84), left = x + (w - columns * step) / 2;
  entries.forEach(([text, swatch], i) => {
    const at = [left + (i % columns) * step + 6, y + Math.floor(i / columns) * 17];
    swatch([...at, 11, 11]);
    d.write(text, at[0] + 16, at[1] + 6, { size: 10, colour: palette.muted });
  });
}

/** The picture of a tile in its slot: as wide as its columns and as high as its rows, within 40 × 28 pixels. */
function thumbnail(trace, place, name, e) {
  const [x, y, , h] = place.slots.get(name), [most, tall] = [38, Math.min(h - 8, 28)];
  const size = (count, room) => Math.max(4, Math.min(room, (room * Math.log2(1 + count)) / 7));
  const [w, high] = [size(trace.cols[e], most), size(trace.rows[e], tall)];
  return [x + (most - w) / 2, y + (h - high) / 2, w, high];
}

function drawSram(d, trace, place, palette, state, t) {
  card(d, palette, place.sram, "SRAM", place.wide ? "small and fast" : "on the chip: small and fast");
  const incoming = state.event >= 0 ? trace.names[trace.tensor[state.event]] : "";
  for (const [name, [x, y, w, h]] of place.slots) {
    const e = state.held.get(name), middle = y + h / 2, left = x + 48;
    if (e === undefined) {
      d.frame([x + 5, y + 6, 28, h - 12], palette.line, { dash: [2, 2], radius: 3 });
      d.write(name, left, middle, { size: 11, colour: palette.muted });
      continue;
    }
    const arriving = e === state.event && name === incoming ? t : 1, box = thumbnail(trace, place, name, e);
    d.fill(box, palette.of(name), 0.2 + 0.55 * arriving, 2);
    d.frame(box, palette.of(name), { width: e === state.event ? 2 : 1, radius: 2 });
    const shape = `${trace.rows[e]} × ${trace.cols[e]}`, size = `${whole(trace.bytes[e])} B`, loaded = trace.ops[trace.op[e]] === "load";
    const rows = loaded ? `, rows ${trace.row0[e]}–${trace.row0[e] + trace.rows[e] - 1}` : "", two = h > 24;
    d.write(name, left, middle - (two ? 7 : 0), { weight: "600" });
    if (two) d.write(place.wide ? shape + rows : `${shape}, ${size}`, left, middle + 8, { size: 10, colour: palette.muted });
    if (place.wide) d.write(size, x + w - 2, middle - (two ? 7 : 0), { align: "right" });
  }
  drawGauge(d, trace, place, palette, state);
}

function drawGauge(d, trace, place, palette, state) {
  const [x, y, w, h] = place.gauge, budget = trace.sram_bytes ?? trace.peak, scale = w / Math.max(budget, trace.peak, 1);
  d.fill(place.gauge, palette.paper, 1, 3);
  let left = x;
  for (const [name, e] of [...state.held].sort((a, b) => trace.slots.indexOf(a[0]) - trace.slots.indexOf(b[0]))) {
    const part = [left, y, trace.bytes[e] * scale, h];
    d.fill(part, palette.of(name), 0.75);
    d.frame(part, palette.card);
    if (part[2] > 10) d.write(name.length * 6 < part[2] ? name : name[0], left + part[2] / 2, y + h / 2 + 0.5, { size: 9, align: "center" });
    left += part[2];
  }
  d.frame(place.gauge, palette.muted, { radius: 3 });
  const peak = x + trace.peak * scale;
  if (trace.sram_bytes) {
    d.frame([peak, y - 3, 0, h + 6], palette.text, { width: 1.5 });
    d.write(`peak ${whole(trace.peak)}`, Math.max(peak, x + 60), y - 10, { size: 10, align: "right", colour: palette.muted });
  }
  const of = trace.sram_bytes ? `of ${whole(trace.sram_bytes)} bytes` : `bytes held, ${whole(trace.peak)} at most`;
  d.write(`${whole(state.sram)} ${of}`, x, y + h + 12, { size: 11 });
}

/** The tile that the step loads or stores, on its way between HBM and SRAM; an arrow once it has arrived. */
function drawFlight(d, trace, place, palette, state, t) {
  const e = state.event;
  if (e < 0) return;
  const name = trace.names[trace.tensor[e]], kind = trace.ops[trace.op[e]];
  const home = place.bands.get(name) ?? place.squares.get(name), shape = trace.hbm.get(name);
  if (!home || !shape || !["load", "store", "atomic"].includes(kind)) return;
  const tile = { row0: trace.row0[e], col0: trace.col0[e], rows: trace.rows[e], cols: trace.cols[e] };
  const out = within(home, tile, shape.rows, shape.cols);
  const slot = [name, "acc", "scores"].find((held) => place.slots.has(held) && (held === name || state.held.has(held)));
  const chip = slot ? thumbnail(trace, place, slot, state.held.get(slot) ?? e) : [place.sram[0] + 20, place.sram[1] + 60, 24, 16];
  const [from, to] = kind === "load" ? [out, chip] : [chip, out];
  if (t === 1) return d.arrow(from, to, palette.of(name));
  const box = blend(from, to, ease(t));
  d.fill(box, palette.of(name), 0.85, 3);
  d.frame(box, palette.text, { width: 1.5, radius: 3 });
  d.write(name, box[0] + box[2] / 2, box[1] + box[3] / 2, { size: 11, weight: "700", align: "center" });
}
