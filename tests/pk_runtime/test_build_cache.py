"""The build cache: whole entries only, damaged ones rebuilt, many builders at once."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pk_runtime import build_cache
from pk_runtime.build_cache import BuildCache

KEY = hashlib.sha256(b"key").hexdigest()


def writes(text: str, calls: list[str] | None = None) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        if calls is not None:
            calls.append(text)
        (folder / "result").write_text(text)

    return build


def leftovers(root: Path) -> list[Path]:
    return [*(root / "tmp").iterdir(), *(root / "locks").iterdir()]


def test_a_result_is_built_once(tmp_path: Path) -> None:
    calls: list[str] = []
    cache = BuildCache(tmp_path)
    first = cache.get(KEY, writes("a", calls), 10)
    second = BuildCache(tmp_path).get(KEY, writes("b", calls), 10)
    assert first == second
    assert (second / "result").read_text() == "a"
    assert calls == ["a"]
    assert leftovers(tmp_path) == []


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "result").write_text("half")
        raise RuntimeError("no")

    cache = BuildCache(tmp_path)
    with pytest.raises(RuntimeError, match="no"):
        cache.get(KEY, build, 10)
    assert leftovers(tmp_path) == []
    assert (cache.get(KEY, writes("whole"), 10) / "result").read_text() == "whole"


@pytest.mark.parametrize("damage", ["changed", "cut", "gone", "link", "listing", "no listing"])
def test_a_damaged_entry_is_rebuilt(tmp_path: Path, damage: str) -> None:
    cache = BuildCache(tmp_path)
    entry = cache.get(KEY, writes("good"), 10)
    result = entry / "result"
    if damage == "changed":
        result.write_text("evil")
    elif damage == "cut":
        os.truncate(result, 2)
    elif damage == "gone":
        result.unlink()
    elif damage == "link":
        result.unlink()
        (tmp_path / "elsewhere").write_text("good")
        result.symlink_to(tmp_path / "elsewhere")
    elif damage == "listing":
        (entry / "entry.json").write_text("[1")
    else:
        (entry / "entry.json").unlink()
    again = cache.get(KEY, writes("good again"), 10)
    assert (again / "result").read_text() == "good again"
    assert not (again / "result").is_symlink()


def test_a_result_that_is_no_file_is_refused(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "result").symlink_to("/etc/passwd")

    with pytest.raises(ValueError, match="not a plain file"):
        BuildCache(tmp_path).get(KEY, build, 10)


def test_threads_that_ask_at_once_build_once(tmp_path: Path) -> None:
    calls: list[str] = []
    ready = threading.Barrier(8)
    results: list[Path] = []

    def slow(folder: Path) -> None:
        time.sleep(0.2)
        writes("x", calls)(folder)

    def ask() -> None:
        ready.wait(10)
        results.append(BuildCache(tmp_path).get(KEY, slow, 60))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 8
    assert set(results) == {results[0]}
    assert calls == ["x"]


def test_whoever_waited_long_enough_builds_too(tmp_path: Path) -> None:
    started, release = threading.Event(), threading.Event()

    def stuck(folder: Path) -> None:
        started.set()
        release.wait(60)
        writes("late")(folder)

    other = threading.Thread(target=lambda: BuildCache(tmp_path).get(KEY, stuck, 60))
    other.start()
    assert started.wait(60)
    entry = BuildCache(tmp_path).get(KEY, writes("early"), 0.1)
    release.set()
    other.join(60)
    assert (entry / "result").read_text() == "early"
    assert leftovers(tmp_path) == []


def test_processes_that_ask_at_once_agree(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from pk_runtime.build_cache import BuildCache\n"
        "build = lambda folder: (folder / 'result').write_text(str(os.getpid()))\n"
        "print((BuildCache(Path(sys.argv[1])).get(sys.argv[2], build, 0.0) / 'result').read_text())"
    )
    argv = [sys.executable, "-c", code, str(tmp_path), KEY]
    children = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {child.communicate(timeout=60)[0] for child in children}
    assert [child.returncode for child in children] == [0] * 4
    assert len(answers) == 1


def test_old_entries_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_cache, "MAX_ENTRIES", 3)
    cache = BuildCache(tmp_path)
    keys = [hashlib.sha256(bytes([i])).hexdigest() for i in range(5)]
    entries = []
    for age, key in enumerate(keys[:4]):
        entries.append(cache.get(key, writes(key), 10))
        os.utime(entries[-1], (age, age))
    entries.append(cache.get(keys[4], writes("new"), 10))
    assert [entry.exists() for entry in entries] == [False, False, True, True, True]
