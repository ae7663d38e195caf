"""Commands and answers over real sockets, and what a runner refuses."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pk_runtime.gpu.channel import Channel, ChannelClosed, pair
from sandbox.gpu.group import GroupEnded
from sandbox.gpu.ranks import MOST_SYMMETRIC_BYTES, symmetric_layout
from sandbox.gpu.runner import Runner
from sandbox.gpu.serve import Refused, Reply, ask_all, serve
from tests.sandbox.gpu.stand_in import StandIn

Channels = Callable[[int], list[Channel]]


class Echo:
    """Answers with what it got; knows how to be late, to fail and to lend a file."""

    def handle(self, name: str, body: Mapping[str, Any], files: tuple[int, ...]) -> Reply:
        for file in files:
            os.close(file)
        if name == "wait":
            time.sleep(float(body["s"]))
        if name == "refuse":
            raise Refused("no", reports=["why"])
        if name == "break":
            raise ZeroDivisionError("by zero")
        if name == "lend":
            return Reply({}, [os.memfd_create("lent")])
        return Reply({"got": body.get("value"), "files": len(files)})


@pytest.fixture
def channels() -> Iterator[Channels]:
    """Makes ends of channels that threads serve."""
    made: list[Channel] = []
    threads: list[threading.Thread] = []

    def make(count: int) -> list[Channel]:
        ours = []
        for _ in range(count):
            near, far = pair()
            threads.append(threading.Thread(target=serve, args=(far, Echo()), kwargs={"idle_s": 9}))
            threads[-1].start()
            ours.append(near)
        made.extend(ours)
        return ours

    yield make
    for channel in made:
        channel.close()
    for thread in threads:
        thread.join(10)


def test_every_end_answers_its_own_command(channels: Channels) -> None:
    ends = channels(3)
    answers = ask_all(ends, "echo", [{"value": n} for n in range(3)], timeout_s=5)
    assert [answer.body and answer.body["got"] for answer in answers] == [0, 1, 2]
    assert all(answer.ok for answer in answers)


def test_files_travel_both_ways_and_are_closed(channels: Channels) -> None:
    (end,) = channels(1)
    file = os.memfd_create("given")
    (answer,) = ask_all([end], "echo", [{}], timeout_s=5, files=[[file]])
    assert answer.body is not None
    assert answer.body["files"] == 1
    os.close(file)
    (answer,) = ask_all([end], "lend", [{}], timeout_s=5, expect_files=1)
    assert len(answer.files) == 1
    os.close(answer.files[0])


def test_failures_are_answers(channels: Channels) -> None:
    refused, broken = (ask_all(channels(1), n, [{}], timeout_s=5)[0] for n in ("refuse", "break"))
    assert refused.failed == "no"
    assert refused.body is not None
    assert refused.body["reports"] == ["why"]
    assert broken.failed == "ZeroDivisionError: by zero"


def test_one_failure_shortens_the_wait_for_the_others(channels: Channels) -> None:
    slow, gone = channels(2)
    gone.send({"do": "exit"}, timeout_s=1)
    bodies = [{"s": 4.0}, {"s": 0.0}]
    late, closed = ask_all([slow, gone], "wait", bodies, timeout_s=4, after_failure_s=0.2)
    assert late.late
    assert isinstance(closed.silence, ChannelClosed) or closed.late


def test_an_answer_to_something_else_is_against_the_rules() -> None:
    near, far = pair()
    far.send({"done": "other"}, timeout_s=1)
    (answer,) = ask_all([near], "mine", [{}], timeout_s=2)
    assert not answer.ok
    assert "something else" in str(answer.silence)
    near.close()
    far.close()


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("dance", {}, "knows no command 'dance'"),
        ("plan", {"world": 0}, "'world' must be an integer from 1 to 64"),
        ("plan", {"world": 2, "sets": 1}, "2 ranks need 2 arenas, not 0"),
        ("bind", {"offsets": [0, -1]}, "not negative"),
        ("bind", {"offsets": [True], "nbytes": 0, "case": "x"}, "not negative"),
        ("ready", {"case": "x", "blocks": "many"}, "'blocks' must be an integer"),
        ("launch", {"case": "x", "sets": [1], "delays_us": [1, 2]}, "as many delays"),
        ("launch", {"case": 7, "sets": [1]}, "'case' must be text"),
        ("launch", {"sets": [0] * 5000}, "a list of at most"),
        ("replay", {"graph": "g", "times": 0}, "'times' must be an integer from 1"),
        ("capture", {"case": "x", "graph": "", "sets": []}, "'graph' must be text"),
    ],
)
def test_a_runner_refuses_wrong_commands(name: str, body: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        Runner(StandIn()).handle(name, body, ())


def test_a_runner_started_wrongly_says_so() -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-S", "-m", "sandbox.gpu.runner"]
    for arguments, words in (([], "--channel"), (["--channel", "77"], "descriptor 77")):
        ended = subprocess.run(
            [*command, *arguments], cwd=root, capture_output=True, text=True, timeout=30
        )
        assert ended.returncode == 2
        assert words in ended.stderr


def test_symmetric_memory_is_laid_out_for_all_ranks_alike() -> None:
    one = [
        {"kind": "control", "name": "", "nbytes": 10},
        {"kind": "scratch", "name": "part", "nbytes": 5000},
        {"kind": "signals", "name": "ready", "nbytes": 8},
    ]
    assert symmetric_layout([one, [dict(item) for item in one]]) == ([0, 4096, 12288], 16384)
    assert symmetric_layout([[], []]) == ([], 0)


@pytest.mark.parametrize(
    ("needed", "words"),
    [
        ([[], None], "rank 1: it asks for no list"),
        ([[], [{"kind": "k", "name": "n", "nbytes": 1}]], "rank 1: setup\\(\\) asks for other"),
        ([[{"kind": "k", "name": "n", "nbytes": -1}]], "must have 1 byte"),
        ([[{"kind": "k", "name": "n", "nbytes": MOST_SYMMETRIC_BYTES + 1}]], "not 17179869185"),
        ([[{"kind": "k", "name": "n", "nbytes": MOST_SYMMETRIC_BYTES - 1}] * 2], "at most"),
        ([["x"]], "must have 1 byte"),
        ([[{}] * 300], "no list"),
    ],
)
def test_nonsense_about_memory_is_the_candidates_fault(needed: list[Any], words: str) -> None:
    with pytest.raises(GroupEnded, match=words):
        symmetric_layout(needed)
