"""Attempts and model calls: what is derived from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.records import LlmCall, committed_usd, unused_reply
from tests.agent.history import attempt


def test_several_shapes_count_by_their_geometric_mean() -> None:
    record = attempt(1, 2.0)
    assert record.verdict is not None
    small = record.verdict.timings[0]
    large = replace(
        small, shape="large", candidate_us=2000.0, speedup=0.5, bottleneck="tensor cores"
    )
    both = replace(record, verdict=replace(record.verdict, timings=(small, large)))
    assert both.speedup == pytest.approx(1.0)
    assert both.objective_us == pytest.approx(1000.0)
    assert (both.kind, both.bottleneck) == ("simulated", "tensor cores")


def test_a_failed_attempt_has_no_times() -> None:
    record = attempt(1, "crashed")
    assert (record.speedup, record.objective_us, record.kind, record.bottleneck) == (None,) * 4
    assert not record.correct
    assert not record.verified


def test_quick_is_correct_but_not_verified() -> None:
    assert attempt(1, 1.5).correct
    assert not attempt(1, 1.5).verified
    assert attempt(2, 1.5, phase="confirm").verified


def call(number: int, **values: object) -> LlmCall:
    return replace(LlmCall(number=number, model="m", reserved_usd=1.0), **values)  # type: ignore[arg-type]


def test_what_a_budget_has_given_away() -> None:
    calls = [
        call(1, settled=True, reply="a", usd=0.25),
        call(2),
        call(3, settled=True, error="refused", usd=0.0),
        call(4, settled=True, reply="b", usd=None),
    ]
    assert committed_usd(calls) == 1.25, "cut-off calls stay reserved, unknown prices count nothing"


def test_the_reply_that_was_bought_but_not_acted_on() -> None:
    used = replace(attempt(1, 1.0), llm_call=1)
    calls = [call(1, reply="a"), call(2, reply="b", unusable="no code"), call(3)]
    assert unused_reply(calls, [used]) is None
    fresh = call(4, reply="c")
    assert unused_reply([*calls, fresh], [used]) == fresh
