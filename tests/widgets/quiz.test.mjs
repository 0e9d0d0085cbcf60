// The quiz's pure functions: node --test tests/widgets/quiz.test.mjs (test_quiz.py runs it where Node exists).
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

// A .js file outside a package is not a module to Node, so it is imported as text.
const text = await readFile(new URL("../../flashlab/widgets/static/quiz.js", import.meta.url));
const { check, isNumber, readNumber, recorded, scoreLine, tokens, written } = await import(`data:text/javascript;base64,${text.toString("base64")}`);

const value = (typed, unit) => readNumber(typed, unit)?.value ?? null;

test("code and emphasis are marks, everything else is text", () => {
  assert.deepEqual(tokens("what *is* `n_q * 2`?"), [
    { kind: "text", text: "what " }, { kind: "em", text: "is" }, { kind: "text", text: " " },
    { kind: "code", text: "n_q * 2" }, { kind: "text", text: "?" },
  ]);
  for (const plain of ["2*n*n", "a * b * c", "<b>no</b>", "", "4**2", "n_q·n_k"]) {
    assert.deepEqual(tokens(plain), plain ? [{ kind: "text", text: plain }] : []);
  }
});

test("numbers are read as people write them", () => {
  for (const typed of ["134217728", "134,217,728", "134_217_728", "134 217 728", " 134217728 bytes", "2**27", "2^27",
    "8192*8192*2", "8192**2 × 2", "128 MiB", "1.34217728e8", "1.34217728·10^8", "2**28 / 2"]) {
    assert.equal(value(typed, "bytes"), 2 ** 27, typed);
  }
  assert.equal(value("-1.5"), -1.5);
  assert.equal(value("−3"), -3);
  assert.equal(value("537 MB", "bytes"), 537e6);
  assert.equal(value("2**-1"), 0.5);
});

test("what is no number is refused, and nothing is evaluated", () => {
  for (const typed of ["", "abc", "1,5", "1,34,2", "2**2**2", "1e", ".", "*2", "2*", "1/0", "1+1", "alert(1)", "0x10", "128 MiB"]) {
    assert.equal(readNumber(typed), null, typed);
  }
});

test("a number rounded to three digits or more is right, fewer digits are not", () => {
  const answer = 2 ** 27;
  const right = (typed, tolerance = 0) => isNumber(readNumber(typed, "bytes"), answer, tolerance);
  for (const typed of ["1.34e8", "1.342e8", "134 MB", "134.2 MB"]) assert.ok(right(typed), typed);
  for (const typed of ["1.3e8", "1e8", "134000000", "1.35e8", "1.343e8"]) assert.ok(!right(typed), typed);
  assert.ok(right("130000000", 0.05) && !right("120000000", 0.05));
});

const option = (name, right) => ({ text: name, right, why: `why ${name}` });
const choices = (kind, ...options) => ({ kind, options, hints: [], unit: "", because: "", tolerance: 0 });

test("a single choice is told why", () => {
  const question = choices("single", option("a", false), option("b", true));
  assert.deepEqual(check(question, ["b"]), { counted: true, right: true, lines: [{ sign: "✓", text: "Right: why b" }] });
  assert.deepEqual(check(question, ["a"]), { counted: true, right: false, lines: [{ sign: "✗", text: "Not so: why a" }] });
  assert.equal(check(question, []).counted, false);
});

test("a multiple choice tells of each chosen option, and how many are missing but not which", () => {
  const question = choices("multiple", option("a", true), option("b", true), option("c", false));
  assert.equal(check(question, ["a", "b"]).right, true);
  const partly = check(question, ["a"]);
  assert.equal(partly.right, false);
  assert.deepEqual(partly.lines.map((line) => line.sign), ["✓", "→"]);
  assert.match(partly.lines[1].text, /^1 more belongs/);
  const all = check(question, ["a", "b", "c"]);
  assert.equal(all.right, false);
  assert.equal(all.lines[2].text, "c – not so: why c");
});

test("a number gets its hint, else too small or too large", () => {
  const question = { kind: "number", answer: 2 ** 27, tolerance: 0, unit: "bytes", because: "n·n·2", hints: [[2 ** 26, "one byte each"]], options: [] };
  const said = (typed) => check(question, [typed]).lines[0].text;
  assert.equal(said("2**27"), "Right: n·n·2");
  assert.equal(said("1.34e8"), "Right, 134,217,728 bytes to be exact: n·n·2");
  assert.equal(said("2**26"), "Not 67,108,864 bytes: one byte each");
  assert.equal(said("5"), "Not 5 bytes: too small.");
  assert.equal(said("2**28"), "Not 268,435,456 bytes: too large.");
  for (const typed of ["", "many"]) assert.equal(check(question, [typed]).counted, false);
});

test("tries are counted and the first one is remembered", () => {
  const first = recorded(null, ["a"], false);
  assert.deepEqual(first, { given: ["a"], tries: 1, right: false, first: false });
  assert.deepEqual(recorded(first, ["b"], true), { given: ["b"], tries: 2, right: true, first: false });
  assert.equal(scoreLine([recorded(null, ["b"], true), recorded(first, ["b"], true), null]), "2 of 3 right now, 1 of 3 right at the first try");
});

test("numbers are written with separators", () => {
  assert.equal(written(134217728), "134,217,728");
  assert.equal(written(6.70886412), "6.70886");
});
