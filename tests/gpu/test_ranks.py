"""One process per GPU: shipped kernels through the symmetric heap, and what a defect does there."""

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.gpu.rendezvous import new_run_folder
from tests.gpu import children
from tests.gpu.defects import DEFECTS, source
from tests.gpu.kernels import EXAMPLES, Kernel, all_kernels, world

DEADLINE_S = 40.0
LAUNCHES = 1000
# Few: the others differ in what their blocks do, not in how ranks meet.
SLUGS = ("allreduce", "gemm_reducescatter")
KERNELS = [*(k for k in all_kernels() if k.slug in SLUGS and k.number == 0), EXAMPLES[1]]
BROKEN = [
    defect
    for defect in DEFECTS
    if (defect.kernel, defect.name) in (("ring", "dropped signal"), ("raw_ring", "illegal address"))
]
Built = Callable[[Candidate], Path]


def run(task: str, arguments: Mapping[str, Any], deadline_s: float) -> list[children.Child]:
    """The same task on every rank, each in a process of its own."""
    folder = str(new_run_folder())

    def one(rank: int) -> children.Child:
        given = {"rank": rank, "world": world(), "folder": folder, **arguments}
        return children.run(
            task, given, deadline_s=deadline_s, module="tests.gpu.ranks", alone=False
        )

    with children.GPUS, ThreadPoolExecutor(world()) as pool:
        return list(pool.map(one, range(world())))


@pytest.mark.parametrize("kernel", [pytest.param(k, id=str(k)) for k in KERNELS])
def test_right_with_copies_and_in_a_replayed_graph(kernel: Kernel, built: Built) -> None:
    arguments = {
        "slug": kernel.slug,
        "library": str(built(kernel.candidate)),
        "shape": "odd",
        "launches": LAUNCHES,
    }
    for child in run("of_a_problem", arguments, DEADLINE_S):
        assert child.trouble == "", child.stderr[-2000:]
        assert [said["wrong"] for said in child.of("copied")] == ["", ""]
        assert [said["wrong"] for said in child.of("graph")] == [""]


@pytest.mark.parametrize("defect", BROKEN, ids=str)
def test_a_defect_ends_all_ranks_and_the_next_run_is_fine(defect: Any, built: Built) -> None:
    broken = run("of_the_ring", {"library": str(built(defect.candidate()))}, DEADLINE_S)
    troubles = [child.trouble for child in broken]
    assert any(re.search(defect.evidence, text) for text in troubles), troubles
    good = run("of_the_ring", {"library": str(built(source(defect.kernel)))}, DEADLINE_S)
    assert [child.trouble for child in good] == [""] * world()
    assert [child.of("result")[0]["wrong"] for child in good] == [""] * world()
