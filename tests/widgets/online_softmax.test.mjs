// The online-softmax widget's pure functions: node --test tests/widgets/online_softmax.test.mjs.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

// A .js file outside a package is not a module to Node, so it is imported as text.
const text = await readFile(new URL("../../flashlab/widgets/static/online_softmax.js", import.meta.url));
const { frames, numbers, readScore, real, sentence, stepFor, weight, written } = await import(`data:text/javascript;base64,${text.toString("base64")}`);

// What test_online_softmax.py writes: runs of the reference, as the kernel sends them. See its docstring.
const runs = JSON.parse(process.env.FLASHLAB_RUNS ?? "null");
const needsRuns = runs ? {} : { skip: "run by test_online_softmax.py, which makes the traces" };
const near = (a, b) => Math.abs(a - b) < 1e-12;
const sum = (row) => row.reduce((total, x) => total + x, 0);

test("scores are read as people write them", () => {
  assert.equal(readScore(" 2.5 "), 2.5);
  assert.equal(readScore("−3"), -3);
  assert.equal(readScore("1e4"), 1e4);
  assert.equal(readScore("10,000.5"), 10000.5);
  for (const masked of ["-inf", "−inf", "-Infinity", "−∞"]) assert.equal(readScore(masked), -Infinity);
  for (const not of ["", "inf", "nan", "x", "1,5", "1e999", "2+2", "--1"]) assert.equal(readScore(not), null, not);
});

test("numbers are written short, with a real minus", () => {
  assert.equal(written(-0.272531), "−0.2725");
  assert.equal(written(10001), "10,001");
  assert.equal(written(9999.5), "9,999.5");
  assert.equal(written(-Infinity), "−inf");
  assert.equal(written(NaN), "nan");
  assert.equal(real("-inf"), -Infinity);
});

test("a masked row has weight 0, never nan", () => {
  assert.equal(weight(-Infinity, -Infinity), 0);
  assert.equal(weight(-Infinity, 3), 0);
  assert.equal(weight(3, 3), 1);
});

test("keys stay within the steps", () => {
  assert.deepEqual(["ArrowRight", "ArrowLeft", "Home", "End", "x"].map((key) => stepFor(key, 7, 7)), [7, 6, 0, 7, null]);
  assert.equal(stepFor("ArrowLeft", 0, 7), 0);
});

test("frames follow the trace: start, a read and an update a tile, finish", needsRuns, () => {
  const all = frames(runs.ordinary);
  assert.deepEqual(all.map((frame) => frame.kind), ["start", "read", "update", "read", "update", "read", "update", "finish"]);
  assert.deepEqual(all.filter((frame) => frame.kind === "update").map((frame) => [frame.start, frame.stop]), [[0, 4], [4, 8], [8, 12]]);
  assert.deepEqual(all.filter((frame) => frame.kind === "update").map((frame) => frame.after.row_max), [2.1, 3.4, 3.4]);
});

test("the shares add up to the traced row_sum in every frame of every row", needsRuns, () => {
  for (const [name, run] of Object.entries(runs).filter(([name]) => name !== "broken")) {
    for (const frame of frames(run)) {
      const want = frame.kind === "finish" ? 1 : frame.after.row_sum;
      assert.ok(Math.abs(sum(frame.parts) - want) <= 1e-9 * Math.max(1, want), `${name}, ${frame.kind} ${frame.tile}`);
      assert.ok(near(sum(frame.partsBefore), frame.before.row_sum), `${name}, before ${frame.kind} ${frame.tile}`);
    }
  }
});

test("a rise shrinks what was summed by exp(old max - new max)", needsRuns, () => {
  const update = frames(runs.ordinary)[4];
  assert.ok(near(update.rescale, Math.exp(2.1 - 3.4)));
  for (let i = 0; i < 4; i++) assert.ok(near(update.parts[i], update.partsBefore[i] * Math.exp(-1.3)));
  assert.match(sentence(frames(runs.ordinary), 3, runs.ordinary), /^Tile 2 of 3 is read: scores 5 to 8\. Its largest, 3\.4, is above row_max 2\.1/);
  assert.equal(sentence(frames(runs.ordinary), 4, runs.ordinary),
    "Tile 2 of 3: row_max rises from 2.1 to 3.4, so what was summed is multiplied by 0.2725. row_sum 1.646 × 0.2725 + 1.309 = 1.757.");
  const rows = Object.fromEntries(numbers(update, runs.ordinary).map((row) => [row.name, row]));
  assert.deepEqual([rows.rescale.how, rows.rescale.after], ["exp(2.1 − 3.4)", "× 0.2725"]);
  assert.deepEqual([rows.row_max.before, rows.row_max.after], ["2.1", "3.4"]);
});

test("a tile that is masked throughout changes nothing and says so", needsRuns, () => {
  const all = frames(runs.masked);
  assert.match(sentence(all, 1, runs.masked), /All of it is −inf, masked/);
  assert.equal(sentence(all, 2, runs.masked), "Tile 1 of 3 adds nothing: row_max stays −inf and row_sum 0.");
  assert.ok(!JSON.stringify([all, all.map((_, i) => sentence(all, i, runs.masked))]).includes("nan"));
  assert.equal(numbers(all[2], runs.masked)[1].how, "no key seen yet");
});

test("with values, acc is shown, and o at the end", needsRuns, () => {
  const all = frames(runs.values);
  const rows = Object.fromEntries(numbers(all.at(-1), runs.values).map((row) => [row.name, row]));
  assert.equal(rows.o.after, rows.exact.after);
  assert.match(rows.difference.after, /✓ the same/);
  assert.match(numbers(all[2], runs.values)[3].after, /^\[.+, .+\]$/);
});

test("a loop that forgets the rescale is shown as it is", needsRuns, () => {
  const all = frames(runs.broken);
  const at = all.findIndex((frame) => frame.kind === "update" && frame.tile === 1);
  assert.deepEqual(all[at].parts.slice(0, 4), all[at].partsBefore.slice(0, 4), "nothing shrank, because nothing did");
  assert.match(sentence(all, all.length - 1, runs.broken), /it is not the same: the largest difference is/);
  assert.match(numbers(all.at(-1), runs.broken).at(-1).after, /✗ not the same/);
});
