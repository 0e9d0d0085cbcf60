// One row through the online softmax: turns the trace into frames, draws one frame, steps and plays without the kernel.
// Plain ESM for anywidget. The exported functions are pure; tests/widgets/online_softmax.test.mjs holds them.

/** @typedef {{row_max: number, row_sum: number, acc: number[] | null}} Stats */
/** `parts`: each column's share of row_sum after the frame. start and stop bound the frame's tile.
 * @typedef {{kind: "start"|"read"|"update"|"finish", tile: number, start: number, stop: number, tileMax: number,
 *            before: Stats, after: Stats, rescale: number, partsBefore: number[], parts: number[]}} Frame */
/** @typedef {{scores: (number|string)[], trace: object, result: (number|string)[], exact: (number|string)[],
 *             difference: number|string, is_exact: boolean, has_values: boolean, fault: string, count: number}} Run */

const PLAY_MS = 1600;
const NO_KEYS = -Infinity;

/** Infinity and nan travel as strings. @param {number|string} x */
export const real = (x) => (x === "inf" ? Infinity : x === "-inf" ? NO_KEYS : x === "nan" ? NaN : Number(x));

/** @param {number} x @param {number} [digits] */
export function written(x, digits = 4) {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "nan" : x > 0 ? "inf" : "−inf";
  const shown = Number(x.toPrecision(Math.abs(x) >= 1000 ? Math.max(6, digits) : digits));
  return (Math.abs(shown) >= 1000 && Math.abs(shown) < 1e15 ? shown.toLocaleString("en-US") : String(shown)).replace(/-/g, "−");
}

/** A typed score, or null where it is no number; -inf, −∞ and masked mean minus infinity. @param {string} text */
export function readScore(text) {
  const plain = text.trim().replace(/[−–]/g, "-").replace(/(?<=\d),(?=\d{3}(?!\d))/g, "");
  if (/^-(inf(inity)?|∞)$/i.test(plain)) return NO_KEYS;
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain) && Number.isFinite(Number(plain)) ? Number(plain) : null;
}

/** exp(score - row_max), as update() in reference/online_softmax.py has it: 0 where every key is masked.
 * @param {number} score @param {number} rowMax */
export const weight = (score, rowMax) => (rowMax === NO_KEYS ? 0 : Math.exp(score - rowMax));

/** The trace as frames: the start, a read and an update for each tile, and the division at the end. @param {Run} run
 * @returns {Frame[]} */
export function frames(run) {
  const scores = run.scores.map(real);
  const { events, ops, names, values } = run.trace;
  const updates = Object.keys(values).map(Number).filter((step) => ops[events.op[step]] === "compute").sort((a, b) => a - b);
  const flat = (step, name) => values[step][name]?.data.map(real) ?? null;
  let stats = { row_max: NO_KEYS, row_sum: 0, acc: flat(updates[0], "acc")?.map(() => 0) ?? null };
  let parts = scores.map(() => 0);
  const still = { tile: -1, start: 0, stop: 0, tileMax: NO_KEYS, rescale: 1 };
  /** @type {Frame[]} */
  const made = [{ kind: "start", ...still, before: stats, after: stats, partsBefore: parts, parts }];
  updates.forEach((step, tile) => {
    const start = events.col0[step], stop = start + events.cols[step];
    const now = { tile, start, stop, tileMax: Math.max(...scores.slice(start, stop)) };
    if (wasRead(run.trace, step)) made.push({ kind: "read", ...now, rescale: 1, before: stats, after: stats, partsBefore: parts, parts });
    const after = { row_max: flat(step, "row_max")[0], row_sum: flat(step, "row_sum")[0], acc: flat(step, "acc") };
    const rescale = flat(step, "rescale")[0];
    // What the traced loop really holds: old shares times the traced factor, so a loop without it shows its fault.
    const next = parts.map((part, i) => part * rescale + (i >= start && i < stop ? weight(scores[i], after.row_max) : 0));
    made.push({ kind: "update", ...now, rescale, before: stats, after, partsBefore: parts, parts: next });
    [stats, parts] = [after, next];
  });
  const shares = parts.map((part) => (stats.row_sum ? part / stats.row_sum : 0));
  made.push({ kind: "finish", ...still, before: stats, after: stats, partsBefore: parts, parts: shares });
  return made;

  function wasRead(trace, step) {
    for (let i = step - 1; i >= 0 && ops[trace.events.op[i]] !== "compute"; i--) {
      if (ops[trace.events.op[i]] === "load" && names[trace.events.tensor[i]] === "scores") return true;
    }
    return false;
  }
}

/** The number of tiles. @param {Frame[]} all */
const tileCount = (all) => all.filter((frame) => frame.kind === "update").length;

/** One or two sentences that say the frame in words. @param {Frame[]} all @param {number} index @param {Run} run */
export function sentence(all, index, run) {
  const { kind, tile, start, stop, tileMax, before, after, rescale, parts } = all[index];
  if (kind === "start") return "Nothing is read yet: row_max is −inf and row_sum is 0.";
  if (kind === "finish") {
    const how = run.is_exact ? "the same, up to rounding" : "not the same";
    const divided = run.has_values ? "acc is divided by row_sum, once, and that is o" : "Each weight is divided by row_sum, once";
    return `${divided}. Beside the exact result in three passes it is ${how}: the largest difference is ${written(real(run.difference), 2)}.`;
  }
  const name = `Tile ${tile + 1} of ${tileCount(all)}`;
  const rises = tileMax > before.row_max;
  if (kind === "read") {
    const which = stop - start === 1 ? `score ${stop}` : `scores ${start + 1} to ${stop}`;
    const read = `${name} is read: ${which}. `;
    if (tileMax === NO_KEYS) return `${read}All of it is −inf, masked: it can change nothing.`;
    if (before.row_max === NO_KEYS) return `${read}Its largest, ${written(tileMax)}, will be the first row_max.`;
    if (!rises) return `${read}Its largest, ${written(tileMax)}, is not above row_max ${written(before.row_max)}: nothing will shrink.`;
    return `${read}Its largest, ${written(tileMax)}, is above row_max ${written(before.row_max)}: what was summed so far must shrink.`;
  }
  if (tileMax === NO_KEYS) return `${name} adds nothing: row_max stays ${written(after.row_max)} and row_sum ${written(after.row_sum)}.`;
  const added = parts.slice(start, stop).reduce((sum, part) => sum + part, 0);
  const sum = `row_sum ${written(before.row_sum)} × ${written(rescale)} + ${written(added)} = ${written(after.row_sum)}`;
  if (before.row_max === NO_KEYS) return `${name}: row_max is now ${written(after.row_max)}; its weights add up to row_sum ${written(after.row_sum)}.`;
  if (!rises) return `${name}: row_max stays ${written(after.row_max)}, so the rescale factor is ${written(rescale)}. ${sum}.`;
  return `${name}: row_max rises from ${written(before.row_max)} to ${written(after.row_max)}, so what was summed is multiplied by ${written(rescale)}. ${sum}.`;
}

/** Rows of the table of numbers: name, how, before, after; the strong one is what this frame is about.
 * @param {Frame} frame @param {Run} run @returns {{name: string, before: string, how: string, after: string, strong?: boolean}[]} */
export function numbers({ kind, start, stop, tileMax, before, after, rescale, parts }, run) {
  const list = (acc) => `[${acc.slice(0, 6).map((x) => written(x)).join(", ")}${acc.length > 6 ? ", …" : ""}]`;
  const rows = [
    { name: "row_max", before: written(before.row_max), how: "", after: "" },
    { name: "rescale", before: "", how: "", after: "" },
    { name: "row_sum", before: written(before.row_sum), how: "", after: "" },
  ];
  if (before.acc) rows.push({ name: "acc", before: list(before.acc), how: "", after: "" });
  if (kind === "read") rows[0].how = `the tile's largest: ${written(tileMax)}`;
  if (kind === "update") {
    const added = parts.slice(start, stop).reduce((sum, part) => sum + part, 0);
    const factor = after.row_max === NO_KEYS ? "no key seen yet" : `exp(${written(before.row_max)} − ${bracketed(after.row_max)})`;
    Object.assign(rows[0], { how: `max(${written(before.row_max)}, ${written(tileMax)})`, after: written(after.row_max) });
    Object.assign(rows[1], { how: factor, after: `× ${written(rescale)}`, strong: true });
    Object.assign(rows[2], { how: `${written(before.row_sum)} × ${written(rescale)} + ${written(added)}`, after: written(after.row_sum) });
    if (before.acc) Object.assign(rows[3], { how: `acc × ${written(rescale)} + weights · v`, after: list(after.acc) });
  }
  if (kind === "finish") {
    const [got, exact] = [run.result, run.exact].map((row) => row.map(real));
    const how = run.has_values ? "acc / row_sum" : "exp(score − row_max) / row_sum";
    rows.splice(1, 1);
    rows.push({ name: run.has_values ? "o" : "weights", before: "", how, after: list(got) });
    rows.push({ name: "exact", before: "", how: "three passes over the row, float64", after: list(exact) });
    const verdict = run.is_exact ? "✓ the same, up to rounding" : "✗ not the same";
    rows.push({ name: "difference", before: "", how: "the largest", after: `${written(real(run.difference), 2)} ${verdict}`, strong: true });
  }
  return rows;
}

const bracketed = (x) => (x < 0 ? `(${written(x)})` : written(x));

/** Where a key leads, or null where it means nothing here. @param {string} key @param {number} step @param {number} last */
export function stepFor(key, step, last) {
  const places = { ArrowRight: Math.min(step + 1, last), ArrowLeft: Math.max(step - 1, 0), Home: 0, End: last };
  return places[key] ?? null;
}

// -- drawing -------------------------------------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  // JupyterLab takes arrows and Enter for its own commands, unless the element that has the focus says this itself.
  if (["input", "button", "select"].includes(tag) || attributes.tabindex) element.setAttribute("data-lm-suppress-shortcuts", "true");
  element.append(...children);
  return element;
}

/** The grid of bars for a row of n scores; `paint` draws a frame into it. The number of tiles and columns is fixed.
 * @param {Frame[]} all @param {Run} run @param {Record<string, string>} colours @param {(i: number, text: string, by: number) => void} onEdit */
function picture(all, run, colours, onEdit) {
  const n = run.scores.length;
  const columns = `116px repeat(${n}, minmax(0, 1fr)) 126px`;
  const at = (element, row, from, to) => Object.assign(element.style, { gridRow: row, gridColumn: `${from + 2} / ${to + 2}` }) && element;
  const grid = make("div", { class: "fl-grid", tabindex: "0", role: "group", "aria-label": "Scores and weights, step by step", "aria-keyshortcuts": "Space ArrowLeft ArrowRight Home End" });
  grid.style.gridTemplateColumns = columns;
  grid.style.setProperty("--fl-hue", colours.scores);
  const name = (row, text, small) => at(make("div", { class: "fl-name" }, text, make("small", {}, small)), row, -1, 0);
  const formula = name(5, "weights", "");
  grid.append(name(3, "scores", "edit them"), formula);
  const line = (kind) => make("div", { class: kind }, make("span"));
  const [max, maxBefore, zero] = [line("fl-max"), line("fl-max fl-before"), line("fl-zero")];
  const columnsOf = run.scores.map((_, i) => {
    const bar = make("div", { class: "fl-bar" }), inf = make("span", { class: "fl-inf" });
    const share = make("div", { class: "fl-bar" }), ghost = make("div", { class: "fl-bar fl-ghost" }), value = make("div", { class: "fl-value" });
    const input = make("input", { type: "text", inputmode: "decimal", autocomplete: "off", "aria-label": `score ${i + 1}` });
    input.addEventListener("change", () => onEdit(i, input.value, 0));
    input.addEventListener("keydown", (event) => {
      const by = { ArrowUp: 0.5, ArrowDown: -0.5, Enter: 0 }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      onEdit(i, input.value, by);
    });
    grid.append(at(make("div", { class: "fl-cell" }, bar, inf), 2, i, i + 1), at(make("div", { class: "fl-score" }, input), 3, i, i + 1));
    grid.append(at(make("div", { class: "fl-cell" }, ghost, share), 5, i, i + 1), at(value, 6, i, i + 1));
    return { bar, inf, share, ghost, value, input };
  });
  const tiles = all.filter((frame) => frame.kind === "update").map(({ start, stop }) => {
    const label = at(make("div", { class: "fl-tile" }), 1, start, stop), band = at(make("div", { class: "fl-band" }), "1 / -1", start, stop);
    grid.append(label, band);
    return { label, band, start, stop };
  });
  grid.append(at(make("div", { class: "fl-overlay" }, zero, maxBefore, max), 2, 0, n));

  /** @param {Frame[]} all @param {number} index @param {Run} run */
  const paint = (all, index, run) => {
    const frame = all[index];
    const scores = run.scores.map(real), finite = scores.filter(Number.isFinite);
    const low = Math.min(0, ...finite), span = (Math.max(0, ...finite) - low || 1) * 1.08;
    const up = (score) => (100 * (score - low)) / span;
    const finishing = frame.kind === "finish";
    formula.lastChild.textContent = `exp(score − row_max)${finishing ? " / row_sum" : ""}`;
    const done = (stop) => index >= all.findIndex((other) => other.kind === "update" && other.stop === stop);
    const stateOf = ({ start, stop }) => (frame.tile >= 0 && frame.start === start ? "now" : done(stop) ? "done" : "todo");
    tiles.forEach(({ label, band, start, stop }, tile) => {
      const state = stateOf({ start, stop });
      label.dataset.state = band.dataset.state = state;
      const words = { now: `▼ tile ${tile + 1}: now`, done: `✓ tile ${tile + 1}: done`, todo: `tile ${tile + 1}: to come` };
      label.textContent = stop - start > 1 ? words[state] : words[state].replace(/tile |: .*/g, "");
      columnsOf.slice(start, stop).forEach(({ bar }) => (bar.dataset.state = state));
    });
    columnsOf.forEach(({ bar, inf, share, ghost, value, input }, i) => {
      const score = scores[i], masked = !Number.isFinite(score);
      place(bar, masked ? up(0) : Math.min(up(score), up(0)), masked ? 0 : Math.abs(up(score) - up(0)), masked);
      inf.textContent = masked ? "↓" : "";
      const seen = finishing || frame.parts[i] > 0 || frame.partsBefore[i] > 0 || tiles.some((tile) => i >= tile.start && i < tile.stop && done(tile.stop));
      place(share, 0, 92 * Math.min(frame.parts[i], 1.08), !(frame.parts[i] > 0));
      const shrinks = frame.partsBefore[i] > frame.parts[i] * 1.001 && frame.partsBefore[i] > 0.005;
      place(ghost, 0, 92 * Math.min(frame.partsBefore[i], 1.08), !shrinks);
      value.textContent = seen ? written(frame.parts[i], 2) : "";
      if (document.activeElement !== input || readScore(input.value) !== score) input.value = written(score, 6).replace(/,/g, "");
      input.removeAttribute("aria-invalid");
    });
    placeLine(max, "row_max", frame.after.row_max);
    placeLine(maxBefore, "before", frame.before.row_max === frame.after.row_max ? NO_KEYS : frame.before.row_max);
    zero.style.bottom = `${up(0)}%`;

    function place(bar, bottom, height, hidden) {
      Object.assign(bar.style, { bottom: `${bottom}%`, height: `${height}%` });
      bar.hidden = hidden;
    }
    function placeLine(element, label, rowMax) {
      element.hidden = !Number.isFinite(rowMax);
      element.style.bottom = `calc(${Number.isFinite(rowMax) ? up(rowMax) : 0}% - 1px)`;
      element.firstChild.textContent = `${label} ${written(rowMax)}`;
    }
  };
  return { grid, columns, inputs: columnsOf.map(({ input }) => input), paint };
}

/** row_sum as two stacked lines, before and after; a hatched part was there before this frame. */
function sums(all, index, columns, colours) {
  const frame = all[index];
  const most = Math.max(1e-300, ...all.map((other) => (other.kind === "finish" ? 1 : other.after.row_sum)), ...all.map((other) => other.before.row_sum * 1));
  const stack = (parts, old) => make("div", { class: "fl-stack" }, ...parts.flatMap((part, i) => {
    if (!(part > 0)) return [];
    const element = make("div", { class: "fl-part", "data-age": old(i) ? "old" : "new" });
    element.style.width = `${(100 * part) / most}%`;
    return [element];
  }));
  const line = (label, parts, old, total) => [make("div", { class: "fl-name" }, ...label), stack(parts, old), make("div", { class: "fl-total" }, total)];
  const box = make("div", { class: "fl-sums", "aria-hidden": "true" }); // the table below says the same in numbers
  box.style.gridTemplateColumns = columns.replace(/repeat\(.*\)\)/, "1fr");
  box.style.setProperty("--fl-hue", colours.scores);
  const isNew = (i) => frame.kind === "update" && i >= frame.start && i < frame.stop;
  const after = { start: "", read: "", update: `× ${written(frame.rescale)}, + tile`, finish: "/ row_sum" }[frame.kind];
  box.append(...line([after ? "row_sum before" : "row_sum"], frame.partsBefore, () => true, written(frame.before.row_sum)));
  const total = frame.kind === "finish" ? frame.parts.reduce((sum, part) => sum + part, 0) : frame.after.row_sum;
  box.append(...line([after], after ? frame.parts : [], (i) => !isNew(i), after ? `= ${written(total)}` : ""));
  return box;
}

/** @param {Frame} frame @param {Run} run */
function table(frame, run) {
  const head = ["", "before", "how", "after"].map((text) => make("th", { scope: "col" }, text));
  const rows = numbers(frame, run).map((row) => {
    const cells = [row.before, row.how, row.after].map((text) => make("td", {}, text));
    return make("tr", { "data-strong": String(row.strong ?? false) }, make("th", { scope: "row" }, row.name), ...cells);
  });
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

/** One clock for all views of a model. */
function initialize({ model }) {
  let timer = 0;
  const tick = () => {
    const last = frames(model.get("run")).length - 1;
    const step = Math.min(model.get("step") + 1, last);
    model.set("step", step);
    if (step === last) model.set("playing", false);
    model.save_changes();
  };
  const follow = () => {
    clearInterval(timer);
    if (model.get("playing")) timer = setInterval(tick, PLAY_MS);
  };
  model.on("change:playing", follow);
  follow();
  return () => {
    clearInterval(timer);
    model.off("change:playing", follow);
  };
}

function render({ model, el }) {
  const colours = model.get("colours");
  let run, all, drawn, shape;
  const last = () => all.length - 1;
  const step = () => Math.max(0, Math.min(model.get("step"), last()));
  const send = (changes) => {
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    model.save_changes();
  };
  const goTo = (place) => send({ step: place, playing: false });
  const toggle = () => send(model.get("playing") ? { playing: false } : { playing: true, step: step() === last() ? 0 : step() });
  const edit = (scores, block_k = model.get("block_k")) => {
    const wire = scores.map((x) => (x === NO_KEYS ? "-inf" : x));
    if (JSON.stringify([wire, block_k]) === JSON.stringify([model.get("scores"), model.get("block_k")])) return receive();
    note.textContent = "The kernel is running the row again …";
    send({ scores: wire, block_k });
  };

  const button = (label, text, act, kind = "") => {
    const made = make("button", { type: "button", "aria-label": label, title: label, class: kind }, text);
    made.addEventListener("click", () => made.getAttribute("aria-disabled") === "true" || act());
    return made;
  };
  /** Not `disabled`: a button that has the focus would lose it at the last step, and the next key would be JupyterLab's. */
  const off = (given, ...buttons) => buttons.forEach((each) => each.setAttribute("aria-disabled", String(given)));
  const home = button("Go to the start", "|◀", () => goTo(0)), back = button("Step back", "← Back", () => goTo(Math.max(step() - 1, 0)));
  const play = button("Play", "▶ Play", toggle, "fl-play");
  const next = button("Step", "Step →", () => goTo(Math.min(step() + 1, last()))), end = button("Go to the end", "▶|", () => goTo(last()));
  const slider = make("input", { type: "range", min: "0", "aria-label": "step" });
  slider.addEventListener("input", () => goTo(Number(slider.value)));
  const place = make("span", { class: "fl-place" });
  const preset = make("select", {}, make("option", { value: "" }, "edited"), ...Object.keys(model.get("presets")).map((name) => make("option", {}, name)));
  preset.addEventListener("change", () => preset.value && edit(model.get("presets")[preset.value].map(real)));
  const tile = make("input", { type: "number", min: "1", step: "1" });
  const resize = () => edit(run.scores.map(real), Math.max(1, Math.min(Math.round(Number(tile.value)) || 1, run.scores.length)));
  tile.addEventListener("change", resize);
  tile.addEventListener("keydown", (event) => event.key === "Enter" && resize());
  const controls = make("div", { class: "fl-controls", role: "toolbar", "aria-label": "Playback and row" }, home, back, play, next, end, slider, place);
  controls.append(make("label", {}, "scores", preset), make("label", {}, "tile size", tile));
  const say = make("p", { class: "fl-say", role: "status", "aria-live": "polite" });
  const note = make("p", { class: "fl-note", role: "status", "aria-live": "polite" });
  const stage = make("div"), below = make("div");
  const root = make("section", { class: "flashlab-softmax", "aria-label": "Online softmax" }, controls, say, stage, below, note);

  const onEdit = (i, text, by) => {
    const typed = readScore(text);
    if (typed === null) {
      drawn.inputs[i].setAttribute("aria-invalid", "true");
      note.textContent = `Score ${i + 1} does not read as a number. Write one such as 2.5, or -inf.`;
      return;
    }
    const scores = run.scores.map(real);
    scores[i] = Number.isFinite(typed) ? Number((typed + by).toPrecision(12)) : typed;
    edit(scores);
  };
  const paint = () => {
    const index = step(), frame = all[index];
    drawn.paint(all, index, run);
    say.textContent = sentence(all, index, run);
    below.replaceChildren(sums(all, index, drawn.columns, colours), table(frame, run));
    Object.assign(slider, { max: String(last()), value: String(index) });
    slider.setAttribute("aria-valuetext", `step ${index} of ${last()}`);
    place.textContent = `step ${index} of ${last()}`;
    off(index === 0, home, back);
    off(index === last(), next, end);
    play.textContent = model.get("playing") ? "❚❚ Pause" : "▶ Play";
    play.setAttribute("aria-label", model.get("playing") ? "Pause" : "Play");
  };
  const receive = () => {
    run = model.get("run");
    all = frames(run);
    const now = JSON.stringify([run.scores.length, all.map((frame) => frame.start)]);
    if (now !== shape) {
      drawn = picture(all, run, colours, onEdit);
      stage.replaceChildren(drawn.grid);
      shape = now;
    }
    const same = Object.entries(model.get("presets")).find(([, row]) => JSON.stringify(row) === JSON.stringify(run.scores));
    preset.value = same?.[0] ?? "";
    Object.assign(tile, { max: String(run.scores.length), value: String(run.block_k) });
    note.textContent = run.fault && `The function stopped with ${run.fault} The picture is of the row before.`;
    note.dataset.fault = String(Boolean(run.fault));
    paint();
  };
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT"].includes(event.target.tagName)) return;
    if (event.key === " " && event.target.tagName !== "BUTTON") toggle();
    else if (stepFor(event.key, step(), last()) !== null) goTo(stepFor(event.key, step(), last()));
    else return;
    event.preventDefault();
  });

  el.append(root);
  receive();
  model.on("change:step change:playing", paint);
  model.on("change:run", receive);
  return () => {
    model.off("change:step change:playing", paint);
    model.off("change:run", receive);
  };
}

export default { initialize, render };
