"""The files between a problem's process and the trusted side."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from problems import wire
from problems.contract import OutputSpec
from problems.description import DTYPES, Description, describe
from problems.errors import ProblemError, WireError
from problems.hosting import InProcessHost, Materialized
from problems.lint.report import LintReport
from problems.registry import get

SPEC = OutputSpec((4, 3), torch.float32)


def written(folder: Path, slug: str = "allgather", world_size: int = 2) -> Description:
    """A folder with the answer to `materialize` at the tiny shape."""
    made = InProcessHost(get(slug)).materialize("tiny", world_size, 1)
    sets = {"inputs": made.inputs, "reference": made.reference, "golden": made.golden}
    wire.write_result(folder, "materialize", {}, sets)
    return describe(get(slug), world_size)


def altered(folder: Path, change: Any) -> None:
    """Change the written JSON by a function on it."""
    path = folder / wire.RESULT
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def equal(left: Materialized, right: Materialized) -> bool:
    pairs = [
        (mine[name], theirs[name])
        for a, b in zip(
            (left.inputs, left.reference, left.golden),
            (right.inputs, right.reference, right.golden),
            strict=True,
        )
        for mine, theirs in zip(a, b, strict=True)
        for name in mine
    ]
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("slug", ["allgather", "alltoall", "gemm_reducescatter", "allreduce"])
def test_tensors_survive(slug: str, tmp_path: Path) -> None:
    description = written(tmp_path, slug)
    read = wire.read_materialized(tmp_path, description, "tiny")
    assert equal(read, InProcessHost(get(slug)).materialize("tiny", 2, 1))


def test_every_dtype_survives(tmp_path: Path) -> None:
    for number, dtype in enumerate(DTYPES.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        tensor = torch.tensor([0, 1, 1, 0]).reshape(2, 2).to(dtype)
        index = wire.write_tensors(folder, {"s": [{"x": tensor, "scalar": tensor[0, 1]}]})
        specs = {"x": (OutputSpec((2, 2), dtype),), "scalar": (OutputSpec((), dtype),)}
        (read,) = wire.read_tensors(folder, index, {"s": [specs]})["s"]
        assert read["x"].dtype == dtype
        assert torch.equal(read["x"].to(torch.complex64), tensor.to(torch.complex64))
        assert read["scalar"].shape == ()


def test_a_tensor_that_ranks_share_is_written_once(tmp_path: Path) -> None:
    shared = torch.ones(8)
    wire.write_tensors(tmp_path, {"golden": [{"y": shared}] * 4, "other": [{"y": shared[:4]}]})
    assert len(list(tmp_path.glob("*.bin"))) == 2


def test_strided_tensors_are_written_in_row_major_order(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()
    index = wire.write_tensors(tmp_path, {"s": [{"x": tensor}]})
    (read,) = wire.read_tensors(tmp_path, index, {"s": [{"x": (SPEC,)}]})["s"]
    assert torch.equal(read["x"], tensor)


def test_defective_outputs_survive(tmp_path: Path) -> None:
    host = InProcessHost(get("gemm_reducescatter"))
    wire.write_result(tmp_path, "defective", {}, host.defective("tiny", 2, 1))
    read = wire.read_defective(tmp_path, host.describe(2), "tiny")
    assert set(read) == {"local", "without:0", "without:1", "twice:0", "twice:1"}
    assert torch.equal(read["local"][1]["c"], host.defective("tiny", 2, 1)["local"][1]["c"])


def test_a_lint_report_and_a_description_survive(tmp_path: Path) -> None:
    report = LintReport(True, 5, (), 20.0, 30.0)
    wire.write_result(tmp_path, "lint", {"report": report.to_json()})
    assert wire.read_lint(tmp_path) == report
    description = describe(get("allgather"), 4)
    wire.write_result(tmp_path, "describe", {"description": description.to_json()})
    assert wire.read_description(tmp_path, 4) == description
    with pytest.raises(WireError, match="for 4 ranks, not 2"):
        wire.read_description(tmp_path, 2)


def test_an_error_of_the_problem_arrives_with_its_place(tmp_path: Path) -> None:
    wire.write_error(tmp_path, "lint", ProblemError("it\x1b broke", file="p.py", line=7))
    with pytest.raises(ProblemError, match=r"p\.py:7: it\? broke") as caught:
        wire.read_result(tmp_path, "lint")
    assert not isinstance(caught.value, WireError)
    assert (caught.value.file, caught.value.line) == ("p.py", 7)


RESULTS: list[tuple[bytes, str]] = [
    (b"", "is not JSON"),
    (b"[]", "must be an object"),
    (b"{" * 100_000, "is not JSON"),
    (b"[" * 100_000, "is not JSON"),
    (b'{"format": 1, "command": "describe", "ok": true, "result": {}}', "did not answer 'lint'"),
    (b'{"format": 2, "command": "lint", "ok": true, "result": {}}', "did not answer"),
    (b'{"format": 1, "command": "lint", "ok": true, "result": []}', "malformed answer"),
    (b'{"format": 1, "command": "lint", "ok": 1, "result": {}}', "malformed answer"),
    (b'{"format": 1, "command": "lint", "ok": false, "error": {}}', "malformed answer"),
    (b" " * (wire.MAX_JSON_BYTES + 1), "at most"),
    (b"\xff\xfe", "is not JSON"),
]


@pytest.mark.parametrize(("data", "message"), RESULTS)
def test_a_malformed_answer_is_refused(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / wire.RESULT).write_bytes(data)
    with pytest.raises(WireError, match=message):
        wire.read_result(tmp_path, "lint")


def test_no_answer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WireError, match=r"result\.json cannot be read: No such file"):
        wire.read_result(tmp_path, "lint")


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"format": 1, "command": "lint", "ok": true, "result": {}}')
    path = tmp_path / wire.RESULT
    path.symlink_to(secret)
    with pytest.raises(WireError, match="cannot be read"):
        wire.read_result(tmp_path, "lint")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(WireError, match="must be a plain file"):
        wire.read_result(tmp_path, "lint")
    path.unlink()
    path.mkdir()
    with pytest.raises(WireError, match="must be a plain file"):
        wire.read_result(tmp_path, "lint")


def _entry(data: Any) -> Any:
    return data["result"]["tensors"]["inputs"][0]["x"]


ALTERATIONS: dict[str, tuple[Any, str]] = {
    "set missing": (lambda d: d["result"]["tensors"].pop("golden"), "tensor sets"),
    "set surplus": (lambda d: d["result"]["tensors"].update(more=[]), "tensor sets"),
    "no index": (lambda d: d["result"].pop("tensors"), "tensor sets"),
    "rank missing": (lambda d: d["result"]["tensors"]["inputs"].pop(), "must have 2 ranks"),
    "tensor missing": (lambda d: d["result"]["tensors"]["inputs"][0].clear(), "must have x"),
    "tensor surplus": (
        lambda d: d["result"]["tensors"]["inputs"][0].update(z=_entry(d)),
        "must have x",
    ),
    "entry": (lambda d: d["result"]["tensors"]["inputs"][0].update(x=3), "malformed entry"),
    "path": (lambda d: _entry(d).update(file="../0.bin"), "is no tensor file"),
    "absolute path": (lambda d: _entry(d).update(file="/etc/passwd"), "is no tensor file"),
    "no file": (lambda d: _entry(d).update(file="99.bin"), "cannot be read"),
    "file of another size": (lambda d: _entry(d).update(file="4.bin"), "bytes instead of"),
    "dtype": (lambda d: _entry(d).update(dtype="float32"), "expected bfloat16"),
    "object": (lambda d: _entry(d).update(dtype="object"), "expected bfloat16"),
    "shape": (lambda d: _entry(d).update(shape=[64, 65]), r"expected bfloat16\[64, 64\]"),
    "negative shape": (lambda d: _entry(d).update(shape=[-64, -64]), "expected bfloat16"),
    "bool shape": (lambda d: _entry(d).update(shape=[True, 4096]), "expected bfloat16"),
}


@pytest.mark.parametrize("what", ALTERATIONS)
def test_an_altered_index_is_refused(what: str, tmp_path: Path) -> None:
    description = written(tmp_path)
    change, message = ALTERATIONS[what]
    altered(tmp_path, change)
    with pytest.raises(WireError, match=message):
        wire.read_materialized(tmp_path, description, "tiny")


def test_a_golden_in_low_precision_is_refused(tmp_path: Path) -> None:
    made = InProcessHost(get("allreduce")).materialize("tiny", 2, 1)
    sets = {"inputs": made.inputs, "reference": made.reference, "golden": made.reference}
    wire.write_result(tmp_path, "materialize", {}, sets)
    with pytest.raises(WireError, match=r"expected float64\[64, 64\], got bfloat16"):
        wire.read_materialized(tmp_path, describe(get("allreduce"), 2), "tiny")


def test_files_that_are_cut_grown_or_linked_are_refused(tmp_path: Path) -> None:
    description = written(tmp_path)
    file = tmp_path / "0.bin"
    data = file.read_bytes()
    for spoiled in (data[:-1], data + b"x", b""):
        file.write_bytes(spoiled)
        with pytest.raises(WireError, match="bytes instead of"):
            wire.read_materialized(tmp_path, description, "tiny")
    file.unlink()
    file.symlink_to(tmp_path / "1.bin")
    with pytest.raises(WireError, match="cannot be read"):
        wire.read_materialized(tmp_path, description, "tiny")


def test_the_total_size_is_bounded(tmp_path: Path) -> None:
    index = wire.write_tensors(tmp_path, {"s": [{"x": torch.zeros(4, 3)}] * 3})
    expected = {"s": [{"x": (SPEC,)}] * 3}
    assert len(wire.read_tensors(tmp_path, index, expected, limit=144)["s"]) == 3
    with pytest.raises(WireError, match="more than 143 bytes"):
        wire.read_tensors(tmp_path, index, expected, limit=143)


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    wire.write_tensors(tmp_path, {"s": [{"x": torch.zeros(4)}]})
    with pytest.raises(FileExistsError):
        wire.write_tensors(tmp_path, {"s": [{"x": torch.ones(4)}]})
