"""Every lesson and lab keeps the form that the README promises, and carries what a reader without a kernel needs to see."""

import importlib
import re
from pathlib import Path

import nbformat
import pytest

from flashlab.bench import records, report
from flashlab.notebook import source

LESSONS = sorted(Path(__file__).parents[2].glob("notebooks/[0-9][0-9]_*.ipynb"))
LABS = sorted(Path(__file__).parents[2].glob("notebooks/labs/lab[0-9]*.ipynb"))
ALL = LESSONS + LABS
# Lessons with one longer cell that the reader is asked to change.
EDITABLE = {"00_start_here", "05_triton_primer", "06_triton_forward", "08_triton_backward"}
FACTS = {
    "00_start_here": ["rows"],
    "01_standard_attention": ["134,217,728 bytes", "33,554,432 bytes", "545,259,520 bytes", "64 times that"],
    "02_roofline": ["8,589,934,592 FLOPs", "412 tokens"],
    "03_online_softmax": ["neutral: True", "no keys: [[0.0, 0.0]] lse [-inf]"],
    "04_tiling": ["57,856 bytes", "20,736 bytes", "35,328 bytes", "36 tiles", "541,065,216 bytes"],
    "05_triton_primer": ["15.5", "32 registers", "4,000 bytes", "928 bytes", "91,776 bytes", "16,384 bytes", "24 of the 256 lanes"],
    "06_triton_forward": ["20,736 bytes", "10 tiles", "14,592 bytes", "81,808 bytes", "0.0 with lse -inf", "41,216 bytes", "traced: 1 ×"],
    "07_backward": ["32,768 bytes", "73,728 bytes", "54,016 bytes", "98,816 bytes", "22.5 ×", "gradcheck of o and lse: True"],
    "08_triton_backward": ["it should be: 1111.0", "26,624 bytes", "54,016 bytes", "40,960 bytes", "16,384 bytes", "1.48 ×", "compiled: True"],
    "09_making_it_fast": [
        "2,281,701,376 bytes read", "L2 model: 8.82 %", "exponentials 0.128 ms", "tensor cores 0.139 ms", "data sheet: 92.4 %", "65,536 registers", "takes 45,056",
        "256 bytes spilled, 1 at once", "64: 2 → 3 programs", "128: 1 → 2 programs", "64 of 1056 tiles", "tiles: 1.94 ×", "idle 14.1%", "idle 13.5%", "656 MB read",
        "52% idle", "{64: (3, 2), 128: (2, 1)}", "81,920 bytes", "16,384 bytes", "predicted and traced agree to the byte",
    ],
    "lab1_speedup_vs_length": ["0.27 × the L2", "1.07 × the L2", "0.48 for each multiprocessor", "0.00109 ms", "38,889,586,688 bytes", "8,192 tokens"],
}


GIVEN = {"8,192", "10,000", "100,000"}  # sizes that a lesson sets, not results


def _ms(one, other):
    """What finds the time of `one` and, in a later line, of `other`."""
    return rf"{one} +([\d.]+) ms[\s\S]*?{other} +([\d.]+) ms"


# (lesson, a sentence in its text, what to look for in its recorded outputs, and between which numbers that must lie; where
# two numbers are looked for, the first divided by the second)
MEASURED = [
    ("00_start_here", "That is one row in four, by chance.", r"compared: (\d+) rows", 44, 52),
    ("00_start_here", "the naive clock says a small fraction of the truth", r"naive median ([\d.]+) ms", 0, 0.3),
    ("01_standard_attention", "About four, as the bytes say, or somewhat more", r"by the bytes: 4 × · measured: ([\d.]+) ×", 3.8, 6),
    ("01_standard_attention", "well over half of a copy's rate", r"(?:scores|product) .*GB/s, +(\d+)% of a copy", 55, 100),
    ("01_standard_attention", "PyTorch's softmax gets less out of the memory", r"softmax .*GB/s, +(\d+)% of a copy", 10, 55),
    ("01_standard_attention", "On the recorded H200, 3.91 of four.", r"counters +[\d,]+ bytes: ([\d.]+) passes", 3.91, 3.91),
    ("01_standard_attention", "saw 3.91 of the four passes", r"counters +[\d,]+ bytes: ([\d.]+) passes", 3.91, 3.91),
    ("01_standard_attention", "The reads agree to a thousandth.", r"read: +([\d,]+) by formula, +([\d,]+) counted", 0.999, 1.001),
    ("01_standard_attention", "Of the writes 51 MB are missing", r"each operator ended: (\d+) MB", 51, 51),
    ("01_standard_attention", "6 to 27 MB, still lay in the L2", r"written (5[\d.]+) MB", 536.87 - 27.5, 536.87 - 5.5),  # scores, weights
    ("01_standard_attention", "6 to 27 MB, still lay in the L2", r"written +(\d\.\d) MB", 8.39 - 6.5, 8.39 - 5.5),  # o
    ("02_roofline", "flash asked for 1,346 MB, and HBM moved 61.", r"sdpa-flash +- +([\d,.]+)", 1345.5, 1346.5),
    ("02_roofline", "flash asked for 1,346 MB, and HBM moved 61.", r"sdpa-flash +- +[\d,.]+ +([\d.]+)", 60.5, 61.5),
    ("02_roofline", "7 of the 17 MB of o were still there", r"sdpa-flash +- +[\d,.]+ +[\d.]+ +[\d.]+ +([\d.]+)", 16.78 - 7.5, 16.78 - 6.5),
    ("02_roofline", "moves what the formula says, less 2%.", r"standard +([\d,.]+) +[\d,.]+ +([\d,.]+) +[\d,.]+ +[\d,.]+\n", 1.015, 1.025),
    ("02_roofline", "| the same, counted on an H200 | 63 |", r"standard .* by formula, +([\d.]+) by the counters", 62.5, 63.5),
    ("02_roofline", "| flash, n = 4096, counted on an H200 | about 2240 |", r"sdpa-flash .* by formula, +([\d.]+) by the counters", 2220, 2260),
    ("02_roofline", "No point touches its roof", r"sdpa-flash .* ([\d.]+) TFLOP/s", 100, 700),
    ("03_online_softmax", "In the first tile all 64 rise", r"the maximum rose in: \[(\d+),", 64, 64),
    ("03_online_softmax", "A few units of the last digit of a float64.", r"largest difference: (\d+e-\d+)", 0, 2e-15),
    ("04_tiling", "It falls towards 12.5", r"n =  16384: FlashAttention-1 moves ([\d.]+) ×", 12, 13),
    ("05_triton_primer", "it ran at a small part of a copy's rate", r"torch.softmax .*GB/s, +(\d+)% of a copy", 10, 55),
    ("05_triton_primer", "your kernel reaches 97% of a copy's rate", r"yours .*GB/s, +(\d+)% of a copy", 97, 97),
    ("05_triton_primer", "`torch.softmax` 30%;", r"torch.softmax .*GB/s, +(\d+)% of a copy", 30, 30),
    ("05_triton_primer", "On the recorded H200 your softmax came to 97% of a copy's rate.", r"yours .*GB/s, +(\d+)% of a copy", 97, 97),
    ("06_triton_forward", "your forty lines are 5.9 × as fast as standard attention", _ms("standard", "yours"), 5.85, 5.95),
    ("06_triton_forward", "and 1.2 × as fast as PyTorch's FlashAttention-2.", _ms("SDPA, flash", "yours"), 1.15, 1.25),
    ("06_triton_forward", "The library is 1.3 × as fast as yours,", r"flashlab.attention .* (\d+) TFLOP/s\s+yours .* (\d+) TFLOP/s", 1.25, 1.35),
    ("06_triton_forward", "so 1.6 × as fast as PyTorch's.", _ms("SDPA, flash", "flashlab.attention"), 1.55, 1.65),
    ("06_triton_forward", "your kernel is 5.9 × as fast as standard attention, and", _ms("standard", "yours"), 5.85, 5.95),
    ("06_triton_forward", "Within the budget", r"([\d.]+) ×, at most 2 ×", 0, 2),
    ("06_triton_forward", "in 16 bits *below* plain PyTorch", r"float16 .*: ([\d.]+) ×, at most 2 ×", 0, 1),
    ("07_backward", "Nothing happens to them, so the loss does not move", r"computed: ([\d.e-]+)", 0, 0),
    ("07_backward", "dv never passes the softmax, so it stays right", r"dv is off by ([\d.e-]+), dk by", 0, 1e-14),
    ("07_backward", "dv never passes the softmax, so it stays right", r"dv is off by [\d.e-]+, dk by ([\d.]+)", 0.1, 1),
    ("07_backward", "The same factor everywhere", r"too large by a factor of ([\d.]+) to", 2, 2),
    ("07_backward", "Only the last row, which sees every key, sums to 1.", r"weights sum to \[.* ([\d.]+) *\]", 1, 1),
    ("08_triton_backward", "Right, and the same bytes as the loop, to the last one.", r"dk is off by (\d+e-\d+);", 0, 5e-3),
    ("08_triton_backward", "Most differ, in the last bits.", r"(\d+)% of the sums differ", 50, 100),
    ("08_triton_backward", "Rounding of float32.", r"differs from float64 by ([\d.e-]+)", 0, 1e-5),
    ("08_triton_backward", "at most **three** times the error of plain PyTorch", r"d[qkv]: ([\d.]+) × the error", 0, 3),
    ("08_triton_backward", "the two kernels gave the same bits each time", r"deterministic=True: (\d) of 4", 0, 0),
    ("08_triton_backward", "the fused one gave other bits in 4 of 4 repeats.", r"deterministic=False: (\d) of 4", 4, 4),
    ("08_triton_backward", "the two kernels 1.3 × as fast at head_dim 64", _ms("64, SDPA, flash", "64, two kernels"), 1.295, 1.315),
    ("08_triton_backward", "and 1.45 × at 128;", _ms("128, SDPA, flash", "128, two kernels"), 1.445, 1.455),
    ("08_triton_backward", "the fused one 1.06 × and 1.16 ×.", _ms("64, SDPA, flash", "64, fused"), 1.055, 1.065),
    ("08_triton_backward", "the fused one 1.06 × and 1.16 ×.", _ms("128, SDPA, flash", "128, fused"), 1.155, 1.165),
    ("08_triton_backward", "n = 4096, head_dim 64 | 1 | 1.24 × |", r"64, two kernels .* (\d+) TFLOP/s\s+head_dim  64, fused .* (\d+) TFLOP/s", 1.235, 1.245),
    ("09_making_it_fast", "5.7 × as fast at head_dim 64", r"against 16 × 16.*head dim 64: ([\d.]+) ×", 5.5, 5.8),
    ("09_making_it_fast", "and 3.5 × at 128,", r"against 16 × 16.*head dim 128: ([\d.]+) ×", 3.4, 3.7),
    ("09_making_it_fast", "1.7 × and 1.8 ×. With all tiles visited", r"All tiles visited.*head dim 64: ([\d.]+) ×", 1.65, 1.75),
    ("09_making_it_fast", "1.7 × and 1.8 ×. With all tiles visited", r"All tiles visited.*head dim 128: ([\d.]+) ×", 1.75, 1.85),
    ("09_making_it_fast", "At 128 nothing spills any more: 1.44 ×. At 64 nothing had, and nothing is gained.", r"8 warps against 4.*head dim 128: ([\d.]+) ×", 1.43, 1.45),
    ("09_making_it_fast", "At 128 nothing spills any more: 1.44 ×. At 64 nothing had, and nothing is gained.", r"8 warps against 4.*head dim 64: ([\d.]+) ×", 0.98, 1.02),
    ("09_making_it_fast", "`wide` loses, at 64 without a spill; `stages` changes nothing.", r"wide against tiles .*head dim \d+: ([\d.]+) ×", 0.6, 0.9),
    ("09_making_it_fast", "`wide` loses, at 64 without a spill; `stages` changes nothing.", r"stages against warps .*head dim \d+: ([\d.]+) ×", 0.98, 1.02),
    ("09_making_it_fast", "`e` was *our* wrong prediction: a third slower.", r"(?m)^e against tiles .*?: ([\d.]+) ×", 0.63, 0.72),
    ("09_making_it_fast", "At 128 that gains 5 to 6 percent.", r"More programs at once.*head dim 128: ([\d.]+) ×", 1.05, 1.07),
    ("09_making_it_fast", "At 64 it **loses** about 5:", r"More programs at once.*head dim 64: ([\d.]+) ×", 0.945, 0.965),
    ("09_making_it_fast", "A few percent: 6 at head_dim 64, 4 at 128.", r"One operation a score.*head dim 64: ([\d.]+) ×", 1.05, 1.07),
    ("09_making_it_fast", "A few percent: 6 at head_dim 64, 4 at 128.", r"One operation a score.*head dim 128: ([\d.]+) ×", 1.03, 1.045),
    ("09_making_it_fast", "0.85 and 0.77 of the speed", r"divided in every step.*head dim 64: ([\d.]+) ×", 0.84, 0.86),
    ("09_making_it_fast", "0.85 and 0.77 of the speed", r"divided in every step.*head dim 128: ([\d.]+) ×", 0.76, 0.78),
    ("09_making_it_fast", "1.3 × at head_dim 64, the largest gain there since the tiles, and 1.14 × at 128.", r"not compared.*head dim 64: ([\d.]+) ×", 1.31, 1.35),
    ("09_making_it_fast", "1.3 × at head_dim 64, the largest gain there since the tiles, and 1.14 × at 128.", r"not compared.*head dim 128: ([\d.]+) ×", 1.12, 1.16),
    ("09_making_it_fast", "the longest first gains nothing by itself", r"longest against whole  head dim 64: ([\d.]+) ×", 0.98, 1.02),
    ("09_making_it_fast", "with heads together 1.05 × and 1.08 ×.", r"l2 against longest  head dim 64: ([\d.]+) ×", 1.045, 1.055),
    ("09_making_it_fast", "with heads together 1.05 × and 1.08 ×.", r"l2 against longest .*head dim 128: ([\d.]+) ×", 1.07, 1.09),
    ("09_making_it_fast", "and loses 2 to 3 percent", r"all-heads against l2  head dim 64: ([\d.]+) ×", 0.965, 0.985),
    ("09_making_it_fast", "1.17 × and 1.2 ×. And two ideas", r"library's kernel against .*head dim 64: ([\d.]+) ×", 1.165, 1.175),
    ("09_making_it_fast", "1.17 × and 1.2 ×. And two ideas", r"library's kernel against .*head dim 128: ([\d.]+) ×", 1.19, 1.205),
    ("09_making_it_fast", "and so another program's place.", r"overlap against library .*head dim \d+: ([\d.]+) ×", 0.7, 0.95),
    ("09_making_it_fast", "Both lose. A likely reason for `mixed`:", r"mixed against l2 .*head dim \d+: ([\d.]+) ×", 0.9, 0.99),
    ("09_making_it_fast", "the model says 10.8 GB of DRAM, and the counters saw 11.0", r"flash1: .* for, ([\d.]+) GB of DRAM", 10.8, 10.8),
    ("09_making_it_fast", "the model says 10.8 GB of DRAM, and the counters saw 11.0", r"flash1 +Flash.* 128 +([\d,]+) ", 10950, 11050),
    ("09_making_it_fast", "within 0.1 percent for `unfused`,", r"unfused +([\d,.]+) +[\d,.]+ +([\d,.]+)", 0.999, 1.001),
    ("09_making_it_fast", "0.2 for `triton`, and 5 for `flash1`,", r"\ntriton +([\d,.]+) +[\d,.]+ +([\d,.]+)", 0.998, 1.0),
    ("09_making_it_fast", "0.2 for `triton`, and 5 for `flash1`,", r"\nflash1 +([\d,.]+) +[\d,.]+ +([\d,.]+)", 0.945, 0.955),
    ("09_making_it_fast", "DRAM's agree within 2 percent but for `flash1`.", r"\n(?:unfused|triton) +[\d,.]+ +[\d,.]+ +[\d,.]+ +([\d,.]+) +([\d,.]+)", 0.98, 1.02),
    ("09_making_it_fast", "Six and a half times as long.", r"time, of your kernel with tiles\?.*measured: ([\d.]+) ×", 6.4, 6.6),
    ("09_making_it_fast", "from 68 to 560 at 128", r"small +lesson 06.* yes +4\.\d+ +(\d+) ", 67, 69),
    ("09_making_it_fast", "from 68 to 560 at 128", r"library .* yes +[\d.]+ +(4\d\d|5\d\d) ", 435, 562),
    ("09_making_it_fast", "1.67 × and 1.82 × PyTorch's FlashAttention-2", r"library .* yes .* l2 +(1\.\d\d) ", 1.6, 1.9),
    ("09_making_it_fast", "torch's takes three times as long", r"ForwardReg: ([\d.]+) ms", 0.26 * 2.9, 0.26 * 3.3),
    ("09_making_it_fast", "Not too few warps: torch's has *more* at work.", r"warps at work (\d+)%, at most 10 rows", 50, 70),
    ("09_making_it_fast", "Not too few warps: torch's has *more* at work.", r"warps at work (\d+)%, at most 2 rows", 90, 100),
    ("09_making_it_fast", "Not DRAM: it is far from full.", r"ForwardReg: [\d.]+ ms, ([\d,]+) GB/s", 0, 1600),
    ("09_making_it_fast", "through shared memory: over six times our bytes.", r"ForwardReg: .* ([\d.]+) GB through shared", 0.8 * 6, 0.85 * 6.5),
    ("09_making_it_fast", "those take a fifth of its time", r"takes (\d+)% of that time\s+1024 threads", 17, 23),
]


def read(path):
    return nbformat.read(path, as_version=4)


def words(notebook):
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def text_of(output):
    return output.get("text") or "\n".join(str(value) for kind, value in output.get("data", {}).items() if kind.startswith("text/"))


def test_lessons_00_to_08_are_there():
    assert [path.stem for path in LESSONS[:9]] == sorted(FACTS)[:9]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_its_parts(path):
    notebook = read(path)
    nbformat.validate(notebook)
    text = words(notebook)
    for part in ("**You will be able to**", "**You need**", "**Time**", "## Check yourself", "## Summary", "**Next:**"):
        assert part in text, f"{path.stem} lacks {part}"
    if not path.stem.startswith("00"):
        assert "**Sources:**" in text and "**Exercise e" in text
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert any("predict(" in source for source in code) and any(source.startswith("quiz(") for source in code)
    assert 35 <= len(notebook.cells) <= 80
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_lab_has_its_parts(path):
    notebook = read(path)
    nbformat.validate(notebook)
    text, code = words(notebook), [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    for part in ("**You will be able to**", "**You need**", "**Time**", "## Discuss", "## Hand in", "## Summary", "**Next:**", "**Sources:**"):
        assert part in text, f"{path.stem} lacks {part}"
    guesses = {name for source in code for name in re.findall(r"^(\w+) = predict\(", source, re.M)}
    assert guesses and all(any(f"{name}.reveal(" in source for source in code) for name in guesses)
    assert 35 <= len(notebook.cells) <= 80 and len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert path.with_suffix(".md").name not in text  # the answers stay with the instructor


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_lab_has_a_page_for_the_instructor(path):
    if not (path.parents[2] / "instructor.md").exists():
        pytest.skip("this is a class's copy")
    page = path.with_suffix(".md").read_text()
    for part in ("**Goal.**", "**Minutes.**", "## Expected ranges", "## Discussion, with answers", "## What goes wrong"):
        assert part in page, f"{path.stem}.md lacks {part}"


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_cells_are_short(path):
    lines = [len(cell.source.splitlines()) for cell in read(path).cells if cell.cell_type == "code"]
    long = [count for count in lines if count > 10]
    assert len(long) <= (path.stem in EDITABLE) and max(lines) <= 40
    paragraphs = [cell.source for cell in read(path).cells if cell.cell_type == "markdown" and not re.search(r"^#+ |^\|", cell.source, re.M)]
    assert max(len(paragraph.split()) for paragraph in paragraphs) <= 60


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_stored_outputs_come_from_a_gpu_and_show_without_a_kernel(path):
    notebook = read(path)
    stored = outputs(notebook)
    assert "widgets" not in notebook.metadata
    assert not [output for output in stored if output.output_type == "error"]
    for output in stored:
        assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {}), "run make record: it leaves the still picture"
        if "image/png" in output.get("data", {}):
            assert len(output.metadata["image/png"]["alt"].split()) >= 5
    on_gpu = not any("No GPU: " in text_of(output) for output in stored) and any("NVIDIA" in text_of(output) for output in stored)
    assert on_gpu, "stored outputs name no GPU: make record on one, then read what the text says of speed beside the numbers"


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_lesson_shows_the_numbers_that_its_text_states(path):
    shown = "\n".join(text_of(output) for output in outputs(read(path)))
    assert [fact for fact in FACTS.get(path.stem, []) if fact not in shown] == []


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_every_large_number_in_the_text_was_shown_by_a_cell(path):
    shown = "\n".join(text_of(output) for lesson in ALL if lesson <= path for output in outputs(read(lesson)))
    stated = set(re.findall(r"\d{1,3}(?:,\d{3})+", words(read(path)))) - GIVEN
    assert {number for number in stated if number not in shown} == set()


@pytest.mark.parametrize("stem, sentence, shown, low, high", MEASURED, ids=[f"{row[0][:2]}: {row[1][:30]}" for row in MEASURED])
def test_a_sentence_about_a_measurement_agrees_with_what_was_recorded(stem, sentence, shown, low, high):
    notebook = read(next(path for path in ALL if path.stem == stem))
    assert sentence in " ".join(words(notebook).split()), "the sentence changed: look at its numbers again"
    found = re.findall(shown, "\n".join(text_of(output) for output in outputs(notebook)))
    pairs = [match if isinstance(match, tuple) else (match, "1") for match in found]
    numbers = [float(one.replace(",", "")) / float(other.replace(",", "")) for one, other in pairs]
    assert numbers and all(low <= number <= high for number in numbers), numbers


def test_lesson_06_says_of_its_two_waits_what_tiles_py_lists():
    said = " ".join(words(read(next(path for path in LESSONS if path.stem == "06_triton_forward"))).split())
    assert "In the trials of `kernels/tiles.py`, at head_dim 64, each alone gained 1 to 2 percent, both together 10" in said
    rows = [r"fit the L2, longest tiles first \(\*\)", r"next tile's keys, best tile \(\*\)", r"in two chains a row, best order \(\*\)"]
    tried = (LESSONS[0].parents[1] / "flashlab/kernels/tiles.py").read_text()
    before, order, both = (int(re.search(rf"{row} +(\d+) / ", tried)[1]) for row in rows)  # head_dim 64, full
    chains = int(re.search(r"The two short chains alone, in the old order: (\d+) / ", tried)[1])
    assert [round(100 * (now / before - 1)) for now in (chains, order, both)] == [1, 2, 10]


def test_lesson_08_says_of_head_dim_256_what_was_recorded():
    said = " ".join(words(read(next(path for path in LESSONS if path.stem == "08_triton_backward"))).split())
    assert "At head_dim 256 the fused kernel takes about twice the time of the two (the table in `kernels/tiles.py`)." in said
    backward = records.on_grid(one for one in records.load() if one.pass_ == "backward" and one.device == "NVIDIA H200")
    assert 1.9 <= report.geometric_mean(backward, "triton", "triton/fused", 256).ratio <= 2.2


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_cells_checked_by_nbval_do_not_depend_on_the_machine(path):
    for cell in read(path).cells:
        if "nbval-check-output" in cell.metadata.get("tags", []):
            assert not re.search(r"this_gpu|time_call|measure_ceilings|copy_rate|max_memory|runs|measured\(", cell.source), cell.source


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_no_markdown_image_lacks_alt_text(path):
    assert not re.search(r"!\[\s*\]\(", words(read(path)))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_code_of_the_library_that_an_output_shows_is_as_it_is_now(path):
    listed = re.compile(r"`{3,}python\n# (flashlab/\S+)\.py, line \d+\n(?:@.*\n)*(?:def|class) (\w+)")
    for output in outputs(read(path)):
        shown = output.get("data", {}).get("text/markdown", "")
        if found := listed.match(shown):
            thing = getattr(importlib.import_module(found[1].replace("/", ".")), found[2])
            assert shown == source(thing).data, f"{found[2]} is not as it was: run its cell again"
