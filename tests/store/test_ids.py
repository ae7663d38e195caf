"""Identifiers sort by time and never repeat."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from store.ids import new_id


def test_ids_sort_in_the_order_they_were_made() -> None:
    ids = [new_id("job") for _ in range(10_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_ids_carry_their_prefix() -> None:
    assert re.fullmatch(r"evl_[0-9a-hjkmnp-tv-z]{26}", new_id("evl"))


def test_threads_never_make_the_same_id() -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda _: new_id("att"), range(5_000)))
    assert len(set(ids)) == len(ids)
