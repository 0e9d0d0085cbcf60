"""Print, from what is recorded, the numbers that texts of the course state: after `make reproduce`, before the tests complain. Minutes.

    .venv/bin/python .ci/said.py [COMMIT]       COMMIT: an earlier count to compare this one with (traffic/cache.py)

README.md's table; kernels/tiles.py's means; bench/timing.py's spreads; the table, misses, drift and sensitivities of
traffic/cache.py and traffic/launches.py; and each sentence of a lesson that test_lessons.py holds to what its notebook shows.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests/bench"), str(ROOT / "tests/notebooks")]

import test_dram_counted as counted  # noqa: E402
import test_lessons as lessons  # noqa: E402

from flashlab.bench import records, report, timing  # noqa: E402
from flashlab.bench.dram import modelled  # noqa: E402
from flashlab.traffic.accuracy import accuracy  # noqa: E402
from flashlab.traffic.counter_records import by_launch, load  # noqa: E402

print("-- times as fast as flash, cuDNN, FlexAttention, geometric means")
timed = [one for one in records.load() if one.device == "NVIDIA H200"]
for pass_ in ("forward", "backward"):
    cells = records.on_grid(one for one in timed if one.pass_ == pass_)
    for head_dim in (64, 128, 256):
        print(pass_, head_dim, *(f"{report.geometric_mean(cells, 'triton', peer, head_dim).ratio:.4f}" for peer in ("sdpa-flash", "sdpa-cudnn", "flex")))
wide = sorted((timing.spread(one.time_ms, one.p20_ms, one.p80_ms) for one in timed), reverse=True)
print(f"-- {len(wide)} records, widest spreads:", *(f"{one:.4f}" for one in wide[:6]))

print("-- the L2 model")
ours, left_out = counted.of_ours(counted.RECORDS)
print(ours.summary(), f"\n{left_out} left out")
much = [one.written for one in ours if one.record["dram_bytes_written"] > 10e6]
print(f"alone: {sum(abs(one.read - 1) <= 0.1 for one in ours)} read; of {len(much)} {sum(abs(one - 1) <= 0.1 for one in much)} written")
for one in ours.misses():
    row, model = one.record, one.model
    unseen = row["dram_bytes_read"] + row["dram_bytes_written"] - model.dram_bytes_read - model.dram_bytes_written
    (drifting,) = accuracy([row], lambda x: modelled(x, drift=0.2))
    share = unseen / (model.requested_bytes_read + model.requested_bytes_written)
    print(row["kernel"], row["n"], row["head_dim"], row["causal"], f"{one.moved:.3f}, with drift {drifting.moved:.3f}; {share:.1%} of the bytes requested")
for name, options in {"share 0.85": {"share": 0.85}, "share 0.80": {"share": 0.80}, "no limit on dirty": {"dirty_share": 1.0}, "nothing dirty before": {"dirty_before": 0}}.items():
    print(f"{name}: {len(accuracy(by_launch(counted.RECORDS), lambda x: modelled(x, **options)).misses())} misses")  # noqa: B023, called at once
asked = sorted((one.record["l2_bytes"] / (one.model.requested_bytes_read + one.model.requested_bytes_written), one.record["kernel"]) for one in ours)
print("l2_bytes / requested:", asked[0], asked[-1], "least of those that read once:", min(one for one in asked if one[1] in ("delta_kernel", "softmax_kernel")))
if sys.argv[1:]:
    text = subprocess.run(["git", "show", f"{sys.argv[1]}:flashlab/traffic/recorded/nvidia-h200.jsonl"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    before = Path(tempfile.mkdtemp()) / "nvidia-h200.jsonl"
    before.write_text(text)
    sizes, moved = (lambda x: (x["kernel"], x["n"], x["head_dim"], x["causal"])), (lambda x: x["dram_bytes_read"] + x["dram_bytes_written"])
    old = {sizes(row): moved(row) for row in by_launch(load(before))}
    apart = sorted(((abs(old[sizes(row)] / moved(row) - 1), sizes(row)) for row in by_launch(counted.RECORDS)), reverse=True)
    print(f"against {sys.argv[1]}: {sum(one <= 0.01 for one, _ in apart)} within 1 percent, {sum(one <= 0.03 for one, _ in apart)} within 3; widest", apart[:5])

print("-- sentences of the lessons: what the notebook shows, and what is allowed")
for stem, sentence, shown, low, high in lessons.MEASURED:
    notebook = lessons.read(next(path for path in lessons.ALL if path.stem == stem))
    found = re.findall(shown, "\n".join(map(lessons.text_of, lessons.outputs(notebook))))
    pairs = [one if isinstance(one, tuple) else (one, "1") for one in found]
    numbers = [float(one.replace(",", "")) / float(other.replace(",", "")) for one, other in pairs]
    right = numbers and all(low <= one <= high for one in numbers)
    print("  " if right else "->", stem[:2], sentence[:70], *(f"{one:.4g}" for one in numbers), f"({low} to {high})")
