"""Who may import whom in flashlab, and what `import flashlab` loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import flashlab

PACKAGE = Path(flashlab.__file__).parent

# Anything may import these; they import nothing of ours but errors and problem.
SHARED = {"errors", "problem", "looks", "traffic.trace", "traffic.model"}

# What else a module, or every module of a package, may import, besides its own package. The longest name counts.
# `reference` and `kernels` never meet, so one can judge the other.
RULES = {
    "errors": set(),
    "problem": set(),
    "looks": set(),
    "traffic.trace": set(),
    "traffic.model": set(),
    "traffic": set(),
    "traffic.counters": {"runtime"},
    "traffic.triton_hooks": {"runtime"},  # which mends the interpreter for ordinary launches too
    "traffic.counter_records": {"provenance", "runtime"},
    "traffic.cache": {"hardware"},
    "hardware_table": set(),
    "hardware": {"hardware_table", "runtime"},
    "reference": {"traffic.memory"},
    "kernels": {"runtime"},
    "bench": {"kernels", "hardware", "provenance", "runtime", "traffic"},
    "widgets": {"hardware", "traffic.memory"},
    "grading": {"copies", "hardware", "notebook", "reference", "runtime", "traffic"},
    "grading.box": set(),  # what lies in the sandbox: nothing of ours but itself, and for kernels the tracer
    "grading.box.kernel_child": set(),
    "grading.box.gpu_child": set(),
    "driver": set(),
    "assembler": {"driver"},
    "runtime": {"assembler", "driver"},
    "machine": {"assembler", "driver", "runtime"},
    "doctor": {"assembler", "driver", "machine", "runtime"},
    "copies": set(),
    "killed": set(),
    "lab": {"copies", "killed", "runtime"},
    "record": {"bench.neighbours", "copies", "runtime"},
    "smoke": {"runtime"},
    "provenance": {"assembler", "driver"},
    "workloads": {"bench.peers", "bench.steps", "kernels", "runtime"},
    "count": {"traffic"},
    "count_measured": {"bench.three_ways", "bench.turn", "runtime", "traffic"},
    "__init__": {"runtime"},
    "notebook": set(),
    "cli": {"killed"},
}
# These may import anything of ours, but inside their functions only.
INSIDE_FUNCTIONS = {"notebook", "cli"}
# These import of ours only what stands here, not even all that is shared.
LOWEST = {
    "errors": set(),
    "problem": {"errors"},
    "looks": set(),
    "hardware_table": set(),
    "traffic.trace": {"errors", "problem"},
    "traffic.model": {"errors", "problem"},
    "grading.box": {"grading.box"},
    "grading.box.kernel_child": {"grading.box", "runtime", "traffic"},
    "grading.box.gpu_child": {"grading.box", "runtime"},
}
NEVER = {"notebooks", "exercises", "solutions", "tests"}


def covers(names: set[str], module: str) -> bool:
    """Whether `module` is one of `names` or lies in one of them."""
    return any(module == name or module.startswith(name + ".") for name in names)


def rule_of(module: str) -> str | None:
    """The longest name in RULES that covers `module`."""
    return max((name for name in RULES if covers({name}, module)), key=len, default=None)


def imports(source: str, module: str):
    """(line, what, inside a function) for every import of flashlab, or of a folder beside it, in `source`."""

    def visit(node, inside):
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, inside) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            here = f"flashlab.{module}".split(".")
            base = ".".join([*here[: -node.level], *filter(None, [node.module])]) if node.level else node.module
            packages = {"flashlab", *(f"flashlab.{path.name}" for path in PACKAGE.iterdir() if path.is_dir())}
            names = [f"{base}.{alias.name}" for alias in node.names] if base in packages else [base]
            yield from ((node.lineno, flashlab.HOMES.get(name.removeprefix("flashlab."), name), inside) for name in names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    for line, name, inside in visit(ast.parse(source), False):
        if name.split(".")[0] in NEVER | {"flashlab"}:
            yield line, name.removeprefix("flashlab."), inside


def faults(source: str, module: str) -> list[str]:
    """A sentence for each import in `source` that the rules forbid."""
    rule, found = rule_of(module), []
    if rule is None:
        return [f"{module} has no rule: add a line to RULES in tests/test_imports.py"]
    package = module.split(".")[0] if "." in module else None
    allowed = LOWEST[rule] if rule in LOWEST else SHARED | RULES[rule] | {package} - {None}
    for line, name, inside in imports(source, module):
        if covers(allowed, name) or (rule in INSIDE_FUNCTIONS and inside and not covers(NEVER, name)):
            continue
        found.append(f"{module}, line {line}, imports {name}; it may import {', '.join(sorted(allowed)) or 'nothing of ours'}")
    return found


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        yield pytest.param(path, name.removesuffix(".__init__"), id=name)


@pytest.mark.parametrize("path, module", list(modules()))
def test_every_module_keeps_the_rules(path, module):
    assert faults(path.read_text(), module) == []


@pytest.mark.parametrize(
    "module, source, forbidden",
    [
        ("reference.flash2", "from flashlab.kernels.standard import standard", "kernels.standard"),
        ("kernels.forward", "def f():\n    import flashlab.reference.flash2", "reference.flash2"),
        ("reference.flash2", "from flashlab import kernels", "kernels"),
        ("reference.flash2", "from ..kernels import standard", "kernels.standard"),
        ("reference.flash2", "from flashlab import predict", "notebook"),
        ("reference.flash2", "from flashlab.traffic import eager", "traffic.eager"),
        ("traffic.trace", "from flashlab.traffic.memory import Hbm", "traffic.memory"),
        ("traffic.model", "from flashlab.looks import ALGORITHMS", "looks"),
        ("problem", "import flashlab.looks", "looks"),
        ("errors", "from flashlab.problem import check_size", "problem"),
        ("bench.timing", "from flashlab.widgets.quiz import quiz", "widgets.quiz"),
        ("widgets.quiz", "from flashlab.bench.timing import time_call", "bench.timing"),
        ("kernels.tiles", "from flashlab.bench.records import load", "bench.records"),
        ("bench.peers", "from flashlab.reference import flash2", "reference.flash2"),
        ("lab", "from flashlab.kernels import standard", "kernels.standard"),
        ("notebook", "from flashlab.widgets.quiz import quiz", "widgets.quiz"),
        ("cli", "from flashlab import doctor", "doctor"),
        ("kernels.forward", "import flashlab", "flashlab"),
        ("cli", "def f():\n    from solutions import e01", "solutions"),
        ("grading.checks", "import exercises.e01", "exercises.e01"),
    ],
)
def test_a_forbidden_import_is_found(module, source, forbidden):
    (fault,) = faults(source, module)
    assert fault.startswith(f"{module}, line {source.count(chr(10)) + 1}, imports {forbidden}; it may import ")


@pytest.mark.parametrize(
    "module, source",
    [
        ("reference.flash2", "from flashlab.reference.inputs import checked\nfrom . import standard\nfrom flashlab import problem"),
        ("kernels.forward", "from flashlab import runtime\nfrom flashlab.traffic.trace import Trace"),
        ("bench.peers", "from flashlab import runtime\ndef f():\n    from flashlab.kernels.api import attention"),
        ("bench.records", "from flashlab.bench.timing import Timing\nfrom flashlab.traffic.model import attention_flops"),
        ("widgets.roofline", "from flashlab import AttentionProblem, Trace\nfrom flashlab.hardware import gpu"),
        ("notebook", "def f():\n    from flashlab.widgets.quiz import quiz"),
        ("reference.flash2", "import numpy as np\nfrom collections import abc\nimport torch.nn"),
    ],
)
def test_an_allowed_import_is_let_through(module, source):
    assert faults(source, module) == []


def test_a_module_without_a_rule_is_a_fault():
    assert faults("", "newcomer") == ["newcomer has no rule: add a line to RULES in tests/test_imports.py"]


def test_import_flashlab_loads_nothing_heavy():
    heavy = ("torch", "triton", "numpy", "matplotlib", "anywidget", "ipywidgets", "IPython")
    code = f"import sys, flashlab; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", flashlab.HOMES)
def test_each_name_that_flashlab_offers_is_there(name):
    assert getattr(flashlab, name).__name__.lower() == name.lower()
    assert name in dir(flashlab)


def test_an_unknown_name_lists_what_is_offered():
    with pytest.raises(AttributeError, match="^module 'flashlab' has no attribute 'Tracer'; it offers AttentionProblem, Trace, "):
        flashlab.Tracer
