"""Artifacts: content-addressed, never torn, checked when read."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store.artifacts import Artifacts
from store.errors import ArtifactError


def test_what_is_put_can_be_got(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path)
    data = bytes(range(256)) * 100
    sha256 = artifacts.put(data)
    assert sha256 == hashlib.sha256(data).hexdigest()
    assert artifacts.get(sha256) == data
    assert artifacts.path(sha256).read_bytes() == data


def test_the_same_bytes_are_stored_once_by_any_number_of_writers(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(lambda _: artifacts.put(b"kernel"), range(64)))
    assert len(names) == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [*names]


def test_a_missing_artifact_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=str(tmp_path)):
        Artifacts(tmp_path).get("0" * 64)


def test_a_damaged_artifact_is_not_handed_out(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path)
    sha256 = artifacts.put(b"kernel")
    artifacts.path(sha256).write_bytes(b"kernle")
    with pytest.raises(ArtifactError, match="damaged"):
        artifacts.get(sha256)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "0" * 63])
def test_only_hashes_name_artifacts(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="not a SHA-256"):
        Artifacts(tmp_path).path(name)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path)
    (tmp_path / hashlib.sha256(b"x").hexdigest()[:2]).write_bytes(b"a file where a folder goes")
    with pytest.raises(OSError, match="exists"):
        artifacts.put(b"x")
    assert len(list(tmp_path.iterdir())) == 1
