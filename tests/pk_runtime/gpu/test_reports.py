"""Failure records in words."""

import pytest

from pk_runtime.gpu.abi import Bound, Failure, describe

BOUND = {
    0: Bound("tensor", "x"),
    1: Bound("signals", "ready"),
    2: Bound("barrier", "phase"),
    3: Bound("mailbox", "box"),
}


def failure(kind: int, **fields: int) -> Failure:
    given = {"rank": 1, "block": 5, "role": 3, "epoch": 2, "waited_ns": 1_500_000_000}
    return Failure(kind=kind, **{**given, **fields})


WHO = "rank 1 block 5 communicator (launch 2)"


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (failure(1, object=0), "waits for a free slot of ring #0, after 1.5 s"),
        (failure(2, object=1), "waits for data of ring #1, after 1.5 s"),
        (
            failure(3, object=1, slot=7, seen=3, wanted=4),
            "waits for signal 'ready' slot 7: expected 4, seen 3, after 1.5 s",
        ),
        (
            failure(4, object=2, seen=10, wanted=12),
            "waits for barrier 'phase' slot 0: expected 12, seen 10, after 1.5 s",
        ),
        (failure(5, slot=3), "waits for rank 3 to enter, after 1.5 s"),
        (failure(6, slot=0), "waits for rank 0 to leave, after 1.5 s"),
        (
            failure(8, object=3, slot=3, plane=2, seen=1, wanted=2),
            "waits for mailbox 'box' slot 3 from rank 2, after 1.5 s",
        ),
    ],
)
def test_waits_name_what_they_wait_for(record: Failure, text: str) -> None:
    assert describe(record, BOUND) == f"{WHO} {text}"


def test_what_is_out_of_range_is_named() -> None:
    tile = failure(7, object=0, plane=1, row=2, col=3)
    expected = f"{WHO}: tensor 'x' at {{plane 1, row 2, col 3}} is out of range"
    assert describe(tile, BOUND) == expected
    slot = failure(7, object=1, slot=9, plane=2)
    assert describe(slot, BOUND) == f"{WHO}: signals 'ready' slot 9 of rank 2 is out of range"
    box = failure(7, object=3, slot=9, plane=2)
    assert describe(box, BOUND) == f"{WHO}: mailbox 'box' slot 9 of rank 2 is out of range"


def test_damaged_records_are_still_told() -> None:
    text = describe(failure(3, object=77, role=-1), BOUND)
    assert "runtime" in text
    assert "'#77'" in text
