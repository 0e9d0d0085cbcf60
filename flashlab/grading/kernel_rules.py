"""What a cell with Triton kernels may hold, decided on its syntax tree before any of it runs.

The interpreter runs a kernel as Python, so Python must not be what is written: a right answer once counted no bytes by
reading .handle.data, by a default argument, and by the interpreter's own globals. So only Triton is let through: names
that the cell itself makes, `tl.` functions, and a few properties of tensors. What passes is also compiled for a GPU.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator

from flashlab.grading.cells import tree_of

TL = frozenset(
    "program_id num_programs arange zeros zeros_like full load store where dot exp exp2 log log2 sqrt rsqrt abs maximum minimum max min sum cdiv"
    " range static_range multiple_of max_contiguous trans reshape broadcast_to expand_dims make_block_ptr advance atomic_add sigmoid fma cast"
    " float16 bfloat16 float32 int1 int32 int64 constexpr debug_barrier".split()
)
OF_TENSORS = frozenset({"to", "T", "dtype", "element_ty", "shape"})
BUILTINS = frozenset({"range", "float", "min", "max"})
GIVEN = frozenset({"INF", "LOG2_E"})  # constants that the launcher defines
TEXTS = frozenset({"inf", "-inf", "ieee", "tf32", "tf32x3", "zero", "evict_first", "evict_last", "relaxed", "acq_rel"})
IMPORTS = frozenset({"import triton", "import triton.language as tl", "import torch", "import numpy as np"})
NEWLINE = re.compile(r"\r\n|\r|\n")  # where Python ends a line; str.splitlines knows others, and a comment would end at them
NODES = (
    ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.IfExp, ast.Expr,
    ast.Pass, ast.Break, ast.Continue, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.keyword, ast.Constant, ast.Attribute,
    ast.Subscript, ast.Slice, ast.Name, ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip


@functools.lru_cache(maxsize=64)  # asked at every call of a kernel
def kernels_of(source: str) -> str:
    """The cell with its functions only, on their own lines still, without comments and docstrings; the launcher imports triton and tl.

    Triton reads a kernel's source again, from its file and by looking for "def" in its lines, so text that Python takes for a
    comment, a docstring or an encoding would become code there that no rule has seen. What is left here can be read one way only.
    """
    lines = NEWLINE.split(source)
    tree, text = tree_of(source), "\n".join(lines)
    for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        if ast.get_docstring(function) is not None:
            _without_text(lines, function.body[0].value)
    kept: set[int] = set()
    for function in functions:
        kept.update(range(min([function.lineno, *(node.lineno for node in function.decorator_list)]), function.end_lineno + 1))
    return "\n".join(line if row in kept else "" for row, line in enumerate(lines, 1)) + "\n"


def _without_text(lines: list[str], docstring: ast.Constant) -> None:
    """Put "" in place of a docstring; what follows it on its last line moves up to its first."""
    first, last = docstring.lineno - 1, docstring.end_lineno - 1
    before, after = lines[first].encode()[: docstring.col_offset].decode(), lines[last].encode()[docstring.end_col_offset :].decode()
    lines[first : last + 1] = [f'{before}""{after}', *[""] * (last - first)]


@functools.lru_cache(maxsize=64)
def broken_rule(source: str) -> str:
    """The first rule that the cell breaks, with its line, or ""."""
    try:
        return _broken_rule(source) or _broken_rule(kernels_of(source))
    except (RecursionError, SyntaxError, tokenize.TokenError, ValueError) as problem:
        return f"it is nested too deeply or written so that it cannot be read twice ({type(problem).__name__})"


def _broken_rule(source: str) -> str:
    tree = tree_of(source)
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)) and ast.unparse(node) in IMPORTS:
            continue
        if not isinstance(node, ast.FunctionDef):
            return f"line {node.lineno}: {ast.unparse(node)[:60]!r} stands outside a kernel; the cell holds @triton.jit functions only"
        for what in _of_function(node, functions):
            return what
    return ""


@functools.lru_cache(maxsize=64)
def is_stub(source: str, function: str) -> bool:
    """Whether that kernel still raises NotImplementedError."""
    for node in tree_of(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return any(isinstance(part, ast.Raise) and "NotImplementedError" in ast.unparse(part) for part in ast.walk(node))
    return False


@functools.lru_cache(maxsize=64)
def loads_without_other(source: str) -> bool:
    """Whether a tl.load of the cell has a mask, or a block's boundary check, and does not say what the masked lanes hold."""
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.load":
            given = {keyword.arg for keyword in node.keywords}
            if (given & {"mask", "boundary_check"} or len(node.args) > 1) and not (given & {"other", "padding_option"} or len(node.args) > 2):
                return True
    return False


def _of_function(function: ast.FunctionDef, functions: set[str]) -> Iterator[str]:
    if [ast.unparse(decorator) for decorator in function.decorator_list] != ["triton.jit"]:
        yield f"line {function.lineno}: {function.name} needs the decorator @triton.jit and no other"
    arguments = function.args
    if arguments.vararg or arguments.kwarg:
        yield f"line {function.lineno}: {function.name} takes * or ** arguments"
    for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
        if not isinstance(default, ast.Constant) or not _plain(default):
            yield f"line {default.lineno}: the default {ast.unparse(default)[:40]!r} is no constant"
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for parameter in parameters:
        if parameter.annotation is not None and ast.unparse(parameter.annotation) != "tl.constexpr":
            yield f"line {parameter.lineno}: the annotation of {parameter.arg} is not tl.constexpr"
    if function.name in BUILTINS | GIVEN | {"tl", "triton"} or function.name.startswith("__"):
        yield f"line {function.lineno}: {function.name} has a meaning already; use another name"
    if getattr(function, "type_params", None):
        yield f"line {function.lineno}: {function.name} has type parameters"
    if function.returns is not None:
        yield f"line {function.lineno}: {function.name} has a return annotation"
    made = {parameter.arg for parameter in parameters}
    made |= {node.id for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for name in sorted(made & (functions | BUILTINS | GIVEN | {"tl", "triton"})):
        yield f"line {function.lineno}: {name} has a meaning already; use another name"
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    for statement in body:
        yield from _of_node(statement, made, functions)


def _of_node(node: ast.AST, made: set[str], functions: set[str]) -> Iterator[str]:
    line = f"line {getattr(node, 'lineno', 0)}: "
    if not isinstance(node, NODES) or isinstance(node, ast.FunctionDef):
        yield f"{line}{type(node).__name__} is not for kernels"
        return
    if isinstance(node, ast.Name) and (node.id not in made | functions | BUILTINS | GIVEN or node.id.startswith("__")):
        yield f"{line}the name {node.id!r} is neither made in this kernel nor Triton's"
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "tl":
            if node.attr not in TL:
                yield f"{line}tl.{node.attr} is not among what these exercises use"
            return
        if node.attr not in OF_TENSORS or not isinstance(node.ctx, ast.Load):
            yield f"{line}the attribute .{node.attr} is not for kernels"
    if isinstance(node, ast.Call) and not _may_be_called(node.func, functions):
        yield f"{line}{ast.unparse(node.func)[:40]!r} cannot be called in a kernel{_instead(node.func)}"
    if isinstance(node, ast.keyword) and (node.arg is None or node.arg.startswith("_")):
        yield f"{line}the argument {node.arg or '**'} is not for kernels"
    if isinstance(node, ast.Constant) and not _plain(node):
        yield f"{line}the constant {str(node.value)[:40]!r} is not for kernels"
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if not all(isinstance(item, ast.Name) for item in (target.elts if isinstance(target, ast.Tuple) else [target])):
                yield f"{line}only names are assigned to in a kernel, not {ast.unparse(target)[:40]!r}"
    if isinstance(node, ast.List) and not all(isinstance(item, (ast.Name, ast.Constant, ast.BinOp)) for item in node.elts):
        yield f"{line}a list holds sizes only"
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.AnnAssign) and child is node.annotation:
            if ast.unparse(child) != "tl.constexpr":  # Python never evaluates it for a local name, but Triton's compiler does
                yield f"{line}the annotation {ast.unparse(child)[:40]!r} is not tl.constexpr"
            continue
        yield from _of_node(child, made, functions)


def _instead(function: ast.AST) -> str:
    """What to write in place of a call that is not for kernels, where there is one."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in TL:
        return f"; use tl.{name}"
    return "; a kernel prints nothing here: store what you want to see in an output, and the check shows it" if name in ("print", "device_print") else ""


def _plain(constant: ast.Constant) -> bool:
    """Whether it is a number, a truth value, None, or one of a few words on one line."""
    value = constant.value
    if isinstance(value, str):
        return value in TEXTS and constant.lineno == constant.end_lineno
    return value is None or isinstance(value, (bool, int, float))


def _may_be_called(function: ast.AST, functions: set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in functions | BUILTINS
    if not isinstance(function, ast.Attribute):
        return False
    of_tl = isinstance(function.value, ast.Name) and function.value.id == "tl"
    return function.attr in TL if of_tl else function.attr == "to"
