"""Which kernel is the fastest for which size: a table beside a hardware sheet.

`sheets/<sheet>.dispatch.toml` holds, per operation, rows in order of size:

    measured = "2026-11-21, 4x H200, ..."
    [[all_reduce]]
    max_bytes = 65536
    kernel = "allreduce_ll"
    knobs = { pieces = 2 }
    [[all_reduce]]
    nccl = true

A row holds up to `max_bytes`; the last row of an operation has none and holds for the rest. Bytes
are those of one rank's input `x`; for a fused operation those of the tensor that is communicated:
this rank's `a` where it is gathered, the whole product where it is reduced. A kernel stands in a
row only where it was measured to be faster than torch.distributed, copies included.
"""

import itertools
import os
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pk_runtime.candidate import Candidate, CandidateError, validate
from pk_runtime.kernels import shipped_kernel, shipped_names

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gemm_reduce_scatter",
    "gemm_all_reduce",
    "all_gather_gemm",
)
NOT_MEASURED = "not yet measured"

_FOLDER = Path(__file__).parents[1] / "sheets"
_FIELDS = {"max_bytes", "kernel", "knobs", "nccl"}


class TableError(ValueError):
    """A dispatch table that is malformed: which file, operation and row, and what is wrong."""


@dataclass(frozen=True)
class Row:
    """What to use up to `max_bytes` (None: for all larger ones): a shipped kernel, or NCCL."""

    max_bytes: int | None = None
    kernel: str | None = None
    knobs: Mapping[str, int] = field(default_factory=dict)

    @property
    def nccl(self) -> bool:
        """Whether torch.distributed is the best there is."""
        return self.kernel is None


@dataclass(frozen=True)
class Table:
    """Rows by operation, and what they rest on."""

    measured: str
    rows: Mapping[str, Sequence[Row]]

    def row(self, operation: str, nbytes: int) -> Row:
        """The row for a size; NCCL for an operation without rows. KeyError for an unknown one."""
        if operation not in OPERATIONS:
            raise KeyError(f"no operation {operation!r}; known: {', '.join(OPERATIONS)}")
        for row in self.rows.get(operation, ()):
            if row.max_bytes is None or nbytes <= row.max_bytes:
                return row
        return Row()


def dispatch_path(sheet: str) -> Path:
    """Where the table of a shipped sheet lies."""
    return _FOLDER / f"{sheet}.dispatch.toml"


def load_dispatch(sheet: str) -> Table:
    """The table of a sheet; one that always says NCCL if there is none. TableError."""
    path = dispatch_path(sheet)
    return read_dispatch(path) if path.exists() else Table(NOT_MEASURED, {})


def read_dispatch(path: Path) -> Table:
    """Reads a table from a file; TableError if it is malformed."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TableError(f"{path.name}: cannot be read: {error}") from error
    measured = data.pop("measured", NOT_MEASURED)
    if not isinstance(measured, str):
        raise TableError(f"{path.name}: measured must be a text")
    table = {name: _rows(f"{path.name}: {name}", rows) for name, rows in data.items()}
    _check(path.name, table)
    return Table(measured, table)


def write_dispatch(path: Path, rows: Mapping[str, Sequence[Row]], measured: str) -> None:
    """Writes a table, replacing the file as a whole. `measured` says when, where and how.

    TableError if it could not be read back.
    """
    _check(path.name, rows)
    if not measured.strip() or not measured.isprintable():
        raise TableError(f"{path.name}: say in one line how the rows were measured")
    text = measured.replace("\\", "\\\\").replace('"', '\\"')
    lines = [
        "# Which kernel is the fastest for which size: see pk_runtime/gpu/dispatch_table.py.",
        f'measured = "{text}"',
    ]
    for operation, some in rows.items():
        for row in some:
            lines += ["", f"[[{operation}]]"]
            if row.max_bytes is not None:
                lines.append(f"max_bytes = {row.max_bytes}")
            if row.kernel is None:
                lines.append("nccl = true")
            else:
                knobs = ", ".join(f"{name} = {value}" for name, value in sorted(row.knobs.items()))
                lines.append(f'kernel = "{row.kernel}"')
                lines += [f"knobs = {{ {knobs} }}"] if knobs else []
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    Path(name).chmod(0o644)
    Path(name).replace(path)


def _rows(where: str, data: Any) -> tuple[Row, ...]:
    if not isinstance(data, list):
        raise TableError(f"{where}: must be a list of rows, [[operation]]")
    rows = []
    for number, item in enumerate(data, 1):
        place = f"{where}, row {number}"
        if not isinstance(item, dict) or set(item) - _FIELDS:
            raise TableError(f"{place}: a row has only {', '.join(sorted(_FIELDS))}")
        nccl, kernel = item.get("nccl", False), item.get("kernel")
        if (nccl is True) == (kernel is not None) or not isinstance(kernel, str | None):
            raise TableError(f"{place}: a row has either kernel = ... or nccl = true")
        rows.append(Row(item.get("max_bytes"), kernel, item.get("knobs", {})))
    return tuple(rows)


def _check(name: str, table: Mapping[str, Sequence[Row]]) -> None:
    for operation, rows in table.items():
        where = f"{name}: {operation}"
        if operation not in OPERATIONS:
            raise TableError(f"{where}: no such operation; known: {', '.join(OPERATIONS)}")
        limits = [row.max_bytes for row in rows]
        numbers = [limit for limit in limits[:-1] if isinstance(limit, int) and limit > 0]
        rising = all(a < b for a, b in itertools.pairwise(numbers))
        if not limits or limits[-1] is not None or len(numbers) < len(limits) - 1 or not rising:
            raise TableError(f"{where}: max_bytes must rise from row to row, and the last has none")
        for number, row in enumerate(rows, 1):
            if row.kernel is not None:
                _check_kernel(f"{where}, row {number}", row.kernel, row.knobs)


def _check_kernel(where: str, name: str, knobs: Any) -> None:
    if name not in shipped_names():
        raise TableError(f"{where}: no shipped kernel {name!r}")
    if not isinstance(knobs, dict) or not all(isinstance(value, int) for value in knobs.values()):
        raise TableError(f"{where}: knobs are whole numbers by name")
    try:
        validate(Candidate("pk", shipped_kernel(name).files, knobs))
    except CandidateError as error:
        raise TableError(f"{where}: {error}") from error
