"""Bundles: the same bytes each time, read back whole, refused when anything is wrong."""

import ast
import hashlib
import io
import json
import os
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pk_runtime import bundle as module
from pk_runtime.bundle import (
    MAX_BUNDLE_BYTES,
    MAX_FILE_BYTES,
    BundleError,
    bundle_bytes,
    parse_bundle,
    read_bundle,
    write_bundle,
)
from pk_runtime.candidate import Candidate

SOURCE = '#include <pk/pk.h>\nconstexpr int s = pk::knob("stages", 4, {2, 4});\n'
CANDIDATE = Candidate("pk", {"kernel.cu": SOURCE}, {"stages": 2})
TIMING = {
    "shape": "m8192",
    "kind": "simulated",
    "candidate_us": 512.3,
    "baseline_us": 718.0,
    "speedup": 1.4,
    "roofline_us": 350.0,
    "roofline_fraction": 0.68,
    "bottleneck": "nvlink",
}
INTERFACE = {
    "inputs": [{"name": "a", "shape": ["M", "K/W"], "dtype": "bfloat16"}],
    "outputs": [{"name": "c", "shape": ["M/W", "K"], "dtype": "bfloat16"}],
}
MANIFEST: dict[str, Any] = {
    "problem": "gemm_reducescatter",
    "target": "sim:h200x4",
    "verdict": {
        "status": "correct",
        "evidence": {"summary": "All checks passed."},
        "timings": [TIMING],
        "versions": {"pkforge": "0.1.0"},
    },
    "lineage": [{"attempt": 1}],
    "interface": INTERFACE,
    "job": "job_1",
}


def files_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def with_manifest(change: Callable[[dict[str, Any]], None]) -> bytes:
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST))
    manifest = json.loads(files["manifest.json"])
    change(manifest)
    return packed(files | {"manifest.json": json.dumps(manifest).encode()})


def refused(data: bytes, says: str) -> None:
    with pytest.raises(BundleError, match=says):
        parse_bundle(data)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    write_bundle(path, CANDIDATE, MANIFEST)
    found = read_bundle(path)
    assert found.candidate == CANDIDATE
    assert {name: found.manifest[name] for name in MANIFEST} == MANIFEST
    assert found.manifest["knobs"] == {"stages": 2}
    assert found.manifest["language"] == "pk"
    assert found.manifest["timings"] == [TIMING]
    assert found.manifest["versions"] == {"pkforge": "0.1.0"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle.zip"]


def test_the_files_of_a_bundle() -> None:
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST))
    assert sorted(files) == ["README.md", "kernel.py", "manifest.json", "source/kernel.cu"]
    assert files["source/kernel.cu"].decode() == SOURCE
    hashes = json.loads(files["manifest.json"])["hashes"]
    assert hashes["source/kernel.cu"] == hashlib.sha256(SOURCE.encode()).hexdigest()


def test_the_same_input_makes_the_same_bytes() -> None:
    shuffled = dict(reversed(MANIFEST.items()))
    assert bundle_bytes(CANDIDATE, MANIFEST) == bundle_bytes(CANDIDATE, shuffled)
    first = Candidate("cuda", {"kernel.cu": "x", "a.h": "y"})
    second = Candidate("cuda", {"a.h": "y", "kernel.cu": "x"})
    assert bundle_bytes(first, MANIFEST) == bundle_bytes(second, MANIFEST)


def test_the_readme_says_how_to_reproduce_and_what_kind_the_times_are() -> None:
    text = files_of(bundle_bytes(CANDIDATE, MANIFEST))["README.md"].decode()
    assert "pkforge eval bundle.zip" in text
    assert "| m8192 | 512.3 us | simulated | 718.0 us | 1.40x | 0.68 | nvlink |" in text
    assert "`stages=2`" in text
    assert "**correct**" in text


def test_the_module_is_python_and_names_the_sources_hash() -> None:
    text = files_of(bundle_bytes(CANDIDATE, MANIFEST))["kernel.py"].decode()
    names = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert names == ["gemm_reducescatter"]
    assert hashlib.sha256(SOURCE.encode()).hexdigest() in text
    assert "a=[...]" in text


@pytest.mark.parametrize("name", ['x"""\nimport os\n"""', "\\", "{0}", "class", "1-2", "a`b|c"])
def test_hostile_names_stay_text(name: str) -> None:
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST | {"problem": name}))
    body = ast.parse(files["kernel.py"].decode()).body
    kinds = [type(node).__name__ for node in body]
    assert kinds == ["Expr", "ImportFrom", "ImportFrom", "Assign", "Assign", "FunctionDef"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"verdict": None}, "verdict is missing"),
        ({"problem": 16}, "problem is missing or not of type str"),
        ({"lineage": {}}, "lineage is missing or not of type list"),
        ({"timings": [{"shape": "m"}]}, "simulated or measured"),
        ({"timings": [{"kind": "guessed"}]}, "simulated or measured"),
        ({"interface": {"inputs": []}}, "interface"),
        ({"extra": float("nan")}, "cannot be written as JSON"),
        ({"extra": object()}, "cannot be written as JSON"),
        ({"extra": "x" * MAX_FILE_BYTES}, "manifest.json has"),
    ],
)
def test_a_manifest_that_is_not_complete_is_not_written(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BundleError, match=says):
        bundle_bytes(CANDIDATE, MANIFEST | change)


@pytest.mark.parametrize("name", ["problem", "target", "verdict", "lineage"])
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(BundleError, match=name):
        bundle_bytes(CANDIDATE, {key: value for key, value in MANIFEST.items() if key != name})


def test_an_invalid_candidate_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="not valid"):
        write_bundle(tmp_path / "b.zip", Candidate("pk", {"kernel.cu": ""}), MANIFEST)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    good = bundle_bytes(CANDIDATE, MANIFEST)
    refused(b"", "not a zip")
    refused(b"PK\x03\x04 not really", "not a zip")
    refused(good[: len(good) // 2], "not a zip")
    refused(packed({}), "no manifest.json")
    refused(b"x" * (MAX_BUNDLE_BYTES + 1), "at most")
    with pytest.raises(BundleError, match="cannot be read"):
        read_bundle(tmp_path / "absent.zip")
    (tmp_path / "large.zip").write_bytes(b"x" * (MAX_BUNDLE_BYTES + 1))
    with pytest.raises(BundleError, match="at most"):
        read_bundle(tmp_path / "large.zip")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a device"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "bundle.zip"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "link to a device":
        place.symlink_to("/dev/zero")
    else:
        place = Path("/dev/zero")
    with pytest.raises(BundleError, match=r"plain file|cannot be read"):
        read_bundle(place)


def test_a_link_to_a_bundle_is_read(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b.zip", CANDIDATE, MANIFEST)
    (tmp_path / "link.zip").symlink_to("b.zip")
    assert read_bundle(tmp_path / "link.zip").candidate == CANDIDATE


def test_every_damaged_byte_is_refused_or_harmless() -> None:
    good = bundle_bytes(CANDIDATE, MANIFEST)
    for position in range(0, len(good), 37):
        data = bytearray(good)
        data[position] ^= 0x5A
        try:
            found = parse_bundle(bytes(data))
        except BundleError:
            continue
        assert found.candidate == CANDIDATE


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "source/../../evil",
        "source/",
        "source//a",
        "./kernel.py",
        "c:evil",
        "a\\b",
        "source/\x07",
        "söurce",
    ],
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST))
    refused(packed(files | {name: b"x"}), "illegal file name|points outside")


def test_missing_extra_and_repeated_files_are_refused() -> None:
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST))
    for name in files:
        rest = {key: value for key, value in files.items() if key != name}
        refused(packed(rest), r"missing|no manifest\.json")
    refused(packed(files | {"source/more.h": b"x"}), r"source/more\.h does not belong")
    stream = io.BytesIO(bundle_bytes(CANDIDATE, MANIFEST))
    with (
        zipfile.ZipFile(stream, "a") as archive,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        archive.writestr("kernel.py", "print('other')")
    refused(stream.getvalue(), "there twice")


@pytest.mark.parametrize("name", ["source/kernel.cu", "kernel.py", "README.md"])
def test_a_changed_file_is_refused(name: str) -> None:
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST))
    refused(packed(files | {name: files[name] + b" "}), "was changed")


def test_a_source_changed_with_its_hash_is_refused() -> None:
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST))
    manifest = json.loads(files["manifest.json"])
    files["source/kernel.cu"] += b" "
    changed = hashlib.sha256(files["source/kernel.cu"]).hexdigest()
    manifest["hashes"]["source/kernel.cu"] = changed
    files["manifest.json"] = json.dumps(manifest).encode()
    refused(packed(files), "not those that the manifest was made for")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.update(format=2), "format 1"),
        (lambda m: m.update(chosen_knobs={"stages": 4}), "not those that the manifest"),
        (lambda m: m.update(chosen_knobs={"stages": 3}), "not valid"),
        (lambda m: m.update(language="c"), "not valid"),
        (lambda m: m.update(hashes=[]), "hashes must map"),
        (lambda m: m["hashes"].pop("README.md"), "does not name README.md"),
        (lambda m: m.pop("verdict"), "verdict is missing"),
        (lambda m: m.update(timings=[{}]), "simulated or measured"),
    ],
)
def test_a_changed_manifest_is_refused(change: Callable[[dict[str, Any]], None], says: str) -> None:
    refused(with_manifest(change), says)


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"format": NaN}', b"[" * 100_000, b"\xff"])
def test_a_manifest_that_is_not_json_is_refused(text: bytes) -> None:
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST))
    refused(packed(files | {"manifest.json": text}), "manifest.json")


def test_a_bomb_is_refused_before_it_unpacks() -> None:
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST))
    bomb = packed(files | {"source/bomb.h": b"\0" * (64 << 20)})
    assert len(bomb) < MAX_BUNDLE_BYTES
    refused(bomb, "too many bytes")
    many = packed(files | {f"source/{i}.h": b"" for i in range(100)})
    refused(many, "files; at most")


def test_many_files_of_less_than_the_limit_are_refused_together() -> None:
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST))
    part = b"\0" * (4 << 20)
    refused(packed(files | {f"source/{i}.h": part for i in range(5)}), "too many bytes")
    # The control: one of them is not too many, it only does not belong.
    refused(packed(files | {"source/0.h": part}), "does not belong")


def test_a_directory_of_many_entries_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, *[0] * 7, 1, *[0] * 6) + b"a"
    directory = entry * 100_000
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, len(directory), 0, 0)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    refused(directory + end, "100000 files; at most")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packing_that_may_ask_for_any_memory_is_refused(method: int) -> None:
    stream = io.BytesIO(bundle_bytes(CANDIDATE, MANIFEST))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("source/more.h", "", compress_type=method)
    refused(stream.getvalue(), "packed in a way")
    stored = io.BytesIO(bundle_bytes(CANDIDATE, MANIFEST))
    with zipfile.ZipFile(stored, "a") as archive:
        archive.writestr("source/more.h", "", compress_type=zipfile.ZIP_STORED)
    refused(stored.getvalue(), "does not belong")  # the control: unpacked, and then looked at


def test_an_archive_within_a_bundle_stays_packed() -> None:
    inner = packed({"bomb": b"\0" * (1 << 20)})
    for _ in range(10):
        inner = packed({"inner.zip": inner})
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST))
    refused(packed(files | {"source/inner.zip": inner}), "does not belong")


def test_a_bomb_that_lies_about_its_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 1 << 16)
    files = files_of(bundle_bytes(CANDIDATE, MANIFEST))
    size = 1 << 20
    bomb = packed(files | {"source/bomb.h": b"\0" * size})
    lying = bomb.replace(size.to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert lying != bomb
    refused(lying, "too many bytes|damaged")


def test_links_and_encrypted_files_are_refused() -> None:
    stream = io.BytesIO(bundle_bytes(CANDIDATE, MANIFEST))
    with zipfile.ZipFile(stream, "a") as archive:
        link = zipfile.ZipInfo("source/link.h")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    refused(stream.getvalue(), "not a plain file")
    data = bytearray(packed({"manifest.json": b"{}"}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    refused(bytes(data), "encrypted")
