"""After a candidate was killed: GPUs that are not clean are put aside, and stay so."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from sandbox.gpu import aftermath
from sandbox.gpu.aftermath import Quarantine, left_over
from sandbox.gpu.judging import GpuJudging
from sandbox.gpu.nvml import Use
from sandbox.gpu.pool import GpuPool, UnhealthyGpu, WorkerFailed

BEFORE = {"GPU-a": Use(1, 1 << 30), "GPU-b": Use(1, 1 << 30)}


class _Nvml:
    """Tells one use after the other, the last one for ever."""

    def __init__(self, *uses: dict[str, Use]) -> None:
        self._uses = list(uses)

    def __call__(self, uuids: Sequence[str]) -> dict[str, Use]:
        assert set(uuids) == set(BEFORE)
        return self._uses.pop(0) if len(self._uses) > 1 else self._uses[0]


def test_memory_and_processes_may_take_a_moment_to_go() -> None:
    held = {**BEFORE, "GPU-b": Use(2, 9 << 30)}
    assert left_over(BEFORE, _Nvml(held, held, BEFORE), within_s=5) == {}


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({**BEFORE, "GPU-b": Use(3, 1 << 30)}, "2 processes are left"),
        ({**BEFORE, "GPU-b": Use(1, 3 << 30)}, "2048 MiB of its memory"),
        ({"GPU-a": BEFORE["GPU-a"]}, "no longer answers"),
    ],
)
def test_what_does_not_come_back_is_named(after: dict[str, Use], words: str) -> None:
    held = left_over(BEFORE, _Nvml(after), within_s=0.3)
    assert list(held) == ["GPU-b"]
    assert words in held["GPU-b"]


def test_a_little_more_memory_is_the_drivers_own() -> None:
    assert left_over(BEFORE, _Nvml({**BEFORE, "GPU-a": Use(1, (1 << 30) + (8 << 20))})) == {}


def test_a_quarantine_outlives_its_judge(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "quarantined-gpus.json"
    Quarantine(file).refuse(["GPU-a"])
    Quarantine(file).put(["GPU-a"], "it hangs")
    Quarantine(file).put(["GPU-b"], "it hangs, too")
    later = Quarantine(file)
    with pytest.raises(UnhealthyGpu, match="GPU-a is quarantined: it hangs") as refused:
        later.refuse(["GPU-c", "GPU-a"])
    assert str(file) in str(refused.value)
    later.refuse(["GPU-c"])


def test_a_quarantine_that_cannot_be_read_stops_everything(tmp_path: Path) -> None:
    file = tmp_path / "quarantined-gpus.json"
    for content in ("{", "[1]"):
        file.write_text(content)
        with pytest.raises(UnhealthyGpu, match="cannot be read"):
            Quarantine(file).refuse(["GPU-a"])


class _Pool:
    """A pool that says it works, or not."""

    def __init__(self, trouble: str | None) -> None:
        self._trouble = trouble

    def about(self) -> list[dict[str, str]]:
        return [{"uuid": uuid} for uuid in BEFORE]

    def suspect(self) -> None:
        pass

    def ready(self) -> None:
        if self._trouble is not None:
            raise WorkerFailed(self._trouble)


@pytest.mark.parametrize(
    ("trouble", "after", "aside"),
    [
        (None, BEFORE, set()),
        (None, {**BEFORE, "GPU-b": Use(2, 1 << 30)}, {"GPU-b"}),
        ("GPU 1: its worker does not answer", BEFORE, {"GPU-a", "GPU-b"}),
    ],
)
def test_the_next_candidate_waits_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    trouble: str | None, after: dict[str, Use], aside: set[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(aftermath, "left_over", lambda before: left_over(before, _Nvml(after), 0.1))
    gpus = GpuJudging.__new__(GpuJudging)
    gpus._quarantine = Quarantine(tmp_path / "quarantined-gpus.json")
    pool: GpuPool = _Pool(trouble)  # type: ignore[assignment]
    said = gpus._looked_at(pool, BEFORE)
    assert said.startswith("quarantined: " if aside else "checked after it ended: healthy")
    assert set(gpus._quarantine.reasons()) == aside


def test_without_nvml_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.gpu.nvml._library", lambda: None)
    assert aftermath.uses(["GPU-a"]) == {}
    assert left_over({}) == {}
