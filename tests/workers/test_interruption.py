"""Interruption: ends what blocks, spares what is being stored, comes once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from workers.interruption import Interrupted, Interruption, Reason


def end_of(work: Callable[[Interruption], None]) -> Reason | None:
    """Why `work`, done where it can be interrupted, ended early; None if it did not."""
    with Interruption() as interruption:
        try:
            with interruption.interruptible():
                work(interruption)
        except Interrupted as interrupted:
            return interrupted.reason
    return None


def later(action: Callable[..., object], *arguments: object) -> threading.Timer:
    timer = threading.Timer(0.1, action, arguments)
    timer.start()
    return timer


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_work_that_nobody_interrupts_ends_by_itself() -> None:
    assert end_of(lambda _: None) is None


def test_a_request_ends_what_blocks_the_main_thread() -> None:
    def work(interruption: Interruption) -> None:
        later(interruption.request, "cancelled")
        time.sleep(60)

    assert end_of(work) == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_end_drains(number: signal.Signals) -> None:
    def work(_: Interruption) -> None:
        later(os.kill, os.getpid(), number)
        time.sleep(60)

    before = signal.getsignal(number)
    assert end_of(work) == "drained"
    assert signal.getsignal(number) is before


def test_no_error_handler_stops_it() -> None:
    def work(interruption: Interruption) -> None:
        later(interruption.request, "cancelled")
        with contextlib.suppress(Exception):
            time.sleep(60)
        pytest.fail("an error handler stopped it")

    assert end_of(work) == "cancelled"


def test_work_does_not_begin_when_the_end_was_requested_before() -> None:
    began = []
    with Interruption() as interruption:
        terminate()
        assert interruption.reason == "drained"
        with contextlib.suppress(Interrupted), interruption.interruptible():
            began.append("work")
    assert began == []


def test_what_is_shielded_finishes_first() -> None:
    done = []

    def work(interruption: Interruption) -> None:
        with interruption.shielded():
            terminate()
            done.append("stored")
        done.append("went on")

    assert end_of(work) == "drained"
    assert done == ["stored"]


def test_outside_of_the_work_nothing_is_interrupted() -> None:
    with Interruption() as interruption:
        terminate()
        with interruption.shielded():
            terminate()


def test_an_error_in_a_shielded_block_leaves_the_work_interruptible() -> None:
    def work(interruption: Interruption) -> None:
        with contextlib.suppress(KeyError), interruption.shielded():
            raise KeyError
        terminate()
        time.sleep(60)

    assert end_of(work) == "drained"


def test_cleaning_up_is_not_interrupted_again() -> None:
    cleaned = []

    def work(_: Interruption) -> None:
        try:
            terminate()
            time.sleep(60)
        finally:
            terminate()
            cleaned.append(True)

    assert end_of(work) == "drained"
    assert cleaned


def test_the_first_reason_stays() -> None:
    interruption = Interruption()
    reasons: list[Reason] = ["cancelled", "drained", "lease_lost"]
    for reason in reasons:
        interruption.request(reason)
    with pytest.raises(Interrupted, match="cancelled"):
        interruption.check()


def test_in_another_thread_the_work_ends_where_it_looks() -> None:
    ends: list[object] = []

    def work(interruption: Interruption) -> None:
        later(interruption.request, "cancelled").join()
        ends.append("not cut off")
        interruption.check()

    thread = threading.Thread(target=lambda: ends.append(end_of(work)))
    thread.start()
    thread.join(10)
    assert ends == ["not cut off", "cancelled"]
