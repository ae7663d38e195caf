"""The results of a section as a table for a terminal."""

from collections.abc import Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]

TITLES = {
    "copy_engine": "Copy engine (GB/s per GPU)",
    "store": "Plain 16-byte stores to peers (GB/s per GPU, by SMs)",
    "load": "Plain 16-byte loads from peers (GB/s per GPU, by SMs)",
    "tma_store": "TMA push: 1-D bulk copies, shared memory to peer (GB/s per GPU, by SMs)",
    "tma_load": "TMA pull: 1-D bulk copies, peer to shared memory (GB/s per GPU, by SMs)",
    "tma_reduce_add_bf16": "TMA reduce-add, bf16, shared memory to peer (GB/s per GPU, by SMs)",
    "flags": "Flags and barriers (us)",
    "launches": "Launch of an empty kernel (us)",
    "memory": "A GPU's own memory",
    "gemm": "cuBLAS bf16 GEMM",
    "slowdown": "GEMM while SMs push to all peers, all GPUs",
    "nccl": "NCCL (us; bus GB/s)",
}
PATTERNS = {
    "pair": "one GPU to one peer",
    "fan": "one GPU, all peers in turn",
    "ring": "all GPUs, one peer each",
    "all": "all GPUs, all peers in turn",
}


def render(name: str, rows: Rows) -> str:
    """The table of one section."""
    if rows and "mechanism" in rows[0]:
        body = _by_sms(rows)
    elif name == "nccl":
        body = _by_mode(rows)
    else:
        body = plain(rows)
    return f"{TITLES[name]}\n{body}"


def plain(rows: Rows) -> str:
    """Columns as wide as their longest entry; the columns of all rows, in order."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    cells = [names, *([_text(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in cells)
    )


def _by_sms(rows: Rows) -> str:
    """One line for every pattern, chunk and depth; one column for every number of SMs."""
    lines: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in rows:
        key = (row["pattern"], row["chunk_bytes"], row["in_flight"])
        line = lines.setdefault(
            key, {"pattern": PATTERNS[key[0]], "chunk": key[1], "in flight": key[2]}
        )
        line[str(row["sms"])] = f"{row['gb_per_s']:.1f}"
    return plain(list(lines.values()))


def _by_mode(rows: Rows) -> str:
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault((row["op"], row["bytes"]), {"op": row["op"], "bytes": row["bytes"]})
        line[f"{row['mode']} us"] = row["us"]
        line[f"{row['mode']} bus"] = row["bus_gb_per_s"]
    return plain(list(lines.values()))


def _text(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
