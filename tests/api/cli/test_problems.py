"""`pkforge problem ...` against a real service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from problems.registry import catalogue
from tests.api import problem_files
from tests.api.cli.conftest import Run, Served


def test_problems_are_listed(run: Run, served: Served) -> None:
    ran = run("problem", "list")
    assert ran.code == 0
    assert "gemm_reducescatter" in ran.out
    assert len(json.loads(run("problem", "list", "--json").out)) == len(catalogue())


def test_a_problem_shows_its_task(run: Run, served: Served) -> None:
    ran = run("problem", "show", "16")
    assert ran.code == 0
    for text in ("gemm_reducescatter", "a[M, K/W]", "m8192n8192k8192 (bench)", "M=8192",
                 "multiplied by 2^-10 to 2^10", "honest variants use at most 0.",
                 "without one rank the result errs 154 times as much"):  # fmt: skip
        assert text in ran.out
    assert "variants" not in run("problem", "show", "allgather").out, "bit-exact"
    assert json.loads(run("problem", "show", "16", "--json").out)["number"] == 16


def test_an_unknown_problem_names_near_ones(run: Run, served: Served) -> None:
    ran = run("problem", "show", "gemm_reducescater")
    assert (ran.code, ran.out) == (3, "")
    assert "gemm_reducescatter" in ran.err


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [("missing.py", None, 3), ("big.py", b"#" * 300_000, 2), ("latin.py", b"# \xe9\n", 2)],
)
def test_a_file_that_cannot_be_sent_is_named(
    run: Run, served: Served, tmp_path: Path, name: str, content: bytes | None, code: int
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    ran = run("problem", "add", name)
    assert (ran.code, ran.out) == (code, "")
    assert name in ran.err


@pytest.mark.slow
def test_a_good_file_is_added_and_a_bad_one_explained(
    run: Run, served: Served, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(problem_files.good())
    ran = run("problem", "add", "mine.py")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("added scaled_allreduce")
    (tmp_path / "bad.py").write_text(problem_files.RAISES)
    ran = run("problem", "add", "bad.py")
    assert (ran.code, ran.out) == (2, "")
    assert "on purpose" in ran.err
