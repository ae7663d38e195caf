"""The references on real gloo and NCCL, one process per rank, against the in-process group."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from problems.answers.compare import compare
from problems.contract import Tensors
from problems.hosting import InProcessHost
from problems.registry import catalogue, get
from problems.scales import exponent, scaled, span_of

SLUGS = [problem.slug for problem in catalogue()]
SHAPES = ("tiny", "odd")
SEED = 11


def work(rank: int, world_size: int, backend: str, folder: str) -> None:
    """Run every reference on a backend and keep this rank's outputs."""
    # Multicast is out of scope, and asking for it breaks NCCL where it is switched off.
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    torch.set_num_threads(1)
    device = torch.device("cpu" if backend == "gloo" else f"cuda:{rank}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = torch.distributed.FileStore(  # type: ignore[attr-defined]
        f"{folder}/store", world_size
    )
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    group = dist.group.WORLD
    assert group is not None
    for slug in SLUGS:
        problem = get(slug)
        for shape in SHAPES:
            dims = problem.shape(shape).dims
            k = exponent(span_of(problem, dims, world_size), SEED)
            drawn = scaled(problem.make_inputs(rank, world_size, SEED, dims), k)
            inputs = {name: tensor.to(device) for name, tensor in drawn.items()}
            outputs = {n: t.cpu() for n, t in problem.reference(group, **inputs).items()}
            torch.save(outputs, f"{folder}/{slug}-{shape}-{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_a_backend_and_threads_agree(backend: str, world_size: int, tmp_path: Path) -> None:
    if backend == "nccl" and torch.cuda.device_count() < world_size:
        pytest.skip(f"needs {world_size} GPUs")
    torch.multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
        work, (world_size, backend, str(tmp_path)), nprocs=world_size
    )
    for slug in SLUGS:
        problem = get(slug)
        for shape in SHAPES:
            made = InProcessHost(problem).materialize(shape, world_size, SEED)
            real: list[Tensors] = [
                torch.load(tmp_path / f"{slug}-{shape}-{rank}.pt", weights_only=True)
                for rank in range(world_size)
            ]
            verdict = compare(problem, made.golden, made.reference, real)
            assert verdict.ok, (slug, shape, verdict.summary)
            # The other way round: neither of the two rounds much more than the other.
            verdict = compare(problem, made.golden, real, made.reference)
            assert verdict.ok, (slug, shape, verdict.summary)
