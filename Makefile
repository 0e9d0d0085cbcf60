# make lab         the course in JupyterLab
# make test        every test, the lessons included; browser tests need Chromium
# make test-gpu    the same on a CUDA GPU; PYTHON=python3 uses that Python as it is and installs nothing
# make record      runs the lessons on a GPU and stores what they show; PYTHON as for test-gpu
# make reproduce   on a GPU, about 20 minutes, less with a second one: every recorded result, every figure (into figures/), then what record does
# make exercises   exercises/ from solutions/, for instructors
# make student-release   build/flashlab-student: the course without solutions/ and hidden tests
# make test-triton-versions   the tests of what touches Triton itself (tracer, interpreter, assembler) on the oldest, a middle and the newest Triton of the range
#
# TORCH=cpu        with lab and test: PyTorch's CPU build, for a machine without a GPU (or cu126 and such, for its driver)
# PYTHON=...       with lab and test: the Python to make .venv from (default: the first of 3.13, 3.12, 3.11, python3)
# LAB_ARGS=...     options for `flashlab lab`, e.g. LAB_ARGS="--port 9000 --no-browser"
# JOBS=2           how many tests run at once
# NOTEBOOKS=...    with record: which notebooks (default: every lesson and lab)

SHELL := /bin/bash
VENV := .venv
JOBS ?= 2
HERE := $(VENV)/bin/python
RUN := $(if $(PYTHON),$(PYTHON),$(HERE))

.PHONY: lab test test-gpu record reproduce exercises student-release test-triton-versions

lab: $(VENV)/.flashlab
	@$(say_unused)
	@$(HERE) -m flashlab.cli lab $(LAB_ARGS)

test: $(VENV)/.flashlab-test
	@$(say_unused)
	@$(call run_tests,$(HERE))

# With PYTHON given nothing is made and nothing installed: a GPU node may have no network.
test-gpu record reproduce: $(if $(PYTHON),,$(VENV)/.flashlab-test)
test-gpu record reproduce: export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

test-gpu:
	@$(RUN) -m flashlab.cli doctor --gpu
	@$(call run_tests,$(RUN))

record:
	@$(RUN) -m flashlab.cli record $(NOTEBOOKS)

# What fails is said, and the rest goes on; Ctrl-C ends all of it (the cli then exits with 130). RESUME=1 keeps what an interrupted
# run of today has timed and counted. With a second GPU of the same name counting is done on that one while the first is timed;
# what it prints comes after, or when all of this ends.
reproduce: resume := $(if $(RESUME),--resume)
reproduce: anew := $(if $(RESUME),,--anew)
reproduce:
	@$(RUN) -m flashlab.cli doctor --gpu
	@status=0; run() { echo "== flashlab $$*"; $(RUN) -m flashlab.cli "$$@" || { [ $$? != 130 ] || exit 130; status=1; }; }; \
	timed() { for what in forward backward growth; do run bench $$what $(resume) --figures figures; done; \
	    run bench steps; run bench lengths $(resume) --figures figures --page notebooks/labs/lab1_speedup_vs_length.md; }; \
	counted() { run count --record $(anew) --budget 400; run count --record steps $(anew) --budget 200; return $$status; }; \
	second=$$($(RUN) -c 'from flashlab.driver import second_gpu; print(second_gpu())'); \
	if [ -n "$$second" ]; then \
	    log=$$(mktemp) || exit 1; \
	    CUDA_VISIBLE_DEVICES=$$second counted > "$$log" 2>&1 & \
	    other=$$!; trap 'kill $$other 2>/dev/null; cat "$$log"; rm "$$log"' EXIT; \
	    timed; wait $$other || status=1; trap - EXIT; cat "$$log"; rm "$$log"; \
	else timed; counted; fi; \
	run record $(NOTEBOOKS); exit $$status

exercises: $(VENV)/.flashlab-test
	@$(HERE) -m flashlab.grading.release

student-release: $(VENV)/.flashlab-test
	@$(HERE) -m flashlab.grading.release --student build/flashlab-student

test-triton-versions:
	@TORCH=$(TORCH) PYTHON=$(PYTHON) .ci/triton-versions

# The stamps are older than pyproject.toml when it changed; only then is anything installed.
$(VENV)/.flashlab: pyproject.toml
	@$(call install,.)
	@touch $@

$(VENV)/.flashlab-test: pyproject.toml
	@$(call install,.[test])
	@touch $(VENV)/.flashlab $@

# $(call run_tests,python): first the timed tests, one at a time, for their table of times (xdist would not time them);
# then everything: unit tests, doctests, every lesson and lab, whose cells --dist loadscope keeps in one process.
# formgrade.py has no doctest, and nbgrader, which it needs, is not on every GPU node.
# A cell may take longer than it may wait for its turn on a GPU that others use (bench/turn.py: 300 s).
define run_tests
set -e; \
has() { $(1) -c "import $$1" 2>/dev/null; }; \
options=(-n $(JOBS) --dist loadscope); \
if ! has xdist; then options=(); echo "pytest-xdist is not installed: one test at a time."; fi; \
if has pytest_benchmark; then $(1) -m pytest tests -q -k test_bench --benchmark-columns=median,rounds; \
else options+=(-k "not test_bench"); echo "pytest-benchmark is not installed: the timed tests are left out."; fi; \
$(1) -m pytest tests flashlab --doctest-modules --ignore=flashlab/grading/formgrade.py --nbval-lax --nbval-current-env --nbval-cell-timeout=400 \
    $(wildcard notebooks/*.ipynb notebooks/labs/*.ipynb) "$${options[@]}" $(PYTEST_ARGS)
endef

# What TORCH and PYTHON ask for and a $(VENV) made before does not have: it stays as it is, and that is said.
define say_unused
again="To install anew: rm -r $(VENV), then this again."; \
if [ -n "$(filter cpu cu%,$(TORCH))" ]; then \
    has=$$($(HERE) -c 'from flashlab.driver import torch_build; print(torch_build().index)' 2>/dev/null); \
    [ "$${has:-$(TORCH)}" = "$(TORCH)" ] || echo "TORCH=$(TORCH) changes nothing: $(VENV) has torch for $$has. $$again"; \
fi; \
if [ -n "$(PYTHON)" ]; then \
    where() { "$$@" -c 'import os, sys; print(os.path.realpath(sys.executable))' 2>/dev/null; }; \
    has=$$(where $(HERE)); \
    [ "$$has" = "$$(where $(PYTHON))" ] || echo "PYTHON=$(PYTHON) changes nothing: $(VENV) has $$has. $$again"; \
fi
endef

# $(call install,what): makes $(VENV) if it is missing or broken, then installs into it; by uv where there is one.
define install
set -e; \
has() { command -v "$$1" >/dev/null; }; \
if [ ! -x $(HERE) ] || { ! has uv && ! $(HERE) -c 'import pip' 2>/dev/null; }; then \
    new=""; seen=""; \
    for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
        version=$$($$python -c 'import platform; print(platform.python_version())' 2>/dev/null) || continue; \
        seen="$$seen $$python is $$version;"; \
        $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || continue; \
        new=$${new:-$$python}; \
        if has uv || $$python -c 'import venv, ensurepip' 2>/dev/null; then usable=$$python; break; fi; \
    done; \
    if [ -z "$$new" ]; then \
        echo "flashlab needs Python 3.11 or newer, and found:$${seen:- no Python at all}" >&2; \
        echo "Install one (python.org, your package manager, or conda: see environment.yml), or name it: make lab PYTHON=/path/to/python3.12" >&2; \
        exit 1; \
    fi; \
    if [ -z "$$usable" ]; then \
        echo "$$new has no venv module, which make lab needs to make $(VENV)." >&2; \
        echo "On Debian and Ubuntu: sudo apt install python3-venv. Or install uv, or use conda: see environment.yml" >&2; \
        exit 1; \
    fi; \
    echo "Making $(VENV) with $$usable"; \
    if has uv; then uv venv --allow-existing --python "$$usable" $(VENV); else $$usable -m venv $(VENV); fi; \
fi; \
if [ -z "$(TORCH)" ] && [ ! -e /proc/driver/nvidia/version ]; then \
    echo "PyTorch from PyPI brings about 3 GB of CUDA on Linux; without a GPU here, TORCH=cpu takes the small CPU build."; \
fi; \
if has uv; then uv pip install --python $(HERE) $(if $(TORCH),--torch-backend=$(TORCH)) -e '$(1)'; \
else $(HERE) -m pip install $(if $(TORCH),--extra-index-url https://download.pytorch.org/whl/$(TORCH)) -e '$(1)'; fi
endef
