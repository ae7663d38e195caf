"""Other people's ways to do it on such a node, none with multicast. Each may be absent."""

import contextlib
import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu.case import Case, Tensors
from benchmarks.gpu.contenders import Call, NotApplicable, Prepared
from problems.collectives import all_gather, reduce_scatter


def nccl_symmetric(case: Case) -> Prepared:
    """NCCL on buffers registered as symmetric windows."""
    group = case.ranks.group
    backend: Any = group._get_backend(torch.device("cuda"))
    pool = torch.cuda.MemPool(backend.mem_allocator)
    ((name, spec),) = case.inputs.items()
    ((result, out),) = case.outputs.items()
    with torch.cuda.use_mem_pool(pool):
        given = [torch.empty(spec.shape, dtype=spec.dtype, device="cuda") for _ in case.sets]
        made = [torch.empty(out.shape, dtype=out.dtype, device="cuda") for _ in case.sets]
    backend.register_mem_pool(pool, symm=True)
    for to, inputs in zip(given, case.sets, strict=True):
        to.copy_(inputs[name])
    run = _collective(case)
    in_place = case.problem.slug == "allreduce"
    calls = [
        _calling(run, x, y, x if in_place else y, result) for x, y in zip(given, made, strict=True)
    ]

    def close() -> None:
        with contextlib.suppress(RuntimeError, AttributeError):
            backend.deregister_mem_pool(pool)

    return Prepared(calls, repeatable=not in_place, close=close)


def _collective(case: Case) -> Callable[[Tensor, Tensor], None]:
    """The problem as one call of torch.distributed from x into y, without copies."""
    group = case.ranks.group
    table: dict[str, Callable[[Tensor, Tensor], object]] = {
        "allgather": lambda x, y: all_gather(y, x, group),
        "reducescatter": lambda x, y: reduce_scatter(y, x, group),
        "alltoall": lambda x, y: dist.all_to_all_single(y, x, group=group),
        "allreduce": lambda x, y: dist.all_reduce(x, group=group),
    }
    if case.problem.slug not in table:
        raise NotApplicable(f"is not one collective: {case.problem.slug}")
    action = table[case.problem.slug]

    def run(x: Tensor, y: Tensor) -> None:
        action(x, y)

    return run


def _calling(
    run: Callable[[Tensor, Tensor], None], x: Tensor, y: Tensor, result: Tensor, name: str
) -> Call:
    def call() -> Tensors:
        run(x, y)
        return {name: result}

    return call


def _symmetric(case: Case, values: list[Tensor]) -> list[Tensor]:
    """Copies of tensors in torch's symmetric memory."""
    symm_mem = importlib.import_module("torch.distributed._symmetric_memory")
    made = []
    for value in values:
        t = symm_mem.empty(value.shape, dtype=value.dtype, device=value.device)
        symm_mem.rendezvous(t, case.ranks.group)
        made.append(t.copy_(value))
    return made


def torch_one_shot(case: Case) -> Prepared:
    """torch.ops.symm_mem.one_shot_all_reduce: every rank reads all."""
    inputs = _symmetric(case, [s["x"] for s in case.sets])
    group = case.ranks.group.group_name
    return Prepared([_one_shot(x, group) for x in inputs])


def _one_shot(x: Tensor, group: str) -> Call:
    return lambda: {"y": torch.ops.symm_mem.one_shot_all_reduce(x, "sum", group)}


def torch_two_shot(case: Case) -> Prepared:
    """torch.ops.symm_mem.two_shot_all_reduce_, in place: later results are sums of sums."""
    inputs = _symmetric(case, [s["x"] for s in case.sets])
    group = case.ranks.group.group_name
    return Prepared([_two_shot(x, group) for x in inputs], note="in place", repeatable=False)


def _two_shot(x: Tensor, group: str) -> Call:
    return lambda: {"y": torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", group)}


def torch_low_contention(case: Case) -> Prepared:
    """torch's copy-engine all-gather and reduce-scatter."""
    group = case.ranks.group.group_name
    inputs = _symmetric(case, [s["x"] for s in case.sets])
    operations: dict[str, Callable[[Tensor], Tensor]] = {
        "allgather": lambda x: torch.ops.symm_mem._low_contention_all_gather(x, group),
        "reducescatter": lambda x: torch.ops.symm_mem._low_contention_reduce_scatter(
            x, "sum", group
        ),
    }
    if case.problem.slug not in operations:
        raise NotApplicable("torch has a low-contention all-gather and reduce-scatter only")
    run = operations[case.problem.slug]
    return Prepared([_named(run, x) for x in inputs])


def _named(run: Callable[[Tensor], Tensor], x: Tensor) -> Call:
    return lambda: {"y": run(x)}


def torch_fused_ag(case: Case) -> Prepared:
    """torch.ops.symm_mem.fused_all_gather_matmul."""
    group = case.ranks.group.group_name

    def make(a: Tensor, b: Tensor) -> Call:
        def call() -> Tensors:
            _, (c,) = torch.ops.symm_mem.fused_all_gather_matmul(a, [b], 0, group)
            return {"c": c}

        return call

    shards = _symmetric(case, [s["a"] for s in case.sets])
    return Prepared([make(a, s["b"]) for a, s in zip(shards, case.sets, strict=True)])


def torch_fused_rs(case: Case) -> Prepared:
    """torch.ops.symm_mem.fused_matmul_reduce_scatter."""
    group = case.ranks.group.group_name

    def make(a: Tensor, b: Tensor) -> Call:
        return lambda: {"c": torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, group)}

    symm_mem = importlib.import_module("torch.distributed._symmetric_memory")
    with warnings.catch_warnings():  # newer versions need no such call, and say so
        warnings.simplefilter("ignore")
        symm_mem.enable_symm_mem_for_group(group)
    return Prepared([make(s["a"], s["b"]) for s in case.sets])


def triton(case: Case) -> Prepared:
    """The fastest Triton pattern that runs on every version, `fused_sequential`."""
    try:
        examples = importlib.import_module("pk_runtime.triton.examples.fused_sequential")
        runtime = importlib.import_module("pk_runtime.triton")
    except ImportError as error:
        raise NotApplicable(f"there is no Triton version here: {error}") from error
    if case.problem.slug != "gemm_allgather":
        raise NotApplicable("the Triton examples do GEMM + all-scatter only")
    symmetric = importlib.import_module("pk_runtime.gpu.symmetric")
    told = case.ranks.heap.agree(
        "the folder of the Triton heap",
        str(symmetric.new_run_folder()) if case.ranks.rank == 0 else "",
    )
    out = case.outputs["c"]
    nbytes = len(case.sets) * 2 * out.shape[0] * out.shape[1] + (256 << 20)
    peers = runtime.join(Path(told[0]), case.ranks.rank, case.ranks.world, heap_bytes=nbytes)
    results = [peers.empty(out.shape, out.dtype) for _ in case.sets]

    def make(inputs: Tensors, c: Tensor) -> Call:
        def call() -> Tensors:
            examples.launch(peers, inputs, {"c": c})
            return {"c": c}

        return call

    calls = [make(inputs, c) for inputs, c in zip(case.sets, results, strict=True)]
    return Prepared(
        calls, failures=lambda: list(peers.failures()), close=peers.close, note="fused_sequential"
    )


PEERS: dict[str, Callable[[Case], Prepared]] = {
    "nccl_symmetric": nccl_symmetric,
    "torch_one_shot": torch_one_shot,
    "torch_two_shot": torch_two_shot,
    "torch_low_contention": torch_low_contention,
    "torch_fused_ag": torch_fused_ag,
    "torch_fused_rs": torch_fused_rs,
    "triton": triton,
}
# Not captured into a graph: they use several streams of their own, or wait on the host.
EAGER = frozenset({"torch_fused_ag", "torch_fused_rs", "torch_low_contention", "triton"})
