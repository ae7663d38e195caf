"""Triton's peers on a GPU, as far as a compiler can tell: what Hopper's instructions would be."""

import importlib
import re
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is an optional dependency")

from pk_runtime import triton as pk
from pk_runtime.triton import peers
from tests.pk_runtime import triton_programs
from tests.pk_runtime.conftest import CACHE
from tests.pk_runtime.triton_compile import atomics, boxes, code_of

pytestmark = pytest.mark.skipif(pk.INTERPRETED, reason="TRITON_INTERPRET is set")

ARGUMENTS = {
    **dict.fromkeys(("a", "b", "c"), "*bf16"),
    **dict.fromkeys(("flags", "taken", "arrived", "inbox", "bad", "came", "x", "y", "z"), "*i32"),
    **dict.fromkeys(("rows", "columns", "inner"), "i32"),
    **dict.fromkeys(("tiles", "computers", "rounds", "slot", "value", "first"), "i32"),
    **dict.fromkeys(("n", "ranks"), "i32"),
    "old": "*i32",
    "bases": "*i64",
}
ODD = ("tiles", "computers", "rounds", "slot", "value", "first", "n", "ranks")
VECTOR = re.compile(r"st\.global\.v4\.b32")


def example(pattern: str, kernel: str) -> Any:
    return getattr(importlib.import_module(f"pk_runtime.triton.examples.{pattern}"), kernel)


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.9 warns where this is left open; and compiled kernels are not kept at home."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(CACHE / "triton"))


def compiled(
    kernel: Any,
    types: Mapping[str, str] | None = None,
    tile: tuple[int, int, int] = (128, 256, 64),
    unaligned: tuple[str, ...] = (),
    **options: int,
) -> str:
    return code(kernel, types, tile, unaligned, **options)["ptx"]


def code(
    kernel: Any,
    types: Mapping[str, str] | None,
    tile: tuple[int, int, int],
    unaligned: tuple[str, ...] = (),
    **options: int,
) -> dict[str, str]:
    arguments = {**ARGUMENTS, **(types or {})}
    constants = {"WORLD": 4, "PIECES": 2, **dict(zip(("BM", "BN", "BK"), tile, strict=True))}
    return code_of(
        kernel,
        {name: arguments[name] for name in kernel.arg_names if name in arguments},
        {name: constants[name] for name in kernel.arg_names if name in constants},
        (*ODD, *unaligned),
        **options,
    )


def assert_system_wide(ptx: str) -> None:
    """Every atomic has system scope, and every polling load too."""
    found = atomics(ptx) + re.findall(r"\bld\.[\w.]*(?:acquire|relaxed)[\w.]*", ptx)
    assert found
    assert all(".sys." in f"{each}." for each in found), found


def assert_stores_are_released(ptx: str) -> None:
    """Between the last store to memory and the release that announces it, the block meets."""
    lines = ptx.splitlines()
    releases = [n for n, line in enumerate(lines) if re.search(r"(atom|red)\S*release", line)]
    assert releases
    for release in releases:
        before = [line for line in lines[:release] if re.search(r"\bbar\.sync|\bst\.global", line)]
        assert before, "nothing comes before the release"
        assert "bar.sync" in before[-1], before[-1]


def test_the_barrier() -> None:
    ptx = compiled(peers._barrier_kernel, num_warps=1)
    assert_system_wide(ptx)
    assert re.search(r"(atom|red)\.global\.sys\.release\.add\.u32", ptx)
    assert "ld.global.sys.acquire.b32" in ptx or "atom.global.sys.acquire.add.u32" in ptx
    assert "multimem" not in ptx


@pytest.mark.slow
@pytest.mark.parametrize("name", ["_atomics", "_contend", "_pass_on", "_publish", "_wait_for"])
def test_every_atomic_has_system_scope(name: str) -> None:
    types = {"counts": "*i32", "wide": "*i64", "real": "*fp32", "lock": "*i32", "guarded": "*i32"}
    kernel = getattr(triton_programs, name)
    used = {key: value for key, value in types.items() if key in kernel.arg_names}
    ptx = compiled(kernel, used)
    assert_system_wide(ptx)
    if name in ("_pass_on", "_publish"):
        assert_stores_are_released(ptx)


def test_what_a_caller_may_leave_out_is_no_plain_text() -> None:
    """Triton 3.6, which GPU nodes have, does not compile a call with such a default."""
    for name in pk.__all__:
        function = getattr(pk, name)
        for parameter in getattr(function, "params", ()):
            assert not isinstance(parameter.default, str), f"{name}: {parameter.name}"


def test_a_narrower_scope_is_taken_as_given() -> None:
    ptx = compiled(triton_programs._narrow)
    assert [each for each in atomics(ptx) if ".gpu." in each] == atomics(ptx) != []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "kernel", "vectors"),
    [
        ("bulk_synchronous", "gemm", 16),  # 128 x 256 of 2 bytes by 256 threads, 16 bytes each
        ("bulk_synchronous", "all_gather", 16),
        ("producer_consumer", "produce", 16),
        ("producer_consumer", "consume", 3 * 8),  # to three peers, half a tile at a time
        ("fused_sequential", "gemm_all_scatter", 4 * 16),  # a smaller tile, half the threads
        ("workgroup_specialised", "gemm_all_scatter", 16 + 3 * 8),
    ],
)
def test_tiles_go_to_peers_in_pieces_of_16_bytes(pattern: str, kernel: str, vectors: int) -> None:
    small = pattern == "fused_sequential"
    tile, warps = ((128, 128, 64), 4) if small else ((128, 256, 64), 8)
    ptx = compiled(example(pattern, kernel), tile=tile, num_warps=warps, num_stages=3)
    assert len(VECTOR.findall(ptx)) == vectors
    assert not re.search(r"st\.global\.(?:v2|b16|b32)", ptx), "a narrow store beside them"
    if "flags" in example(pattern, kernel).arg_names:
        assert_system_wide(ptx)
    if kernel == "produce" or pattern == "workgroup_specialised":
        assert_stores_are_released(ptx)


@pytest.mark.slow
def test_where_rows_are_not_aligned_no_wide_store_is_made() -> None:
    kernel = example("fused_sequential", "gemm_all_scatter")
    ptx = compiled(kernel, tile=(128, 128, 64), unaligned=("columns",), num_warps=4, num_stages=3)
    assert not VECTOR.search(ptx)


@pytest.mark.slow
def test_warps_are_specialised() -> None:
    from pk_runtime.triton.examples.warp_specialised import STAGES, TILE

    m, n, k = TILE
    types = {"a": f"tensordesc<bf16[{m},{k}]>", "b": f"tensordesc<bf16[{k},{n}]>"}
    kernel = example("warp_specialised", "gemm_all_scatter")
    found = code(kernel, types, TILE, num_warps=4, num_stages=STAGES)
    ptx = found["ptx"]
    threads = re.search(r"\.reqntid (\d+)", ptx)
    assert threads is not None
    assert int(threads[1]) > 4 * 32, "no warps beside the four that were asked for"
    assert "setmaxnreg" in ptx
    assert "cp.async.bulk.tensor" in ptx
    assert "wgmma.mma_async" in ptx
    # A load that brings more than it makes room for is waited for in vain.
    assert sorted(boxes(found["ttgir"])) == sorted([(f"{m}x{k}",) * 2, (f"{k}x{n}",) * 2])
    assert len(VECTOR.findall(ptx)) >= 4 * m * n // 8 // 256


@pytest.mark.slow
@pytest.mark.parametrize("name", ["_spread", "_collect", "_move", "_tell", "_epoch", "_add_one"])
def test_what_the_other_tests_run_on_a_cpu_compiles(name: str) -> None:
    types = {"number": "i32", "x": "*fp16"} if name == "_add_one" else {"number": "i32"}
    kernel = getattr(triton_programs, name)
    ptx = compiled(kernel, {key: types[key] for key in types if key in kernel.arg_names})
    assert "st.global" in ptx or ".add.noftz.f16" in ptx
