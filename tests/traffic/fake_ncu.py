"""An ncu that counts nothing: it answers as the real one does, with the launches that a test wants, and plays the child too."""

import json
import sys
from pathlib import Path

from flashlab.traffic import ncu
from flashlab.traffic.launches import METRICS

METRIC_NAMES = [metric for metric, _ in METRICS.values()]
UNASKED = {"launch__block_dim_x": "block", "launch__cluster_max_active": "cluster", "launch__sm_count": "SM", "profiler__replayer_passes": "pass"}
UNITS = {"registers": "register/thread", "sram_bytes": "byte/block", "time_ms": "ns", "shared_bytes": ""}
UNITS |= {field: "%" for field in METRICS if field.endswith("percent")}
NAMES = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC"]
VALUES = {
    "registers": "128", "sram_bytes": "66,568", "occupancy_percent": "24.91", "occupancy_limit_percent": "25", "time_ms": "1,020,480",
    "dram_bytes_read": "12,648,448", "dram_bytes_written": "4,194,304", "l2_bytes": "290,455,552", "sm_bytes_read": "281,018,368",
    "sm_bytes_written": "4,456,448", "shared_bytes": "1,000", "tensor_percent": "55.98",
}  # fmt: skip


def quoted(cells):
    return ",".join(f'"{cell}"' for cell in cells)


def table(kernels, *, units=UNITS, values=VALUES, fields=tuple(METRICS)):
    """ncu's text for [(kernel, grid), ...]: its progress, then the table of raw values."""
    metrics = [METRICS[field][0] for field in fields]
    lines = ["==PROF== Connected to process 609 (/usr/bin/python3.12)"]
    lines += [f'==PROF== Profiling "{kernel}" - {n}: 0%....50%....100% - 3 passes' for n, (kernel, _) in enumerate(kernels)]
    lines += ["==PROF== Disconnected from process 609"]
    if kernels:
        lines += [quoted([*NAMES, *UNASKED, *metrics]), quoted([""] * len(NAMES) + [*UNASKED.values(), *(units.get(field, "byte") for field in fields)])]
    for n, (kernel, grid) in enumerate(kernels):
        cells = [n, 609, "python3.12", "127.0.0.1", kernel, 1, 7, "(128, 1, 1)", f"({grid}, 1, 1)", 0, "9.0"]
        lines.append(quoted([*cells, *[1] * len(UNASKED), *(values[field] for field in fields)]))
    return "\n".join(lines) + "\n"


def rows(kernels, **options):
    """The same, parsed."""
    return ncu.parse(table(kernels, **options), METRIC_NAMES)


SCRIPT = """#!{python}
import json, sys, time
from pathlib import Path
if sys.argv[1:] == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 36398880) (public-release)")
    sys.exit()
plan = json.loads(Path({plan!r}).read_text())
call = sys.argv[1:]
with open({calls!r}, "a") as calls:
    calls.write(json.dumps(call) + "\\n")
plan = plan[min(len(Path({calls!r}).read_text().splitlines()), len(plan)) - 1]
print(plan.get("output", ""), file=sys.stderr, flush=True)
with open(call[-1], "a") as events:
    for event in plan["events"]:
        events.write(json.dumps(event) + "\\n")
time.sleep(plan.get("seconds", 0))
Path(call[call.index("--log-file") + 1]).write_text(plan["log"])
sys.exit(plan.get("status", 0))
"""


def event(index, state="counted", why=""):
    return {"index": index, "name": f"workload {index}", "state": state, "why": why, "seconds": 1.5 * index}


def install(folder, monkeypatch, *plans):
    """Put a fake ncu on PATH that answers the first call with the first plan and so on; returns what reads its calls."""
    plan, calls, script = folder / "plan.json", folder / "calls", folder / "bin" / "ncu"
    script.parent.mkdir(exist_ok=True)
    plan.write_text(json.dumps(plans))
    calls.write_text("")
    script.write_text(SCRIPT.format(python=sys.executable, plan=str(plan), calls=str(calls)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    return lambda: [json.loads(line) for line in Path(calls).read_text().splitlines()]
