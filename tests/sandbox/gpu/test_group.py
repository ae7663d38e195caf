"""Runners in the sandbox that GPU candidates get, and what ends them; without GPUs."""

import json
from pathlib import Path

import pytest

from pk_runtime.execution import ExecutionError
from sandbox.gpu.group import GroupEnded, RunnerGroup, unprotected
from sandbox.isolation import NamespaceExecutor
from tests.sandbox.conformance import gone
from tests.sandbox.gpu.conftest import STAND_IN

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def namespaces() -> NamespaceExecutor:
    return NamespaceExecutor()


def confined(
    executor: NamespaceExecutor, folder: Path, does: str | None, *, wait_s: float = 0.3
) -> RunnerGroup:
    """Two runners in sandboxes: stand-ins, or the real thing, which finds no GPU."""
    if does is None:
        return RunnerGroup(
            lambda command, channel: executor.start(command, channel=channel),
            2, folder / "work", read_only=(), wait_s=wait_s,
        )  # fmt: skip
    library = folder / "library" / "kernel.json"
    library.parent.mkdir()
    library.write_text(json.dumps({"does": does}))
    group = RunnerGroup(
        lambda command, channel: executor.start(command, channel=channel),
        2, folder / "work", read_only=(TESTS, library.parent), wait_s=wait_s, argv=STAND_IN,
    )  # fmt: skip
    bodies = [{"rank": rank, "library": str(library)} for rank in range(2)]
    group.ask("start", bodies, timeout_s=30.0)
    return group


def test_runners_start_in_sandboxes_and_leave_nothing(
    namespaces: NamespaceExecutor, folder: Path
) -> None:
    with confined(namespaces, folder, "right") as group:
        with pytest.raises(GroupEnded) as caught:
            group.ask("replay", {"graph": "none", "times": 1}, timeout_s=10)
        assert [outcome.ended for outcome in caught.value.outcomes] == ["failed", "failed"]
    assert gone(str(folder))
    assert not list((folder / "work").iterdir())


def test_the_real_runner_says_that_there_is_no_driver(
    namespaces: NamespaceExecutor, folder: Path
) -> None:
    fields = {"rank": 0, "device": 0, "library": "x", "helpers": "y", "timeout_ms": 100,
              "meeting_bytes": 4096}  # fmt: skip
    with confined(namespaces, folder, None) as group, pytest.raises(GroupEnded) as caught:
        group.ask("start", fields, timeout_s=30)
    first = caught.value.outcomes[0]
    assert first.ended == "failed"
    assert "no NVIDIA driver" in first.error


def test_a_mistake_of_the_runner_itself_is_not_the_candidates(folder: Path) -> None:
    with (
        RunnerGroup(unprotected, 2, folder, read_only=(), wait_s=0.1, argv=STAND_IN) as group,
        pytest.raises(ExecutionError, match="the runner of rank 0 failed at 'start': KeyError"),
    ):
        group.ask("start", {}, timeout_s=20)


def test_a_rank_that_dies_is_told_from_those_that_wait(folder: Path) -> None:
    argv = ("/bin/sh", "-c", "exit 7")
    with RunnerGroup(
        unprotected, 2, folder, read_only=(), wait_s=0.1, argv=argv
    ) as group, pytest.raises(GroupEnded) as caught:  # fmt: skip
        group.ask("start", {}, timeout_s=5)
    assert [outcome.ended for outcome in caught.value.outcomes] == ["died", "died"]
    assert "exit code 7" in caught.value.outcomes[0].error
