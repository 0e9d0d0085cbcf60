/**
 * The tile loop's pure functions, on traces that test_tile_loop.py packs, against what Python replays of the same traces.
 * Run by pytest, which sets TILE_LOOP_MODULE (the one module the browser gets) and TILE_LOOP_CASES (packed traces).
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const js = await import(process.env.TILE_LOOP_MODULE);
const cases = JSON.parse(readFileSync(process.env.TILE_LOOP_CASES, "utf-8"));

/** Buffers travel as base64; each lands at an odd offset, as a buffer in a websocket message may. */
function unpack(packed) {
  if (packed === null || typeof packed !== "object") return packed;
  if ("base64" in packed) {
    const bytes = Buffer.from(packed.base64, "base64"), home = new ArrayBuffer(bytes.length + 1);
    new Uint8Array(home, 1).set(bytes);
    return new DataView(home, 1);
  }
  if (Array.isArray(packed)) return packed.map(unpack);
  return Object.fromEntries(Object.entries(packed).map(([name, given]) => [name, unpack(given)]));
}

for (const { name, packed, truth } of cases) {
  test(`${name}: every step's totals, SRAM, tiles and row values are Python's`, () => {
    const trace = js.readTrace(unpack(packed));
    assert.equal(truth.length, trace.n + 1);
    truth.forEach((right, step) => {
      const state = js.stateAt(trace, step);
      assert.equal(state.loaded, right.loaded, `loaded at ${step}`);
      assert.equal(state.stored, right.stored, `stored at ${step}`);
      assert.equal(state.sram, right.sram, `SRAM at ${step}`);
      assert.equal(state.tilesDone, right.tiles_done, `tiles done at ${step}`);
      assert.deepEqual([...state.held].sort(), right.held, `held at ${step}`);
      const row = js.rowAt(trace, right.row, step);
      for (const [value, numbers] of Object.entries(right.values)) {
        assert.deepEqual(row[value].after?.map((x) => x.toPrecision(5)) ?? null, numbers?.map((x) => Number(x).toPrecision(5)) ?? null);
      }
    });
  });

  test(`${name}: any order of steps gives the same state`, () => {
    const trace = js.readTrace(unpack(packed));
    const forwards = truth.map((_, step) => JSON.stringify([...js.stateAt(trace, step).held].sort()));
    for (let step = trace.n; step >= 0; step--) assert.equal(JSON.stringify([...js.stateAt(trace, step).held].sort()), forwards[step]);
  });

  test(`${name}: everything drawn stands inside the canvas, at each width`, () => {
    const trace = js.readTrace(unpack(packed));
    for (const width of [260, 300, 559, 560, 900]) {
      const place = js.geometry(trace, width);
      const boxes = [place.hbm, place.sram, place.cells, place.gauge, ...place.bands.values(), ...place.squares.values(), ...place.slots.values()];
      for (const [x, y, w, h] of boxes) {
        assert.ok([x, y, w, h].every(Number.isFinite), `${[x, y, w, h]} at ${width}`);
        assert.ok(x >= 0 && y >= 0 && x + w <= width + 0.5 && y + h <= place.height + 0.5, `${[x, y, w, h]} at ${width} × ${place.height}`);
      }
      for (const [x, , w] of place.bands.values()) assert.ok(x + w <= place.hbm[2], "a band leaves the HBM card");
    }
  });
}

const flash2 = () => js.readTrace(unpack(cases.find(({ name }) => name === "flash2").packed));

test("the sentence says the step in words", () => {
  const trace = flash2(), { n } = trace;
  assert.equal(js.sentence(trace, 0), `step 0 of ${n}: nothing has moved yet`);
  assert.equal(js.sentence(trace, 1), `step 1 of ${n}: load q rows 0 to 15, 1,024 bytes`);
  assert.equal(js.sentence(trace, 4), `step 4 of ${n}: keep acc (16 × 16) on the chip, 1,024 bytes`);
  assert.equal(js.sentence(trace, 8), `step 8 of ${n}: work q rows 0 to 15 × k rows 0 to 15 into acc`);
  assert.match(js.sentence(trace, n + 50), /^step 92 of 92: free v, 1,024 bytes of SRAM\. Done: 28,928 bytes moved, 2\.83 × less than standard attention$/);
});

test("the tiles that causal skips are told from those to come", () => {
  const trace = flash2();
  assert.equal(trace.grid.length, 10); // of 4 × 4
  assert.equal(trace.skipped, true);
  assert.equal(js.readTrace(unpack(cases.find(({ name }) => name === "standard").packed)).skipped, false);
});

test("a row's numbers before and after are those of two tiles that follow each other", () => {
  const trace = flash2(), done = trace.grid.filter((tile) => tile.row0 === 32).map((tile) => tile.events[0]);
  const at = (event) => js.rowAt(trace, 37, event + 1);
  assert.equal(at(done[0]).row_max.before, null);
  assert.deepEqual(at(done[1]).row_max.before, at(done[0]).row_max.after);
  assert.deepEqual(at(done[1]).acc.before, at(done[0]).acc.after);
  assert.equal(at(done[1]).acc.after.length, 4);
  assert.equal(at(done[1]).acc.step, done[1] + 1);
});

test("numbers are written with four digits, and infinity as infinity", () => {
  assert.deepEqual([1.23456, -0.5, -Infinity, NaN, 0].map(js.value), ["1.235", "−0.5", "−∞", "nan", "0"]);
  assert.equal(js.whole(1234567), "1,234,567");
});

test("countBefore counts what has happened", () => {
  assert.deepEqual([0, 3, 4, 5, 99].map((step) => js.countBefore([3, 4, 4, 90], step)), [0, 0, 1, 3, 4]);
});

test("a tile's rectangle is its share of the tensor's", () => {
  assert.deepEqual(js.within([10, 20, 100, 200], { row0: 1, col0: 2, rows: 1, cols: 2 }, 4, 4), [60, 70, 50, 50]);
  assert.deepEqual(js.within([10, 20, 100, 0], { row0: 0, col0: 0, rows: 0, cols: 4 }, 0, 4), [10, 20, 100, 0], "no rows");
});
