#!/usr/bin/env bash
# A: kernel tests and FlexAttention compiled; B: timings on GPU 0, counters on GPU 1; C: lessons.
J=/tmp/job; t0=$SECONDS; say() { echo "[$((SECONDS - t0)) s] $*"; }
python3 .ci/flex_ahead.py > $J/warm.log 2>&1 & warm=$!
timeout 150 python3 -m pytest -v -n 18 --dist load tests/kernels/test_forward.py tests/kernels/test_primitives.py tests/kernels/test_masks.py tests/kernels/test_attention.py tests/kernels/test_mask_tiles.py tests/kernels/test_backward.py tests/bench/test_timing.py -k "not test_any_call and not compiled and not sanitizer and not spill" -p no:cacheprovider --durations=20 > $J/a.log 2>&1
a=$?; say "kernel tests: $a"; grep -E "FAILED|ERROR" $J/a.log | head -20; tail -3 $J/a.log
wait $warm; say "warm: $(tail -1 $J/warm.log)"
if grep -qE "(FAILED|ERROR).* tests/kernels/test_(forward|primitives|masks|backward)" $J/a.log; then exit 1; fi
F="python3 -m flashlab.cli"
( export CUDA_VISIBLE_DEVICES=1; taskset -c 20-31 $F count --record --anew --budget 400; taskset -c 20-31 $F count --record steps --anew --budget 200; echo "== counted $((SECONDS - t0))" ) > $J/count.log 2>&1 & count=$!
( for what in forward backward growth; do taskset -c 0-15 $F bench $what --figures figures; echo "== $what $((SECONDS - t0))"; done
  taskset -c 0-15 $F bench steps; echo "== steps $((SECONDS - t0))"
  taskset -c 0-15 $F bench lengths --figures figures --page notebooks/labs/lab1_speedup_vs_length.md ) > $J/timed.log 2>&1
say "timed"; tar czf $J/b.tgz flashlab/bench/recorded flashlab/traffic/recorded notebooks; mv $J/b.tgz $J/back.tgz
wait $count; say "counted"; tar czf $J/b.tgz flashlab/bench/recorded flashlab/traffic/recorded notebooks; mv $J/b.tgz $J/back.tgz
( export CUDA_VISIBLE_DEVICES=1; $F record notebooks/05_triton_primer.ipynb notebooks/06_triton_forward.ipynb notebooks/07_backward.ipynb notebooks/08_triton_backward.ipynb ) > $J/rec1.log 2>&1 & one=$!
CUDA_VISIBLE_DEVICES=0 $F record notebooks/labs/lab1_speedup_vs_length.ipynb notebooks/09_making_it_fast.ipynb > $J/rec0.log 2>&1
say "09 and lab 1"; wait $one; say "05 to 08"
tar czf $J/b.tgz flashlab/bench/recorded flashlab/traffic/recorded notebooks; mv $J/b.tgz $J/back.tgz; tail -5 $J/rec0.log $J/rec1.log
