"""The files by which a problem's process hands over results: JSON and raw tensor bytes, no pickle.

The writing side runs untrusted code, so the reading side believes nothing: it knows from the
description which tensors must come, in which shape and dtype, checks every size before it reads,
and follows no links. `result.json` is `{"format": 1, "command": ..., "ok": true, "result": ...}` or
`{..., "ok": false, "error": {"message", "file", "line"}}`; tensors are files of little-endian
elements in row-major order, indexed in `result.tensors`.
"""

import json
import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from problems.contract import OutputSpec, Tensors
from problems.description import DTYPES, Description, dtype_name
from problems.errors import ProblemError, WireError
from problems.hosting import Materialized
from problems.lint.report import LintReport

FORMAT = 1
RESULT = "result.json"
MAX_JSON_BYTES = 4 << 20
MAX_TENSOR_BYTES = 4 << 30
MAX_MESSAGE = 4000

Sets = Mapping[str, Sequence[Mapping[str, Tensor]]]
Expected = Mapping[str, Sequence[Mapping[str, tuple[OutputSpec, ...]]]]

_FILE = re.compile(r"[0-9]{1,5}\.bin")


def write_result(folder: Path, command: str, result: Mapping[str, Any], sets: Sets = {}) -> None:  # noqa: B006 - never changed
    """Write a command's answer, and its tensors: lists with one mapping per rank, by set name."""
    index = write_tensors(folder, sets)
    _write_json(folder, command, True, {"result": {**result, "tensors": index}})


def write_error(folder: Path, command: str, error: ProblemError) -> None:
    """Write that a command failed because of the problem's file."""
    entry = {"message": error.message[:MAX_MESSAGE], "file": error.file, "line": error.line}
    _write_json(folder, command, False, {"error": entry})


def write_tensors(folder: Path, sets: Sets) -> dict[str, list[dict[str, Any]]]:
    """Write raw tensor files and return their index; a tensor shared by ranks is written once."""
    files: dict[tuple[Any, ...], str] = {}
    index: dict[str, list[dict[str, Any]]] = {}
    for name, ranks in sets.items():
        index[name] = []
        for tensors in ranks:
            entries = {}
            for key, tensor in tensors.items():
                identity = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
                if identity not in files:
                    files[identity] = f"{len(files)}.bin"
                    _write_tensor(folder / files[identity], tensor)
                entries[key] = {
                    "file": files[identity],
                    "dtype": dtype_name(tensor.dtype),
                    "shape": list(tensor.shape),
                }
            index[name].append(entries)
    return index


def read_result(folder: Path, command: str) -> dict[str, Any]:
    """The answer to a command.

    Raises:
        ProblemError: the problem's code failed; message, file and line are its.
        WireError: the process left no answer or a malformed one.
    """
    data = _read_json(folder)
    if data.get("format") != FORMAT or data.get("command") != command:
        raise WireError(f"The problem's process did not answer {command!r}.")
    if data.get("ok") is True and isinstance(data.get("result"), dict):
        result: dict[str, Any] = data["result"]
        return result
    error = data.get("error")
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise WireError(f"The problem's process gave a malformed answer to {command!r}.")
    file, line = error.get("file"), error.get("line")
    raise ProblemError(
        _printable(error["message"]),
        file=_printable(file)[:200] if isinstance(file, str) else None,
        line=line if type(line) is int else None,
    )


def read_description(folder: Path, world_size: int) -> Description:
    """The answer to `describe`. Raises as `read_result`."""
    description = Description.from_json(read_result(folder, "describe").get("description"))
    if description.world_size != world_size:
        raise WireError(f"The description is for {description.world_size} ranks, not {world_size}.")
    return description


def read_materialized(folder: Path, description: Description, shape: str) -> Materialized:
    """The answer to `materialize` for a shape of the description. Raises as `read_result`."""
    info = description.shape(shape)
    exact = {name: _golden_specs(spec, description) for name, spec in info.outputs.items()}
    sets = _read_sets(
        folder,
        "materialize",
        {
            "inputs": [_single(info.inputs)] * description.world_size,
            "reference": [_single(info.outputs)] * description.world_size,
            "golden": [exact] * description.world_size,
        },
    )
    return Materialized(sets["inputs"], sets["reference"], sets["golden"], description.peer_dims)


def read_defective(folder: Path, description: Description, shape: str) -> dict[str, list[Tensors]]:
    """The answer to `defective` for a shape of the description. Raises as `read_result`."""
    ranks = range(description.world_size)
    names = ["local", *(f"{kind}:{rank}" for kind in ("without", "twice") for rank in ranks)]
    outputs = [_single(description.shape(shape).outputs)] * description.world_size
    return _read_sets(folder, "defective", dict.fromkeys(names, outputs))


def read_lint(folder: Path) -> LintReport:
    """The answer to `lint`. Raises as `read_result`."""
    return LintReport.from_json(read_result(folder, "lint").get("report"))


def read_tensors(
    folder: Path, index: object, expected: Expected, limit: int = MAX_TENSOR_BYTES
) -> dict[str, list[Tensors]]:
    """Read exactly the expected tensors, each in one of the given forms, `limit` bytes in all.

    Raises WireError, which names the tensor, for anything missing, surplus or out of form.
    """
    if not isinstance(index, dict) or set(index) != set(expected):
        raise WireError(f"Expected the tensor sets {', '.join(expected)}.")
    remaining = limit
    read: dict[str, list[Tensors]] = {}
    for name, ranks in expected.items():
        listed = index[name]
        if not isinstance(listed, list) or len(listed) != len(ranks):
            raise WireError(f"Set {name!r} must have {len(ranks)} ranks.")
        read[name] = []
        for rank, (entries, forms) in enumerate(zip(listed, ranks, strict=True)):
            if not isinstance(entries, dict) or set(entries) != set(forms):
                raise WireError(f"Rank {rank} of {name!r} must have {', '.join(forms)}.")
            tensors: Tensors = {}
            for key, specs in forms.items():
                spec, file = _entry(entries[key], specs, f"{name} of rank {rank}, {key!r}")
                remaining -= spec.dtype.itemsize * _count(spec.shape)
                if remaining < 0:
                    raise WireError(f"The tensors have more than {limit} bytes.")
                tensors[key] = _read_tensor(folder / file, spec)
            read[name].append(tensors)
    return read


def _read_sets(folder: Path, command: str, expected: Expected) -> dict[str, list[Tensors]]:
    return read_tensors(folder, read_result(folder, command).get("tensors"), expected)


def _golden_specs(spec: OutputSpec, description: Description) -> tuple[OutputSpec, ...]:
    """The golden is in fp64, or in the output's dtype where results are exact."""
    if description.tolerance == "T0":
        return (spec, OutputSpec(spec.shape, torch.float64))
    wide = torch.complex128 if spec.dtype.is_complex else torch.float64
    return (OutputSpec(spec.shape, wide),)


def _single(specs: Mapping[str, OutputSpec]) -> dict[str, tuple[OutputSpec, ...]]:
    return {name: (spec,) for name, spec in specs.items()}


def _entry(entry: object, specs: tuple[OutputSpec, ...], what: str) -> tuple[OutputSpec, str]:
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
        raise WireError(f"{what}: malformed entry.")
    file, dtype, shape = entry["file"], entry.get("dtype"), entry.get("shape")
    if not _FILE.fullmatch(file):
        raise WireError(f"{what}: {_printable(file)[:40]!r} is no tensor file.")
    for spec in specs:
        if shape == list(spec.shape) and isinstance(dtype, str) and DTYPES.get(dtype) == spec.dtype:
            return spec, file
    wanted = " or ".join(f"{dtype_name(spec.dtype)}{list(spec.shape)}" for spec in specs)
    raise WireError(f"{what}: expected {wanted}, got {str(dtype)[:20]}{str(shape)[:80]}.")


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=object)) if shape else 1


def _write_tensor(path: Path, tensor: Tensor) -> None:
    _require_little_endian()
    dense = tensor.detach().cpu().contiguous().reshape(-1)
    with path.open("xb") as file:
        dense.view(torch.uint8).numpy().tofile(file)


def _read_tensor(path: Path, spec: OutputSpec) -> Tensor:
    _require_little_endian()
    count = _count(spec.shape)
    data = np.frombuffer(_read_file(path, exactly=count * spec.dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(data).view(spec.dtype).reshape(spec.shape)


def _read_file(path: Path, *, exactly: int | None = None, at_most: int = 0) -> bytearray:
    """The bytes of a plain file of known size."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise WireError(f"{path.name} cannot be read: {error.strerror}.") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise WireError(f"{path.name} must be a plain file.")
        if exactly is None and status.st_size > at_most:
            raise WireError(f"{path.name} may have at most {at_most} bytes.")
        if exactly is not None and status.st_size != exactly:
            raise WireError(f"{path.name} has {status.st_size} bytes instead of {exactly}.")
        data = bytearray(status.st_size)
        view, filled = memoryview(data), 0
        while filled < len(data):
            count = os.readv(handle, [view[filled:]])
            if not count:
                raise WireError(f"{path.name} ended after {filled} of {len(data)} bytes.")
            filled += count
    finally:
        os.close(handle)
    return data


def _write_json(folder: Path, command: str, ok: bool, body: Mapping[str, Any]) -> None:
    data = {"format": FORMAT, "command": command, "ok": ok, **body}
    text = json.dumps(data, allow_nan=False)
    (folder / RESULT).write_text(text, encoding="utf-8")


def _read_json(folder: Path) -> dict[str, Any]:
    try:
        data = json.loads(_read_file(folder / RESULT, at_most=MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise WireError(f"{RESULT} is not JSON: {type(error).__name__}.") from error
    if not isinstance(data, dict):
        raise WireError(f"{RESULT} must be an object.")
    return data


def _printable(text: str) -> str:
    clean = "".join(c if c.isprintable() or c == "\n" else "?" for c in text[:MAX_MESSAGE])
    return clean


def _require_little_endian() -> None:
    if sys.byteorder != "little":
        raise WireError("Tensor files are little-endian; this machine is not.")
