/**
 * The tile loop's view: panels, controls, keyboard and clock. The state is in the widget's traits; a click or a key
 * changes a trait, and so does the kernel. Playing costs no round trip: the step goes to the kernel four times a second.
 *
 * Plain ESM. tile_loop.py sends these three files as one: tile_loop_trace.js, tile_loop_draw.js, this one.
 */
import { draw, geometry, readPalette } from "./tile_loop_draw.js";
import { comparison, readTrace, rowAt, sentence, value, whole } from "./tile_loop_trace.js";

const SPEEDS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]; // steps a second
const SYNC_MS = 250; // how often a playing widget tells the kernel its step
const LONGEST_MS = 250; // a hidden page draws no frames: time that passed unseen is not played
const FLIGHT_MS = 320; // how long a tile takes between HBM and SRAM, at most
const SIGNS = {
  Play: "M3 1v14l11-7z",
  Pause: "M3 2h4v12H3zM9 2h4v12H9z",
  "First step": "M1 2h2v12H1zM9 2v12L4 8zM15 2v12L10 8z",
  "Step back": "M2 2h2v12H2zM14 2v12L5 8z",
  "Step forward": "M12 2h2v12h-2zM2 2v12l9-6z",
  "Last step": "M13 2h2v12h-2zM7 2v12l5-6zM1 2v12l5-6z",
};
const NAMES = ["row_max", "rescale", "row_sum", "acc", "o"];
const WATCH_HINT = 'No numbers were kept. To see them, trace with Memory(…, watch=("row_max", "row_sum", "rescale", "acc", "o")).';

/** An element with properties, attributes (aria-*, role, ...) and children. */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, given] of Object.entries(attributes)) {
    if (name === "text") node.textContent = given;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), given);
    else node.setAttribute(name, given);
  }
  node.append(...children);
  return node;
}

/** One trace's panel: title, sentence, canvas, fault, counters and the row's numbers. Returns what updates it. */
function makePanel(raw, looks, pickRow) {
  const trace = readTrace(raw), canvas = make("canvas", { role: "img" }), pen = canvas.getContext("2d");
  const line = make("p", { class: "fl-line", role: "status", "aria-live": "polite" });
  const fault = make("p", { class: "fl-fault", role: "alert", hidden: "" });
  const counter = (label) => make("output", { "aria-label": label });
  const counters = { loaded: counter("bytes loaded"), stored: counter("bytes stored"), standard: counter("standard attention, bytes in all") };
  const bar = make("div", { class: "fl-bar", role: "meter", "aria-label": "bytes moved beside standard attention", "aria-valuemin": "0" });
  const [loaded, stored, mark] = [make("span", { class: "fl-loaded" }), make("span", { class: "fl-stored" }), make("i")];
  bar.append(loaded, stored, mark);
  const ratio = make("p", { class: "fl-ratio" });
  const caption = make("caption"), body = make("tbody");
  const head = make("tr", {}, make("td"), make("th", { scope: "col", text: "before" }), make("th", { scope: "col", text: "after" }));
  const table = make("table", {}, caption, make("thead", {}, head), body), hint = make("p", { class: "fl-hint", text: WATCH_HINT });
  const look = looks.algorithms[trace.title], title = make("h4", { text: trace.title });
  if (look) title.style.setProperty("--fl-look", look.colour);
  const swatch = (kind, name, output) => make("span", {}, make("i", { class: kind }), `${name} `, output);
  const totals = make("p", { class: "fl-totals" }, swatch("fl-loaded", "loaded", counters.loaded), swatch("fl-stored", "stored", counters.stored));
  totals.append(swatch("fl-mark", "standard attention in all", counters.standard));
  const numbersHere = Object.keys(trace.values).length > 0;
  const moved = make("div", { class: "fl-moved" }, totals, bar, ratio);
  const below = make("div", { class: "fl-below" }, moved, numbersHere ? table : hint);
  const node = make("section", { class: "fl-panel", "aria-label": trace.title }, title, line, canvas, fault, below);
  const most = Math.max(trace.standard_bytes ?? 0, trace.loaded[trace.n] + trace.stored[trace.n], 1);
  mark.style.left = `${(100 * (trace.standard_bytes ?? 0)) / most}%`;
  mark.hidden = !trace.standard_bytes;
  bar.setAttribute("aria-valuemax", most);
  counters.standard.textContent = trace.standard_bytes ? `${whole(trace.standard_bytes)} bytes` : "unknown";
  const heading = (name) => (trace.values[name].width > 1 ? `${name}[:${trace.values[name].width}]` : name);
  const cells = new Map(NAMES.filter((name) => name in trace.values).map((name) => [name, [make("td"), make("td")]]));
  for (const [name, pair] of cells) body.append(make("tr", {}, make("th", { scope: "row", text: heading(name) }), ...pair));
  let place = null;
  canvas.addEventListener("click", (event) => {
    const [x, y, w, h] = place.cells, row = Math.floor(((event.offsetY - y) / h) * trace.n_q);
    if (event.offsetX > x - 20 && event.offsetX < x + w + 20 && row >= 0 && row < trace.n_q) pickRow(row);
  });

  const write = (output, text) => output.textContent === text || (output.textContent = text);
  return {
    node, trace, line,
    resize(slots) {
      const width = Math.max(220, canvas.parentElement.clientWidth - 2), ratio = window.devicePixelRatio || 1;
      place = geometry(trace, width, slots);
      Object.assign(canvas, { width: width * ratio, height: place.height * ratio });
      Object.assign(canvas.style, { width: `${width}px`, height: `${place.height}px` });
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    },
    /** Draw step `step`, `t` of the way through its move; the texts follow. */
    update(palette, step, row, t) {
      const s = Math.min(step, trace.n), mine = Math.min(row, trace.n_q - 1);
      draw(pen, trace, place, palette, step, mine, t);
      canvas.setAttribute("aria-label", `${trace.title}: HBM, score grid and SRAM at ${sentence(trace, s)}`);
      write(line, sentence(trace, step));
      write(counters.loaded, `${whole(trace.loaded[s])} bytes`);
      write(counters.stored, `${whole(trace.stored[s])} bytes`);
      write(ratio, comparison(trace, s));
      loaded.style.width = `${(100 * trace.loaded[s]) / most}%`;
      stored.style.width = `${(100 * trace.stored[s]) / most}%`;
      bar.setAttribute("aria-valuenow", trace.loaded[s] + trace.stored[s]);
      const { step: at, sentence: why } = trace.fault;
      fault.hidden = !why || (at !== null && step < at);
      if (!fault.hidden) write(fault, at === null ? why : `✗ step ${whole(at)}, ${why}`);
      if (!numbersHere) return;
      const lane = s ? trace.lane[s - 1] : 0, found = rowAt(trace, mine, s, lane);
      const changed = Math.max(0, ...Object.values(found).map((entry) => entry.step));
      write(caption, `row ${mine}: ${changed ? `last changed at step ${whole(changed)}` : "nothing seen yet"}`);
      for (const [name, [before, after]] of cells) {
        write(before, found[name].before && name !== "rescale" ? found[name].before.map(value).join("  ") : "–");
        write(after, found[name].after ? found[name].after.map(value).join("  ") : "–");
        after.classList.toggle("fl-changed", s > 0 && found[name].step === s);
      }
    },
  };
}

/** Give a button its name and its sign. */
function named(button, label) {
  button.innerHTML = `<svg viewBox="0 0 16 16" width="13" height="13" fill="currentColor" aria-hidden="true"><path d="${SIGNS[label]}"/></svg>`;
  button.setAttribute("aria-label", label);
  button.title = label;
  return button;
}

/** The row of buttons, slider, speed and row; each control calls back with what was asked for. */
function makeControls(ask) {
  const button = (label, onclick) => named(make("button", { type: "button", onclick }), label);
  const play = button("Play", ask.toggle);
  const slider = make("input", { type: "range", min: 0, value: 0, "aria-label": "Step", oninput: () => ask.go(Number(slider.value)) });
  const where = make("span", { class: "fl-where" });
  const speed = make("select", { "aria-label": "Speed", onchange: () => ask.speed(Number(speed.value)) });
  const row = make("input", { type: "number", min: 0, "aria-label": "Row", oninput: () => row.value && ask.row(Number(row.value)) });
  const before = [button("First step", ask.first), button("Step back", ask.back)];
  const after = [button("Step forward", ask.forward), button("Last step", ask.last)];
  const node = make("div", { class: "fl-controls", role: "toolbar", "aria-label": "Playback" }, ...before, play, ...after, slider, where);
  node.append(make("label", {}, "speed ", speed), make("label", {}, "row ", row));
  return { node, play, slider, where, speed, row };
}

/** @type {import("npm:@anywidget/types").Render} */
function render({ model, el }) {
  const root = make("div", { class: "fl-tile-loop", role: "group", tabindex: "0" });
  root.setAttribute("aria-keyshortcuts", "Space ArrowLeft ArrowRight Home End");
  const panels = make("div", { class: "fl-panels" });
  let shown = [], palette = null, frameId = 0, position = 0, previous = 0, moveStart = -1, sentAt = 0, sent = null, warned = false, drawn = "";

  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const steps = () => Math.max(0, ...shown.map((panel) => panel.trace.n));
  const stop = () => Math.min(...shown.map((panel) => panel.trace.fault.step ?? Infinity));
  const now = () => Math.floor(position);
  const set = (name, given) => {
    model.set(name, given);
    model.save_changes();
  };

  /** Tell the kernel the step. */
  function push() {
    sentAt = performance.now();
    if (sent === now()) return;
    sent = now();
    set("step", sent);
  }

  function show(step, { animate = false } = {}) {
    const target = Math.max(0, Math.min(step, steps()));
    moveStart = animate && target === now() + 1 && !calm.matches ? performance.now() : -1;
    position = target;
    request();
  }

  function go(step, options) {
    show(step, options);
    if (!model.get("playing")) push();
  }

  function play(on) {
    if (on && now() >= steps()) show(0);
    previous = performance.now();
    if (on !== model.get("playing")) set("playing", on);
    if (!on) push();
    for (const panel of shown) panel.line.setAttribute("aria-live", on ? "off" : "polite");
    request();
  }

  /** Let time pass while playing: some steps further, but not past the first wrong tile the first time. */
  function advance(time) {
    const speed = model.get("speed"), before = now();
    position = Math.min(position + (Math.min(Math.max(0, time - previous), LONGEST_MS) / 1000) * speed, steps());
    previous = time;
    if (before === now()) return;
    if (now() === before + 1 && speed <= 32 && !calm.matches) moveStart = time;
    if (!warned && before < stop() && now() >= stop()) {
      warned = true;
      position = stop();
      setRow(shown.find((panel) => panel.trace.fault.step === stop()).trace.fault.row);
      play(false);
    } else if (now() >= steps()) play(false);
    else if (time - sentAt > SYNC_MS) push();
  }

  function frame(time) {
    frameId = 0;
    if (!palette || !root.isConnected) return;
    if (model.get("playing")) advance(time);
    const length = Math.min(FLIGHT_MS, 800 / (model.get("playing") ? model.get("speed") : 1));
    const t = moveStart < 0 ? 1 : Math.min(1, Math.max(0, time - moveStart) / length);
    if (t === 1) moveStart = -1;
    const step = now();
    const key = `${step} ${model.get("row")} ${t}`;
    if (key !== drawn) for (const panel of shown) panel.update(palette, step, model.get("row"), step <= panel.trace.n ? t : 1);
    drawn = key;
    controls.slider.value = step;
    controls.slider.setAttribute("aria-valuetext", `step ${whole(step)} of ${whole(steps())}`);
    controls.where.textContent = `${whole(step)} / ${whole(steps())}`;
    if (moveStart >= 0 || model.get("playing")) request();
  }
  const request = () => (frameId ||= requestAnimationFrame(frame));

  const setRow = (row) => Number.isInteger(row) && set("row", Math.max(0, Math.min(row, Math.max(0, ...shown.map((panel) => panel.trace.n_q - 1)))));
  const ask = {
    toggle: () => play(!model.get("playing")),
    go, row: (row) => (setRow(row), onRow()), speed: (speed) => set("speed", speed),
    first: () => go(0), last: () => go(steps()), back: () => go(now() - 1), forward: () => go(now() + 1, { animate: true }),
  };
  const controls = makeControls(ask);
  root.append(panels, controls.node);
  el.append(root);

  root.addEventListener("keydown", (event) => {
    const keys = { " ": ask.toggle, ArrowLeft: ask.back, ArrowRight: ask.forward, Home: ask.first, End: ask.last };
    const typing = event.target.matches("select, input[type=number]"), pressing = event.key === " " && event.target.matches("button");
    if (!(event.key in keys) || typing || pressing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });

  /** JupyterLab's own plain keys (←: the heading above, D D: delete) are not for here; Shift+Enter and the like still are. */
  function guard(event) {
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !(event.shiftKey && event.key.length > 1);
    root.toggleAttribute("data-lm-suppress-shortcuts", plain && event.key !== "Escape");
  }
  window.addEventListener("keydown", guard, true); // before JupyterLab's, which listens on the document

  function resize() {
    if (!root.clientWidth) return;
    palette = readPalette(root, model.get("looks"));
    for (const panel of shown) panel.resize(Math.max(...shown.map(({ trace }) => trace.slots.length)));
    cancelAnimationFrame(frameId);
    [frameId, drawn] = [0, ""];
    frame(performance.now());
  }

  function onData() {
    shown = model.get("data").map((raw) => makePanel(raw, model.get("looks"), setRow));
    panels.replaceChildren(...shown.map((panel) => panel.node));
    warned = false;
    controls.slider.max = steps();
    controls.row.max = Math.max(0, ...shown.map((panel) => panel.trace.n_q - 1));
    root.setAttribute("aria-label", `Tile loop: ${shown.map((panel) => panel.trace.title).join(", ")}`);
    position = Math.min(position, steps());
    resize();
  }
  const onStep = () => model.get("step") !== sent && (sent = model.get("step"), show(sent, { animate: true }));
  function onPlaying() {
    const on = model.get("playing");
    named(controls.play, on ? "Pause" : "Play");
    play(on);
  }
  function onRow() {
    if (Number(controls.row.value) !== model.get("row") || !controls.row.value) controls.row.value = model.get("row");
    request();
  }
  function onSpeed() {
    const speeds = [...new Set([...SPEEDS, model.get("speed")])].sort((a, b) => a - b);
    controls.speed.replaceChildren(...speeds.map((speed) => make("option", { value: speed, text: `${speed} step${speed === 1 ? "" : "s"}/s` })));
    controls.speed.value = model.get("speed");
  }
  const handlers = { data: onData, step: onStep, playing: onPlaying, row: onRow, speed: onSpeed };
  for (const [name, handler] of Object.entries(handlers)) model.on(`change:${name}`, handler);
  const sizes = new ResizeObserver(resize), theme = new MutationObserver(resize);
  sizes.observe(root);
  theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"] });
  position = sent = model.get("step");
  onData(), onRow(), onSpeed();
  if (model.get("playing")) onPlaying();

  return () => {
    cancelAnimationFrame(frameId);
    window.removeEventListener("keydown", guard, true);
    sizes.disconnect();
    theme.disconnect();
    for (const [name, handler] of Object.entries(handlers)) model.off(`change:${name}`, handler);
  };
}

export default { render };
