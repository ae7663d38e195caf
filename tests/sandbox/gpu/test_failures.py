"""How ranks ended becomes a status and evidence in the simulator's words."""

import json

import pytest

from pk_runtime.gpu.abi import Bound, Failure, describe
from sandbox.gpu.failures import Outcome, diagnose, read

WAIT = (
    "rank 2 block 131 communicator (launch 7) waits for signal 'ready' slot 12: expected 4, "
    "seen 3, after 2 s"
)
LEAVE = "rank 0 block 5 runtime (launch 7) waits for rank 2 to leave, after 2 s"
RING = "rank 0 block 5 consumer (launch 7) waits for data of ring #0, after 2 s"
RANGE = (
    "rank 1 block 3 loader (launch 0): tensor 'a' at {plane 0, row 9, col 0} slot 0 is out of range"
)
GAVE_UP = "cuStreamQuery: CUDA_ERROR_LAUNCH_FAILED: a kernel ended itself or was broken off"


def test_a_deadlock_names_the_authors_signal_first() -> None:
    outcomes = [
        Outcome(0, "failed", GAVE_UP, (LEAVE, RING)),
        Outcome(1, "late"),
        Outcome(2, "failed", GAVE_UP, (WAIT,)),
    ]
    status, evidence = diagnose(outcomes, "shape tiny, 4 ranks, alone")
    assert status == "deadlock"
    assert evidence["summary"].startswith(WAIT)
    assert "2 more waits ran out. Rank 1 never ended" in evidence["summary"]
    assert (evidence["rank"], evidence["block"], evidence["role"]) == (2, 131, "communicator")
    assert [wait["signal"] for wait in evidence["waits"]] == [
        "signal 'ready'", "data of ring #0", "rank 2 to leave",
    ]  # fmt: skip
    assert evidence["waits"][0]["expected"] == 4


def test_a_broken_rule_explains_the_waits_of_the_others() -> None:
    status, evidence = diagnose(
        [Outcome(0, "failed", GAVE_UP, (LEAVE,)), Outcome(1, "failed", GAVE_UP, (RANGE,))], "here"
    )
    assert status == "crashed"
    assert evidence["summary"].startswith(RANGE)
    assert evidence["rank"] == 1


def test_an_illegal_address_explains_the_waits_of_the_others() -> None:
    crash = "cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS: a kernel touched memory"
    status, evidence = diagnose(
        [Outcome(0, "failed", GAVE_UP, (LEAVE,)), Outcome(1, "failed", crash)], "here"
    )
    assert status == "crashed"
    assert "Rank 1 crashed: cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS" in evidence["summary"]
    assert evidence["records"] == [LEAVE]


def test_silence_without_a_record_is_a_timeout() -> None:
    status, evidence = diagnose([Outcome(0, "answered"), Outcome(3, "late")], "here")
    assert status == "timeout"
    assert evidence["late_ranks"] == [3]


def test_a_refusal_is_the_kernels_words() -> None:
    outcomes = [Outcome(0, "answered"), Outcome(1, "failed", "a must be even", refused=True)]
    status, evidence = diagnose(outcomes, "shape odd, binding the kernel")
    assert (status, evidence["rank"]) == ("crashed", 1)
    assert evidence["summary"] == "a must be even. (shape odd, binding the kernel.)"


def test_failed_without_any_reason_is_a_crash() -> None:
    assert diagnose([Outcome(0, "failed", GAVE_UP)], "here")[0] == "crashed"
    assert diagnose([Outcome(0, "died", "its process ended (signal 11)")], "here")[0] == "crashed"


@pytest.mark.parametrize("kind", range(1, 9))
def test_every_record_of_a_kernel_is_understood(kind: int) -> None:
    failure = Failure(kind, 1, 2, 3, 0, 5, 6, 7, 8, 9, 10, 11, 2_000_000_000)
    record = read(describe(failure, {0: Bound("signals", "ready")}))
    assert (record["rank"], record["block"], record["role"]) == (1, 2, "communicator")
    assert record["launch"] == 9
    assert record["kind"] == ("rule" if kind == 7 else "wait")
    if kind in (3, 4):
        assert (record["signal"], record["slot"]) == ("signal 'ready'", 5)
        assert (record["seen"], record["expected"]) == (10, 11)
    if kind == 8:
        assert (record["signal"], record["slot"]) == ("mailbox 'ready'", 5)


def test_what_a_runner_says_stays_small_and_printable() -> None:
    hostile = ("\x1b[2J" + "x" * 10**6,) * 1000
    outcome = Outcome(0, "failed", "\x1b]0;t\x07" * 10**4, hostile, said="\u202e" * 10**5)
    status, evidence = diagnose([outcome], "here")
    text = json.dumps(evidence)
    assert status == "deadlock"
    assert len(text) < 600_000
    assert "\\u001b" not in text
    assert "\\u202e" not in text
