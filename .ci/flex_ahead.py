"""Compile FlexAttention for every problem of the benchmark grid, by many processes, into Inductor's cache on disk.

`make reproduce` compiles them one after the other while the GPU waits. With them compiled (94 s), its timings and counters took 425 s
on two H200s.
"""

import os
import subprocess
import sys

import torch

from flashlab.bench.peers import PASSES, PEERS
from flashlab.bench.sweep import call_of, grid

WORKERS = 14


def compile_all(jobs: list[str]) -> None:
    problems = grid()
    for job in jobs:
        pass_, number = job.split(":")
        call, _ = call_of(PEERS["flex"], problems[int(number)], pass_, "cuda")
        call()
        torch.cuda.synchronize()
        del call
        torch.cuda.empty_cache()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compile_all(sys.argv[1:])
    else:
        jobs = [f"{pass_}:{number}" for number in range(len(grid())) for pass_ in PASSES]
        gpus = torch.cuda.device_count()
        own = [os.environ | {"CUDA_VISIBLE_DEVICES": str(n % gpus), "TORCHINDUCTOR_COMPILE_THREADS": "1"} for n in range(WORKERS)]
        running = [subprocess.Popen([sys.executable, __file__, *jobs[n::WORKERS]], env=own[n]) for n in range(WORKERS)]
        sys.exit(max(process.wait() for process in running))
