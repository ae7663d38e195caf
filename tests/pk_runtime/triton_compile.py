"""Compiles Triton kernels for Hopper on a machine without a GPU, and reads the PTX."""

import re
from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def code_of(
    kernel: Any,
    arguments: Mapping[str, str],
    constants: Mapping[str, int],
    unaligned: tuple[str, ...] = (),
    **options: int,
) -> dict[str, str]:
    """The kernel for sm_90a, its "ptx" and its "ttgir". `arguments` are Triton's types by name,
    e.g. `*bf16`, `i32`.

    Pointers and integers count as multiples of 16, as a launch with such values makes them, except
    the names in `unaligned`.
    """
    types = {name: arguments.get(name, "constexpr") for name in kernel.arg_names}
    assert set(types) == set(arguments) | set(constants)
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, type) in enumerate(types.items())
        if type.startswith(("*", "i")) and name not in unaligned
    }
    source = ASTSource(kernel, types, dict(constants), aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return {kind: compiled.asm[kind] for kind in ("ptx", "ttgir")}


def boxes(ttgir: str) -> list[tuple[str, str]]:
    """Of each TMA load the shape that the descriptor brings, and that of the place for it."""
    load = (
        r"async_tma_copy_global_to_local .*tensordesc<(?:tensor<)?([\dx]+)x\w+,"
        r".* -> .*memdesc<([\dx]+)x\w+,"
    )
    return re.findall(load, ttgir)


def atomics(ptx: str) -> list[str]:
    """The instruction words of all atomics, e.g. `atom.global.sys.release.add.u32`."""
    return re.findall(r"\b((?:atom|red)\.[\w.]+)", ptx)
