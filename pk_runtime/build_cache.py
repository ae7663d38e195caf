"""A content-addressed folder of build results, shared by any number of processes.

An entry is a folder that appears whole or not at all (one rename) and carries the hash of each of
its files, so that a damaged one is rebuilt instead of used.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MAX_ENTRIES = 2000
KEEP_S = 3600.0

_LISTING = "entry.json"
_LOCK_POLL_S = 0.05


class BuildCache:
    """Entries by key under `root`; a key is the SHA-256 of everything the result depends on."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def get(self, key: str, build: Callable[[Path], None], wait_s: float) -> Path:
        """The folder of an entry; `build` fills an empty folder if there is none yet.

        Whoever comes second waits up to `wait_s` for the first, then builds too. What `build`
        raises goes to the caller and leaves nothing behind.
        """
        if (entry := self._find(key)) is not None:
            return entry
        with self._turn(key, wait_s):
            if (entry := self._find(key)) is not None:
                return entry
            with self.workdir() as folder:
                build(folder)
                return self._store(key, folder)

    @contextlib.contextmanager
    def workdir(self) -> Iterator[Path]:
        """A new folder on the cache's file system, removed afterwards."""
        parent = self.root / "tmp"
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _entry(self, key: str) -> Path:
        return self.root / "entries" / key[:2] / key

    def _find(self, key: str) -> Path | None:
        entry = self._entry(key)
        try:
            listing = json.loads((entry / _LISTING).read_bytes())
            if all(_digest(entry / name) == digest for name, digest in listing.items()):
                os.utime(entry)
                return entry
        except FileNotFoundError:
            if not entry.exists():
                return None
        except (OSError, ValueError, AttributeError):
            pass
        with contextlib.suppress(OSError), self.workdir() as trash:
            entry.rename(trash / "damaged")
        return None

    def _store(self, key: str, folder: Path) -> Path:
        files = sorted(path for path in folder.iterdir())
        (folder / _LISTING).write_text(json.dumps({path.name: _digest(path) for path in files}))
        folder.chmod(0o755)
        entry = self._entry(key)
        entry.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(entry)
        except OSError:
            # Another process was first; its result is as good.
            if (found := self._find(key)) is not None:
                return found
            raise
        self._prune()
        return entry

    def _prune(self) -> None:
        """Removes the entries unused for longest when there are too many."""
        entries = []
        for entry in (self.root / "entries").glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                entries.append((entry.stat().st_mtime, entry))
        horizon = time.time() - KEEP_S
        for used, entry in sorted(entries)[: max(0, len(entries) - MAX_ENTRIES)]:
            if used < horizon:
                shutil.rmtree(entry, ignore_errors=True)

    @contextlib.contextmanager
    def _turn(self, key: str, wait_s: float) -> Iterator[None]:
        """Keeps others from building the same; only saves work, nothing depends on it."""
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / key
        deadline = time.monotonic() + wait_s
        with path.open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(_LOCK_POLL_S)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{path.name} is not a plain file")
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
