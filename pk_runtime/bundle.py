"""Kernel bundles: a winning candidate as one zip with everything that is known of it.

    manifest.json      problem, target, language, knobs, verdict, timings, versions, hashes, lineage
    source/<file>      the candidate's files, unchanged
    kernel.py          a Python module that builds the kernel and calls it on tensors per rank
    README.md          what it is, how fast, how to call it, how to reproduce the verdict

The same candidate and manifest make the same bytes. A bundle that is read may come from anybody:
its size, names and types are checked before anything is unpacked, in memory, and its hashes after.
"""

import hashlib
import io
import json
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pk_runtime.bundle_texts import kernel_module, readme
from pk_runtime.candidate import MAX_FILES, Candidate, CandidateError, resolved_knobs, validate
from pk_runtime.interface import Interface, InterfaceError
from pk_runtime.target import TimingKind

FORMAT = 1
MAX_BUNDLE_BYTES = 8 << 20
MAX_FILE_BYTES = 4 << 20
MAX_UNPACKED_BYTES = 16 << 20
SOURCE = "source/"
MANIFEST = "manifest.json"
MODULE = "kernel.py"
README = "README.md"
# Given by who writes a bundle; the last two default to what the verdict says.
GIVEN = ("problem", "target", "verdict", "lineage", "timings", "versions")

_ENTRY = b"PK\x01\x02"  # begins each entry of a zip file's directory
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_DAMAGED = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OSError,
)


class BundleError(ValueError):
    """A bundle that cannot be written or must not be used: what is wrong with it, and where."""


@dataclass(frozen=True)
class Bundle:
    """What a bundle holds: the candidate and the manifest as plain JSON data."""

    candidate: Candidate
    manifest: Mapping[str, Any]


def write_bundle(path: Path, candidate: Candidate, manifest: Mapping[str, Any]) -> None:
    """Writes a bundle, replacing the file as a whole (see `bundle_bytes`)."""
    data = bundle_bytes(candidate, manifest)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def bundle_bytes(candidate: Candidate, manifest: Mapping[str, Any]) -> bytes:
    """The bundle of a candidate as bytes.

    `manifest` needs problem, target, verdict (JSON of a verdict) and lineage; timings and versions
    default to the verdict's, `interface` (JSON of an `Interface`) lets the kernel be called without
    naming output shapes; more fields are kept. Language, knobs and hashes are filled in.
    BundleError if something is missing or not JSON.
    """
    try:
        validate(candidate)
        knobs = resolved_knobs(candidate)
    except CandidateError as error:
        raise BundleError(f"the candidate is not valid: {error}") from error
    content = _completed(candidate, knobs, manifest)
    sources = {f"{SOURCE}{n}": text.encode() for n, text in sorted(candidate.files.items())}
    content["hashes"] = {name: _sha256(data) for name, data in sources.items()}
    files = {
        **sources,
        MODULE: kernel_module(content).encode(),
        README: readme(content).encode(),
    }
    content["hashes"] = {name: _sha256(data) for name, data in files.items()}
    files[MANIFEST] = _to_json(content)
    return _zip(files)


def read_bundle(path: Path) -> Bundle:
    """Reads a bundle file; BundleError if it is not one, damaged, oversized or tampered with."""
    try:
        # A pipe without a writer would be waited for, and a device may have no end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BundleError("it is not a plain file")
            return parse_bundle(file.read(MAX_BUNDLE_BYTES + 1))
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}") from error


def parse_bundle(data: bytes) -> Bundle:
    """Reads a bundle from bytes; BundleError as `read_bundle`."""
    if len(data) > MAX_BUNDLE_BYTES:
        raise BundleError(f"it is too large: a bundle has at most {MAX_BUNDLE_BYTES} bytes")
    files = _unzip(data)
    manifest = _manifest(files.pop(MANIFEST, None))
    return Bundle(_candidate(files, manifest), manifest)


def _completed(
    candidate: Candidate, knobs: Mapping[str, int], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    content = {str(name): value for name, value in manifest.items()}
    verdict = content.get("verdict")
    if not isinstance(verdict, Mapping):
        raise BundleError("manifest: verdict is missing or not a JSON object")
    content.setdefault("timings", verdict.get("timings", []))
    content.setdefault("versions", verdict.get("versions", {}))
    if missing := [name for name in GIVEN if name not in content]:
        raise BundleError(f"manifest: missing {', '.join(missing)}")
    content |= {
        "format": FORMAT,
        "language": candidate.language,
        "knobs": dict(knobs),
        "chosen_knobs": dict(candidate.knobs),
        "candidate": candidate.digest(),
    }
    plain: dict[str, Any] = json.loads(_to_json(content))
    _check_fields(plain)
    return plain


def _check_fields(manifest: Mapping[str, Any]) -> None:
    """Raises BundleError unless the fields that this package reads have the right types."""
    kinds = {
        **dict.fromkeys(("problem", "target", "language", "candidate"), str),
        **dict.fromkeys(("verdict", "versions", "knobs", "chosen_knobs"), dict),
        **dict.fromkeys(("timings", "lineage"), list),
    }
    for name, kind in kinds.items():
        if not isinstance(manifest.get(name), kind):
            raise BundleError(f"manifest: {name} is missing or not of type {kind.__name__}")
    for timing in manifest["timings"]:
        if not isinstance(timing, dict) or timing.get("kind") not in get_args(TimingKind):
            raise BundleError("manifest: a timing does not say whether it is simulated or measured")
    if manifest.get("interface") is not None:
        try:
            Interface.from_json(manifest["interface"])
        except InterfaceError as error:
            raise BundleError(f"manifest: interface: {error}") from error


def _manifest(data: bytes | None) -> dict[str, Any]:
    if data is None:
        raise BundleError(f"there is no {MANIFEST}: this is not a kernel bundle")
    try:
        manifest = json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{MANIFEST} is not valid JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"{MANIFEST} does not have format {FORMAT}: made by another version?")
    _check_fields(manifest)
    hashes = manifest.get("hashes")
    if not isinstance(hashes, dict) or not all(isinstance(v, str) for v in hashes.values()):
        raise BundleError("manifest: hashes must map file names to SHA-256")
    return manifest


def _candidate(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> Candidate:
    hashes = manifest["hashes"]
    for name in (MODULE, README):
        if name not in hashes:
            raise BundleError(f"manifest: hashes does not name {name}")
    if missing := sorted(set(hashes) - set(files)):
        raise BundleError(f"{missing[0]} is missing")
    if extra := sorted(set(files) - set(hashes)):
        raise BundleError(f"{extra[0]} does not belong into this bundle")
    for name, data in files.items():
        if _sha256(data) != hashes[name]:
            raise BundleError(f"{name} was changed after the bundle was made")
    try:
        sources = {
            name.removeprefix(SOURCE): data.decode()
            for name, data in files.items()
            if name.startswith(SOURCE)
        }
        candidate = Candidate.from_json(
            {
                "language": manifest["language"],
                "files": sources,
                "knobs": manifest["chosen_knobs"],
            }
        )
        validate(candidate)
    except (CandidateError, UnicodeDecodeError) as error:
        raise BundleError(f"the candidate is not valid: {error}") from error
    if candidate.digest() != manifest["candidate"]:
        raise BundleError("the source or the knobs are not those that the manifest was made for")
    return candidate


def _zip(files: Mapping[str, bytes]) -> bytes:
    for name, data in files.items():
        if len(data) > MAX_FILE_BYTES:
            raise BundleError(f"{name} has {len(data)} bytes; at most {MAX_FILE_BYTES} fit")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, _FIXED_TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, files[name], compresslevel=9)
    return stream.getvalue()


def _unzip(data: bytes) -> dict[str, bytes]:
    """All files of an archive, in memory; BundleError before anything suspicious is unpacked."""
    files: dict[str, bytes] = {}
    room = MAX_UNPACKED_BYTES
    # Before the directory is read: one of millions of entries would take seconds and memory.
    if (count := data.count(_ENTRY)) > MAX_FILES + 3:
        raise BundleError(f"there are {count} files; at most {MAX_FILES + 3} belong")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                _check_entry(entry, files)
                with archive.open(entry) as stream:
                    content = stream.read(MAX_FILE_BYTES + 1)
                room -= len(content)
                if len(content) > MAX_FILE_BYTES or room < 0:
                    raise BundleError(f"{entry.filename!r} unpacks to too many bytes")
                files[entry.filename] = content
    except BundleError:
        raise
    except _DAMAGED as error:
        raise BundleError("this is not a zip file, or it is damaged") from error
    return files


def _check_entry(entry: zipfile.ZipInfo, files: Mapping[str, bytes]) -> None:
    name = entry.filename
    parts = name.split("/")
    mode = entry.external_attr >> 16
    if not name.isascii() or not name.isprintable() or "\\" in name or ":" in name:
        raise BundleError(f"illegal file name {name[:80]!r}")
    if any(part in ("", ".", "..") for part in parts):
        raise BundleError(f"{name[:80]!r} is a folder or points outside the bundle")
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise BundleError(f"{name[:80]!r} is not a plain file")
    if entry.flag_bits & 0x1:
        raise BundleError(f"{name[:80]!r} is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Others ask for memory of a size that the archive names.
        raise BundleError(f"{name[:80]!r} is packed in a way that bundles are not")
    if name in files:
        raise BundleError(f"{name[:80]!r} is there twice")
    if entry.file_size > MAX_FILE_BYTES:
        raise BundleError(f"{name[:80]!r} unpacks to too many bytes")


def _to_json(data: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(data, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise BundleError(f"manifest: cannot be written as JSON: {error}") from error
    return (text + "\n").encode()


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
