import re
for f in ("flashlab/bench/recorded/nvidia-h200.jsonl","flashlab/bench/recorded/steps/nvidia-h200.jsonl","flashlab/traffic/recorded/nvidia-h200.jsonl"):
    lines=open(f).read().splitlines(True); n=len(lines)//2
    dates=[re.search(r'"date": "([^"]*)"',l)[1] for l in lines]
    assert max(dates[:n]) < min(dates[n:]), (f, max(dates[:n]), min(dates[n:]))
    open(f,"w").writelines(lines[n:]); print(f, n, min(dates[n:]), max(dates[n:]))
