"""A kernel that was built to record a timeline: what its roles did on the GPUs, and how long."""

from pk_runtime.compiler import Compiler
from tests.gpu import children
from tests.gpu.defects import source
from tests.gpu.kernels import CACHE, world

DEADLINE_S = 25.0


def test_roles_work_wait_and_signal_on_every_rank() -> None:
    library = Compiler(CACHE).library(source("ring"), trace=True)
    arguments = {"library": str(library), "world": world()}
    child = children.run("recorded", arguments, deadline_s=DEADLINE_S)
    assert child.trouble == "", child.stderr[-2000:]
    (said,) = child.of("timeline")
    assert said["left_out"] == 0
    for rank in range(world()):
        mine = [row for row in said["slices"] if row[0] == rank and row[1] == 0]
        seen = {(role, name) for _, _, role, name, _, _ in mine}
        assert {("loader", "work"), ("storer", "work"), ("storer", "signal")} <= seen, seen
        assert all(start >= 0 and 0 <= length < 1e6 for *_, start, length in mine), mine
        signals = [start for *_, name, start, _ in mine if name == "signal"]
        assert len(signals) == 1, "one launch, one tile"
