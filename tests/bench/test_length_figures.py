"""length_figures.py: what is drawn and what is said are the run's own numbers, and every line has its name."""

import length_runs as runs
import pytest

from flashlab.bench.length_figures import memory_against_length, memory_in_words, speedup_against_length, speedup_in_words, time_against_length, time_in_words
from flashlab.bench.lengths import FLASH, MATH, NAMES, Run, cpu_problems, problems, recorded
from flashlab.looks import KERNELS

RUN = recorded(runs.made_run())
CPU = Run("measured", "CPU (2 threads)", tuple(runs.made(p, kernel, 2.0, device="CPU (2 threads)", extra_bytes=None) for p in cpu_problems() for kernel in NAMES[:2]))
NOTHING = Run("recorded", "no machine yet", ())


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_a_panel_for_each_kernel_and_a_named_line_for_each_batch():
    figure = speedup_against_length(RUN)
    assert [axes.get_title() for axes in figure.axes] == [KERNELS[name].label for name in NAMES[1:]]
    for axes, ratio in zip(figure.axes, (6, 12)):
        drawn = [line for line in axes.lines if line.get_linestyle() in ("-", "--", ":") and len(line.get_xdata()) > 2]
        assert [len(line.get_xdata()) for line in drawn] == [6, 5, 4] and {y for line in drawn for y in line.get_ydata()} == {ratio}
        assert {line.get_linestyle() for line in drawn} == {"-", "--", ":"}
        assert {"batch 1", "batch 4", "batch 16"} <= set(texts(axes)) and "x: beyond it math has no room in memory" in texts(axes)
        (crosses,) = [line for line in axes.lines if line.get_marker() == "x"]
        assert sorted(crosses.get_xdata()) == [4096, 8192]
        heights = sorted(text.get_position()[1] for text in axes.texts if text.get_text().startswith("batch"))
        assert min(b - a for a, b in zip(heights, heights[1:])) > 0.05  # lines that start together have names that do not touch


def test_a_cpus_figure_has_flash_alone_and_no_cross():
    figure = speedup_against_length(CPU)
    assert [axes.get_title() for axes in figure.axes] == [KERNELS[FLASH].label]
    assert not [line for line in figure.axes[0].lines if line.get_marker() == "x" and len(line.get_xdata())]


def test_time_has_a_panel_for_each_batch():
    figure = time_against_length(RUN)
    assert [axes.get_title() for axes in figure.axes] == ["batch 1", "batch 4", "batch 16"]
    first = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert first[KERNELS[MATH].label] == [12 * 2**i for i in range(6)] and len(first) == 3


def test_memory_has_the_formula_what_was_counted_and_the_gpus_end():
    axes = memory_against_length(RUN).axes[0]
    (line,) = [line for line in axes.lines if line.get_linestyle() == "-" and line.get_color() == KERNELS[MATH].colour]
    assert list(line.get_ydata())[-1] == 38_889_586_688
    crosses = [(x, y) for one in axes.lines if one.get_marker() == "x" for x, y in zip(one.get_xdata(), one.get_ydata())]
    assert [x for x, _ in crosses] == [16384, 8192, 16384] and all(y > 151e9 for _, y in crosses)
    assert "all memory of the NVIDIA H200 SXM" in texts(axes) and "math, batch 16" in texts(axes) and axes.get_title() == RUN.title


def test_without_counts_memory_is_the_formula_and_says_so():
    for run in (None, CPU):
        axes = memory_against_length(run).axes[0]
        assert axes.get_title() == "by formula; PyTorch counts no memory on a CPU"
        assert not [line for line in axes.lines if line.get_linestyle() == "None" and len(line.get_xdata())]


@pytest.mark.parametrize("draw", [speedup_against_length, time_against_length])
def test_a_figure_of_nothing_says_what_it_needs(draw):
    with pytest.raises(LookupError, match="the figure needs .* against the length, of one device; there are those of none"):
        draw(NOTHING)


def test_where_flash_is_slower_it_is_not_called_faster():
    times = {512: 8.0, 4096: 1.25}  # of flash; math takes 2 ms
    cells = [runs.made(p, kernel, times.get(p.n_q, 1.0) if kernel == FLASH else 2.0) for p in cpu_problems() for kernel in (MATH, FLASH)]
    one = Run("measured", "CPU (2 threads)", tuple(cell for cell in cells if cell.batch == 1))
    assert speedup_in_words(one) == "On CPU (2 threads) SDPA's flash is 0.25 × as fast as its math at n = 512 and 1.6 × at n = 4,096 with batch 1."
    times.update({512: 2.04, 4096: 50.0})
    cells = tuple(runs.made(p, kernel, times.get(p.n_q, 1.0) if kernel == FLASH else 2.0) for p in problems((1, 4)) for kernel in (MATH, FLASH))
    text = speedup_in_words(Run("measured", "a GPU", tuple(one for one in cells if one.n_q in times)))
    assert text == "On a GPU SDPA's flash is 0.98 × as fast as its math at n = 512 and 0.04 × at n = 4,096 with batch 1; 0.98 × at n = 512 and 0.04 × at n = 4,096 with batch 4."


def test_the_sentences_are_the_runs_own_numbers():
    assert speedup_in_words(RUN) == (
        "On NVIDIA H200 SDPA's flash is faster than its math by 6.0 × at n = 512 and 6.0 × at n = 16,384 with batch 1;"
        " 6.0 × at n = 512 and 6.0 × at n = 8,192 with batch 4; 6.0 × at n = 512 and 6.0 × at n = 4,096 with batch 16."
    )
    assert "by 1.0 × at" in speedup_in_words(Run("measured", "a GPU", tuple(runs.made(p, kernel, 2.0) for p in cpu_problems() for kernel in NAMES[:2])))
    assert time_in_words(RUN).startswith("On NVIDIA H200, from n = 8,192 to n = 16,384 with batch 1, time grows by a factor of 2.0 for torch SDPA, math, 2.0 for")
    assert "torch SDPA, flash." in time_in_words(CPU) and "from n = 2,048 to n = 4,096" in time_in_words(CPU)
    assert memory_in_words(RUN).endswith(
        "to 39 GB at n = 16,384 with batch 1, and that of flash and flashlab as n, to 1.0 MB;"
        " it had no room on NVIDIA H200 at n = 16,384 with batch 4, n = 8,192 with batch 16, n = 16,384 with batch 16."
    )
    assert memory_in_words(CPU) == memory_in_words()
    assert speedup_in_words(NOTHING) == "On no machine yet there is no speed-up to show." and time_in_words(NOTHING).endswith("too little was timed to compare.")
