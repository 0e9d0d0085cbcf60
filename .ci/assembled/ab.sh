#!/usr/bin/env bash
# Three variants of the forward, each beside SDPA flash, by turns, twice.
S=$(mktemp -d); python3 -m pip install -q --no-index --no-deps --no-compile --target $S .whl/*.whl
R=$PWD/.exp/ab; export PYTHONUNBUFFERED=1
one() { (cd $R/$1; PYTHONPATH=$S:$R/$1 python3 -m flashlab.cli bench forward --peers triton,sdpa-flash --out $OUT/$1.$2.jsonl) > $OUT/$1.$2.log 2>&1; echo "$1 $2 $SECONDS"; }
for v in old new noblind; do for d in 64 128 256; do (cd $R/$v; PYTHONPATH=$S:$R/$v CUDA_VISIBLE_DEVICES=0 python3 -m flashlab.cli bench forward --head-dim $d --peers triton --quick --out /tmp/$v.$d.jsonl > /tmp/$v.$d.log 2>&1) & done; done; wait; echo "warm $SECONDS"
for k in 1 2; do for v in old new noblind; do one $v $k; done; done
cd $OUT; tar czf all.tgz *.jsonl *.log; rm *.jsonl *.log
