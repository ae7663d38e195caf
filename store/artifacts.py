"""Bytes on disk, named by their SHA-256. A repeated write is a no-op; a torn one never shows."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from store.errors import ArtifactError

_HASH = re.compile(r"[0-9a-f]{64}")


class Artifacts:
    """The folder of artifacts. Rows of the database point into it; it knows no rows itself."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, data: bytes) -> str:
        """Store `data` durably and return its SHA-256. Raises OSError where the disk refuses."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._path(sha256)
        if path.exists():
            return sha256
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return sha256

    def get(self, sha256: str) -> bytes:
        """The bytes of an artifact; ArtifactError if they are missing or damaged."""
        path = self.path(sha256)
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ArtifactError(
                f"artifact {path} is damaged: its content does not have its hash. "
                "Restore it from a backup"
            )
        return data

    def path(self, sha256: str) -> Path:
        """Where an artifact lies on disk, to be read only; ArtifactError if it is missing."""
        path = self._path(sha256)
        if not path.is_file():
            raise ArtifactError(
                f"artifact {sha256} is not in {self.root}: "
                "point PKFORGE_ARTIFACTS at the folder the workers write to, or restore the file"
            )
        return path

    def _path(self, sha256: str) -> Path:
        if not _HASH.fullmatch(sha256):
            raise ArtifactError(f"{sha256!r} is not a SHA-256 in lower-case hex")
        return self.root / sha256[:2] / sha256
