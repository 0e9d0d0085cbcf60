#!/usr/bin/env bash
# .exp/job.sh start SECONDS COMMAND...: runs COMMAND in a copy of the tree and a session of its own, which goes on after the call; waits.
# .exp/job.sh wait SECONDS: waits on. Leaves logs.tgz and back.tgz in $OUT.
what=$1; secs=$2; shift 2
if [ "$what" = start ]; then
    mkdir -p /tmp/job /tmp/site; cp -a . /tmp/tree; cd /tmp/tree
    S=/tmp/site
    python3 -m pip install -q --no-index --no-deps --no-compile --target $S .whl/*.whl
    export PYTHONPATH=$S:/tmp/tree PYTHONUNBUFFERED=1 JUPYTER_PATH=$S/share/jupyter JUPYTERLAB_DIR=$S/share/jupyter/lab
    nvidia-smi -L; nproc
    setsid bash -c '"$@"; echo "exit $?" > /tmp/job/done' _ "$@" > /tmp/job/log 2>&1 < /dev/null &
fi
for ((i = 0; i < secs; i++)); do [ -e /tmp/job/done ] && break; sleep 1; done
cat /tmp/job/done 2>/dev/null || echo "still running"
tail -c 9000 /tmp/job/log
tar czf $OUT/logs.tgz -C /tmp/job --exclude=back.tgz .
cp /tmp/job/back.tgz $OUT/ 2>/dev/null
exit 0
