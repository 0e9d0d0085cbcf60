// The quiz in the browser: draws the questions, checks answers, and keeps what was answered in the trait `answers`.
// Plain ESM for anywidget. The exported functions are pure; tests/widgets/quiz.test.mjs holds them.

/** @typedef {{text: string, right: boolean, why: string}} Option */
/** @typedef {{kind: string, text: string, options: Option[], answer: number, tolerance: number, unit: string,
 *             because: string, hints: [number, string][]}} Question */
/** @typedef {{given: string[], tries: number, right: boolean, first: boolean}} Answer */
/** @typedef {{counted: boolean, right: boolean, lines: {sign: string, text: string}[]}} Verdict */

const RIGHT = "✓", WRONG = "✗", NOTE = "→";

/** The text cut into plain, `code` and *emphasis* pieces; the same two marks as _MARKS in quiz.py.
 * @param {string} text @returns {{kind: "text"|"code"|"em", text: string}[]} */
export function tokens(text) {
  const marks = /`([^`]+)`|(?<![\p{L}\p{N}_*])\*([^\s*](?:[^*]*[^\s*])?)\*(?![\p{L}\p{N}_*])/gu;
  const pieces = [];
  let end = 0;
  for (const mark of text.matchAll(marks)) {
    if (mark.index > end) pieces.push({ kind: "text", text: text.slice(end, mark.index) });
    pieces.push(mark[1] !== undefined ? { kind: "code", text: mark[1] } : { kind: "em", text: mark[2] });
    end = mark.index + mark[0].length;
  }
  if (end < text.length) pieces.push({ kind: "text", text: text.slice(end) });
  return pieces;
}

const NUMBER = /^[+-]?(\d{1,3}(?:[,_ \u00a0\u2009\u202f]\d{3})+|\d*)(\.\d*)?(e[+-]?\d+)?$/i;
const PREFIXES = { kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 };

/** One number as typed, or null. `digits` counts those written, for a number written as a rounded one.
 * @param {string} text @returns {{value: number, digits: number} | null} */
function readPlain(text) {
  const parts = NUMBER.exec(text.trim());
  if (!parts || !/\d/.test(parts[1] + (parts[2] ?? ""))) return null;
  const mantissa = (parts[1] + (parts[2] ?? "")).replace(/[^\d.]/g, "");
  const digits = mantissa.replace(".", "").replace(/^0+/, "").length;
  return { value: Number(text.trim().replace(/[,_ \u00a0\u2009\u202f]/g, "")), digits };
}

/** A typed number: digits with or without thousands separators, 1.34e8, powers (2**27, 2^27), products and quotients,
 * and with unit "bytes" also 128 MiB. null where it cannot be read. `rounded`: digits, if written as a rounded number.
 * @param {string} text @param {string} [unit] @returns {{value: number, rounded: number} | null} */
export function readNumber(text, unit = "") {
  let rest = text.trim().replace(/[−–]/g, "-").replace(/[×·]/g, "*").replace(/\^/g, "**");
  let times = 1;
  const prefix = unit === "bytes" && /([kmgt]i?b)$/i.exec(rest);
  if (prefix) [rest, times] = [rest.slice(0, -prefix[0].length), PREFIXES[prefix[0].toLowerCase()]];
  else if (unit && rest.toLowerCase().endsWith(unit.toLowerCase())) rest = rest.slice(0, -unit.length);
  let value = times;
  let first = null;
  for (const [, sign, factor] of `*${rest.replaceAll("**", "^")}`.matchAll(/([*/])([^*/]*)/g)) {
    const numbers = factor.split("^").map(readPlain);
    if (numbers.length > 2 || numbers.includes(null)) return null;
    first ??= numbers[0];
    const power = numbers.length === 2 ? numbers[0].value ** numbers[1].value : numbers[0].value;
    value = sign === "*" ? value * power : value / power;
  }
  if (!Number.isFinite(value)) return null;
  return { value, rounded: prefix || /[.e]/i.test(rest) ? first.digits : 0 };
}

/** Whether a typed number is this one: within the tolerance, or the number itself rounded to 3 digits or more.
 * @param {{value: number, rounded: number}} typed @param {number} target @param {number} tolerance */
export function isNumber(typed, target, tolerance) {
  const same = (a, b) => Math.abs(a - b) <= 1e-9 * Math.abs(b);
  if (same(typed.value, target) || Math.abs(typed.value - target) <= tolerance * Math.abs(target)) return true;
  return typed.rounded >= 3 && same(typed.value, Number(target.toPrecision(Math.min(typed.rounded, 21))));
}

/** @param {number} value */
export function written(value) {
  return Number.isInteger(value) ? value.toLocaleString("en-US") : String(Number(value.toPrecision(6)));
}

/** @param {string} sign @param {string} word @param {string} why */
const line = (sign, word, why) => ({ sign, text: why ? `${word}: ${why}` : `${word}.` });
const uncounted = (text) => ({ counted: false, right: false, lines: [{ sign: NOTE, text }] });

/** What to say to an answer: `given` holds the chosen options' texts, or the one string typed.
 * An empty or unreadable answer is not counted as a try.
 * @param {Question} question @param {string[]} given @returns {Verdict} */
export function check(question, given) {
  if (question.kind === "number") return checkNumber(question, given[0] ?? "");
  if (!given.length) return uncounted("Choose an answer first.");
  const chosen = question.options.filter((option) => given.includes(option.text));
  const lines = chosen.map((option) => {
    const [sign, word] = option.right ? [RIGHT, "Right"] : [WRONG, "Not so"];
    const named = question.kind === "multiple" ? `${option.text} – ${word.toLowerCase()}` : word;
    return line(sign, named, option.why);
  });
  const missing = question.options.filter((option) => option.right && !given.includes(option.text)).length;
  if (question.kind === "multiple" && missing) {
    lines.push(line(NOTE, `${missing} more belong${missing === 1 ? "s" : ""} to the answer`, ""));
  }
  return { counted: true, right: !missing && chosen.every((option) => option.right), lines };
}

/** @param {Question} question @param {string} text @returns {Verdict} */
function checkNumber(question, text) {
  if (!text.trim()) return uncounted("Type a number first.");
  const typed = readNumber(text, question.unit);
  if (!typed) return uncounted("This does not read as a number. Write 1024, 1,024, 1.02e3 or 2**10, with a point for decimals.");
  const unit = question.unit && ` ${question.unit}`;
  if (isNumber(typed, question.answer, question.tolerance)) {
    const exact = typed.value === question.answer ? "Right" : `Right, ${written(question.answer)}${unit} to be exact`;
    return { counted: true, right: true, lines: [line(RIGHT, exact, question.because)] };
  }
  const hint = question.hints.find(([wrong]) => isNumber(typed, wrong, question.tolerance));
  const why = hint ? hint[1] : typed.value < question.answer ? "too small." : "too large.";
  return { counted: true, right: false, lines: [line(WRONG, `Not ${written(typed.value)}${unit}`, why)] };
}

/** The entry of `answers` after one more checked answer.
 * @param {Answer | null} before @param {string[]} given @param {boolean} right @returns {Answer} */
export function recorded(before, given, right) {
  return { given, tries: (before?.tries ?? 0) + 1, right, first: before ? before.first : right };
}

/** @param {(Answer | null)[]} answers */
export function scoreLine(answers) {
  const count = (name) => answers.filter((answer) => answer?.[name]).length;
  const n = answers.length;
  return `${count("right")} of ${n} right now, ${count("first")} of ${n} right at the first try`;
}

// -- drawing -------------------------------------------------------------------------------------------------------------

/** An element with attributes and children; strings become text nodes, so nothing typed is ever read as HTML. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  // JupyterLab takes Enter and the arrows for its own commands, unless the element that has the focus says this itself.
  if (tag === "input" || tag === "button") element.setAttribute("data-lm-suppress-shortcuts", "true");
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** @param {string} text */
const rich = (text) => tokens(text).map((piece) => (piece.kind === "text" ? piece.text : make(piece.kind, {}, piece.text)));

/** One question's form. `onCheck` gets what was given and whether it is right; `paint` shows an Answer or null.
 * @param {Question} question @param {number} place @param {string} id @param {(given: string[], right: boolean) => void} onCheck */
function questionForm(question, place, id, onCheck) {
  const form = make("form", { class: "fl-question" });
  const feedback = make("div", { class: "fl-feedback", role: "status", "aria-live": "polite" });
  const inputs = [];
  const body = make("div", { class: "fl-options" });
  if (question.kind === "number") {
    const input = make("input", { type: "text", inputmode: "decimal", autocomplete: "off", spellcheck: "false", placeholder: "e.g. 1,024 or 2**10" });
    body.append(make("label", {}, make("span", {}, "Your answer"), input, question.unit));
    inputs.push(input);
  }
  for (const option of question.options) {
    const input = make("input", { type: question.kind === "single" ? "radio" : "checkbox", name: id, value: option.text });
    body.append(make("label", {}, input, make("span", {}, ...rich(option.text))));
    inputs.push(input);
  }
  const note = question.kind === "multiple" ? [make("span", { class: "fl-note" }, " More than one may be right.")] : [];
  const button = make("button", { type: "submit", "aria-label": `Check question ${place}` }, "Check");
  const legend = make("legend", {}, make("b", {}, `${place}. `), ...rich(question.text), ...note);
  form.append(make("fieldset", {}, legend, body, make("div", { class: "fl-row" }, button, feedback)));

  const given = () => (question.kind === "number" ? [inputs[0].value] : inputs.filter((input) => input.checked).map((input) => input.value));
  /** @param {Verdict | null} verdict */
  const say = (verdict) => {
    form.dataset.state = !verdict?.counted ? "open" : verdict.right ? "right" : "wrong";
    feedback.replaceChildren(...(verdict?.lines ?? []).map(({ sign, text }) => {
      return make("p", {}, make("span", { class: "fl-sign", "data-sign": sign, "aria-hidden": "true" }, sign), make("span", {}, ...rich(text)));
    }));
  };
  form.addEventListener("input", () => say(null)); // the old feedback is about the old answer
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const verdict = check(question, given());
    if (verdict.counted) onCheck(given(), verdict.right); // comes back as paint()
    else say(verdict);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target.tagName === "BUTTON") return;
    event.preventDefault();
    form.requestSubmit();
  });
  /** @param {Answer | null} answer */
  const paint = (answer) => {
    if (question.kind === "number") inputs[0].value = answer?.given[0] ?? "";
    else for (const input of inputs) input.checked = answer?.given.includes(input.value) ?? false;
    say(answer ? check(question, answer.given) : null);
  };
  return { form, paint };
}

let views = 0;

function render({ model, el }) {
  const questions = model.get("questions");
  const view = ++views; // radio groups of two views of one quiz must not share a name
  const score = make("p", { class: "fl-score", role: "status", "aria-live": "polite" });
  const again = make("button", { type: "button" }, "Start again");
  const save = (answers) => {
    model.set("answers", answers);
    model.save_changes();
  };
  const forms = questions.map((question, index) =>
    questionForm(question, index + 1, `fl-quiz-${view}-${index}`, (given, right) => {
      save(model.get("answers").map((answer, i) => (i === index ? recorded(answer, given, right) : answer)));
    }));
  /** What each form shows now, so that answering one question leaves a half-filled other one alone. */
  const shown = questions.map(() => undefined);
  const paint = () => {
    const answers = model.get("answers");
    forms.forEach(({ paint: paintForm }, index) => {
      const now = JSON.stringify(answers[index]);
      if (now !== shown[index]) paintForm(answers[index]);
      shown[index] = now;
    });
    score.textContent = scoreLine(answers);
    again.hidden = !answers.some(Boolean);
  };
  again.addEventListener("click", () => {
    shown.fill(undefined);
    save(questions.map(() => null));
    forms[0].form.querySelector("input").focus();
  });
  const root = make("section", { class: "flashlab-quiz", "aria-label": "Quiz" });
  root.append(...forms.map(({ form }) => form), make("footer", {}, score, again));
  el.append(root);
  paint();
  model.on("change:answers", paint);
  return () => model.off("change:answers", paint);
}

export default { render };
