"""Problems that users added, and the rows of artifacts."""

from __future__ import annotations

import pytest

from store import Store
from store.errors import NotFoundError, ProblemExistsError
from store.models import Problem


def add(store: Store, slug: str) -> Problem:
    source = f"class {slug}: ...".encode()
    sha256 = store.artifacts.put(source)
    with store.database.write() as tx:
        tx.artifacts.record(sha256, kind="problem", size=len(source))
        return tx.problems.add(
            slug=slug,
            title="My all-reduce",
            category="collective",
            source_sha256=sha256,
            description={"shapes": ["tiny"]},
            lint={"ok": True},
        )


def test_a_problem_is_found_by_slug_and_by_id(store: Store) -> None:
    problem = add(store, "mine")
    with store.database.read() as tx:
        assert tx.problems.get("mine").id == problem.id
        assert tx.problems.get(problem.id).slug == "mine"
        assert tx.problems.find("other") is None
        with pytest.raises(NotFoundError, match="no problem 'other'"):
            tx.problems.get("other")


def test_problems_are_listed_in_the_order_they_came(store: Store) -> None:
    slugs = ["b", "a", "c"]
    for slug in slugs:
        add(store, slug)
    with store.database.read() as tx:
        assert [problem.slug for problem in tx.problems.list()] == slugs


def test_a_slug_is_taken_once(store: Store) -> None:
    add(store, "mine")
    with pytest.raises(ProblemExistsError, match="choose another slug"):
        add(store, "mine")


def test_recording_an_artifact_again_is_a_no_op(store: Store) -> None:
    for _ in range(2):
        with store.database.write() as tx:
            tx.artifacts.record("0" * 64, kind="bundle", size=10)
    with store.database.read() as tx:
        row = tx.artifacts.find("0" * 64)
        assert tx.artifacts.find("1" * 64) is None
    assert row is not None
    assert (row.kind, row.size) == ("bundle", 10)
