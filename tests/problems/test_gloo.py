"""The references on real gloo, one process per rank, against the in-process group."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from problems.compare import compare
from problems.contract import Tensors
from problems.hosting import InProcessHost
from problems.registry import catalogue, get

SLUGS = [problem.slug for problem in catalogue()]
SEED = 11


def work(rank: int, world_size: int, folder: str) -> None:
    """Run every reference on gloo and keep this rank's outputs."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(  # type: ignore[attr-defined]
        f"{folder}/store", world_size
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    group = dist.group.WORLD
    assert group is not None
    for slug in SLUGS:
        problem = get(slug)
        for shape in ("tiny", "odd"):
            inputs = problem.make_inputs(rank, world_size, SEED, problem.shape(shape).dims)
            outputs = problem.reference(group, **inputs)
            torch.save(outputs, f"{folder}/{slug}-{shape}-{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_gloo_and_threads_agree(world_size: int, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
        work, (world_size, str(tmp_path)), nprocs=world_size
    )
    for slug in SLUGS:
        problem = get(slug)
        for shape in ("tiny", "odd"):
            made = InProcessHost(problem).materialize(shape, world_size, SEED)
            gloo: list[Tensors] = [
                torch.load(tmp_path / f"{slug}-{shape}-{rank}.pt", weights_only=True)
                for rank in range(world_size)
            ]
            verdict = compare(problem, made.golden, made.reference, gloo)
            assert verdict.ok, (slug, shape, verdict.summary)
            # The other way round: neither of the two rounds much more than the other.
            verdict = compare(problem, made.golden, gloo, made.reference)
            assert verdict.ok, (slug, shape, verdict.summary)
