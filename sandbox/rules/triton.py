"""What a `triton` candidate may not contain: a Python file that launches Triton kernels and nothing
else.

Its host part runs as Python beside the tensors, so the rules say what it may name instead of what
it may not: a few modules, and of torch a few functions that neither compute nor communicate nor
wait. As in `rules`, whoever gets past this is still in a sandbox.
"""

import ast
from collections.abc import Collection, Iterator

from sandbox.rules.parts import Place, words

MODULES = words(
    "triton triton.language triton.language.extra triton.tools.tensor_descriptor torch math "
    "functools collections.abc typing dataclasses pk_runtime pk_runtime.triton "
    "pk_runtime.triton.examples pk_runtime.triton.examples.gemm"
)
_OF = {"pk_runtime": words("triton"), "torch": words("Tensor")}
# What of torch a launcher needs: types, and streams that it joins.
TORCH = words(
    "Tensor dtype device int8 uint8 int16 int32 int64 float16 bfloat16 float32 bool cuda "
    "cuda.current_stream cuda.stream cuda.Stream"
)
FORBIDDEN_BUILTINS = words(
    "__import__ eval exec compile open input getattr setattr delattr vars globals locals dir "
    "breakpoint print memoryview object super id help exit quit classmethod"
)
_TENSOR_COMPUTES = words(
    "copy_ clone add add_ sum mul mul_ matmul mm bmm addmm fill_ zero_ zeros ones full "
    "record_event synchronize wait_event cpu numpy tolist item share_memory_ untyped_storage "
    "storage set_ resize_ register_hook grad backward elapsed_time query host_memory"
)
_ASSEMBLY = words("inline_asm_elementwise extern_elementwise extern_libs")
_LATE = "A launcher queues kernels on the current stream; state lives in peers.workspace()"


def violations(source: str, own_files: Collection[str]) -> Iterator[Place]:
    """Everything forbidden in one file of a candidate that consists of `own_files`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        yield (line, "syntax", "it is not Python", "Correct the syntax")
        return
    own = {name.removesuffix(".py").replace("/", ".") for name in own_files}
    yield from _state(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imports(node, own)
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_BUILTINS:
            yield (node.lineno, node.id, "it reaches what a launcher must not", "Leave it out")
        elif isinstance(node, ast.Attribute):
            yield from _attribute(node)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield (node.lineno, "global", "it keeps state between launches", _LATE)
        elif isinstance(node, ast.Try | ast.TryStar):
            yield (node.lineno, "try", "a launcher that catches errors falls back silently",
                   "Let errors out")  # fmt: skip
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Yield | ast.YieldFrom):
            yield (node.lineno, "async", "it runs after launch() has returned", _LATE)
        elif isinstance(node, ast.Assign | ast.AugAssign):
            yield from _assignment(node)
        elif isinstance(node, ast.Constant) and "multimem" in str(node.value):
            yield (node.lineno, "multimem", "NVLink multicast is never used",
                   "Store to each peer, or load from each peer")  # fmt: skip
    yield from _streams(tree)


def _assignment(node: ast.Assign | ast.AugAssign) -> Iterator[Place]:
    """Attributes keep state, and what launch() is given is not its own."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Attribute):
            yield (node.lineno, ast.unparse(target)[:40], "it changes something that stays", _LATE)
        elif isinstance(target, ast.Subscript):
            yield (node.lineno, ast.unparse(target)[:40], "it replaces a part of what it was given",
                   "Let kernels store into the tensors of `outputs`")  # fmt: skip


def _streams(tree: ast.Module) -> Iterator[Place]:
    """A stream of its own must wait for the caller's, and the caller's for it."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    made = [node for node in names if _path(node) == "torch.cuda.Stream"]
    joined = sum(node.attr == "wait_stream" for node in names)
    if any(not _annotation(tree, node) for node in made) and joined < 2:
        yield (made[0].lineno, "torch.cuda.Stream", "nobody waits for what runs on it",
               "side.wait_stream(main) before, main.wait_stream(side) after")  # fmt: skip


def _annotation(tree: ast.Module, wanted: ast.Attribute) -> bool:
    returns = [node.returns for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return any(wanted is value for value in returns)


def _imports(node: ast.Import | ast.ImportFrom, own: Collection[str]) -> Iterator[Place]:
    instead = f"A Triton candidate imports {', '.join(sorted(MODULES))} and its own files"
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
        wrong = [name for name in names if name not in MODULES and name not in own]
        wrong += [name for name in names if name == "pk_runtime"]
    else:
        module = node.module or ""
        asked = [alias.name for alias in node.names]
        inside = module in MODULES or module in own
        wrong = [] if inside else [f"{'.' * node.level}{module}"]
        allowed = _OF.get(module)
        wrong += [f"{module}.{n}" for n in asked if n == "*" or (allowed and n not in allowed)]
    for name in wrong:
        yield (node.lineno, f"import {name}", "it is no business of a kernel", instead)


def _attribute(node: ast.Attribute) -> Iterator[Place]:
    name = node.attr
    if name.startswith("_"):
        yield (node.lineno, f".{name}", "it is an inside of Python or of a library",
               "Use public names")  # fmt: skip
    elif name in _ASSEMBLY:
        yield (node.lineno, name, "it brings code that nobody can read",
               "Use triton.language and pk_runtime.triton")  # fmt: skip
    elif name in _TENSOR_COMPUTES and not _of_language(node):
        yield (node.lineno, f".{name}", "it computes, waits or reads outside the kernels",
               "Do it in a Triton kernel")  # fmt: skip
    path = _path(node)
    if path.startswith("torch.") and path.removeprefix("torch.") not in TORCH:
        yield (node.lineno, path, "it computes, communicates or waits outside the kernels",
               "Do it in a Triton kernel, with the peers of pk_runtime.triton")  # fmt: skip
    if path.startswith(("triton.testing", "triton.runtime", "triton.compiler", "tl.extra.libdev")):
        yield (node.lineno, path, "it is an inside of Triton", "Use triton.jit and triton.cdiv")


def _of_language(node: ast.Attribute) -> bool:
    """Whether it is of triton.language or of pk_runtime.triton, by their usual names."""
    return isinstance(node.value, ast.Name) and node.value.id in {"tl", "pk", "libdevice"}


def _path(node: ast.expr) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _state(tree: ast.Module) -> Iterator[Place]:
    """What a file does when it is imported, beyond definitions and constants."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            value = node.value
            if value is None or not _constant(value):
                yield (node.lineno, ast.unparse(node)[:40], "it is made at import and shared by "
                       "all launches", "Make it a number, a text or a tuple of them")  # fmt: skip
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):
                yield (node.lineno, ast.unparse(node)[:40], "it runs at import", _LATE)
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            yield (node.lineno, type(node).__name__.lower(), "it runs at import", _LATE)
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef):
            defaults = [d for d in (*each.args.defaults, *each.args.kw_defaults) if d is not None]
            for default in defaults:
                if not _constant(default):
                    yield (default.lineno, ast.unparse(default)[:40], "a default like this is kept "
                           "between launches", "Use a number, a text or None")  # fmt: skip


def _constant(node: ast.expr) -> bool:
    """Numbers, texts, tuples of them, arithmetic on them, and names such as tl.float32."""
    if isinstance(node, ast.Tuple):
        return all(map(_constant, node.elts))
    if isinstance(node, ast.UnaryOp):
        return _constant(node.operand)
    if isinstance(node, ast.BinOp):
        return _constant(node.left) and _constant(node.right)
    if isinstance(node, ast.Call):
        return _path(node.func) in {"tl.constexpr"} and all(map(_constant, node.args))
    return isinstance(node, ast.Constant | ast.Name | ast.Attribute | ast.Subscript)
