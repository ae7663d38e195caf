"""Writes a hardware sheet from what was measured; every line says where its value is from.

What this tool does not measure is taken from a base sheet and marked so: nominal peaks, the model
of the vendor's GEMM, other people's fused kernels. Look at those lines before you trust them on
another kind of machine.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from pk_runtime.sheet import Collective, Sheet, Transfer

Record = dict[str, Any]
MEASURED = "measured"
SMALL_COPY = 64 << 10


def sheet_text(record: Record, base: Sheet, name: str) -> str:
    """The TOML of a sheet called `name`, which is also its file's stem."""
    machine, found = record["machine"], _Findings(record)
    same = machine["world_size"] == base.world_size
    kept = f"from {base.name}"
    lines = [
        f"# Hardware sheet written by pk_runtime.calibrate on {record['date']}.",
        f'# "{MEASURED}": on this machine, in that run. "{kept}": not measured, taken from there.',
        "",
        f"name = {_toml(name)}",
        f"title = {_toml(_title(machine))}",
        f"source = {_toml(_source(record))}",
        f"architecture = {_toml(base.architecture)} # {kept}",
        f"world_size = {machine['world_size']}",
        f"multicast = {_toml(base.multicast)} # {kept}: never used, never probed",
        f"calibrated = {_toml(base.calibrated)} # {kept}",
        "",
        *_table("chip", base.chip, _chip(machine), kept),
        *_table("peaks", base.peaks, {}, kept),
        *_table("simulator", base.simulator, found.scalars(base), kept),
        *_table("gemm_model", base.gemm_model, {}, kept),
        *_gemms(found, base, kept),
    ]
    collectives = found.collectives()
    for table in collectives:
        lines += _table("collectives", table, {}, MEASURED, array=True)
    measured = {(t.op, t.library, t.mode) for t in collectives}
    operators = {t.op for t in collectives}
    for table in base.collectives:
        # The times of another number of ranks stand in only for what was not measured at all.
        new = (table.op, table.library, table.mode) not in measured
        if new and (same or table.op not in operators):
            lines += _table("collectives", table, {}, kept, array=True)
    transfers = found.transfers()
    for transfer in transfers:
        lines += _table("transfers", transfer, {}, MEASURED, array=True)
    known = {(t.mechanism, t.pattern) for t in transfers}
    for transfer in base.transfers:
        if (transfer.mechanism, transfer.pattern) not in known:
            lines += _table("transfers", transfer, {}, kept, array=True)
    lines += _table("copy_engine", base.copy_engine, found.copy_engine(), kept)
    for fused in base.fused:
        lines += _table("fused", fused, {}, kept, array=True)
    return "\n".join(lines)


class _Findings:
    """What the record says, in the sheet's terms. What was not measured is left out."""

    def __init__(self, record: Record) -> None:
        self.results: dict[str, list[dict[str, Any]]] = record["results"]
        self.sms: int = record["machine"]["sms"]

    def what(self, section: str, start: str, field: str) -> float | None:
        """A field of the first row of a section whose `what` begins like this."""
        rows = self.results.get(section, [])
        return next((float(r[field]) for r in rows if r["what"].startswith(start)), None)

    def rate(
        self, section: str, pattern: str, choose: Callable[[Iterable[float]], float], **fields: int
    ) -> float | None:
        """The largest (or so) GB/s of a mechanism's points with these fields."""
        rates = [
            float(row["gb_per_s"])
            for row in self.results.get(section, [])
            if row["pattern"] == pattern and all(row[k] == v for k, v in fields.items())
        ]
        return choose(rates) if rates else None

    def scalars(self, base: Sheet) -> dict[str, float]:
        """[simulator]: what one run of the tool can say."""
        flag = self.what("flags", "round trip, two GPUs, red", "us")
        # The probe's flags are releases, which the simulator counts by themselves.
        crossing = flag / 2 - base.simulator.release_us if flag else None
        link = self.rate("tma_store", "all", max, chunk_bytes=8192)
        found: dict[str, float | None] = {
            "tensor_flops_per_us": self._tensor_rate(base),
            "hbm_bytes_per_us": _thousand(self.what("memory", "hbm copy", "gb_per_s")),
            "l2_latency_us": self.what("memory", "load latency, l2", "us"),
            "sm_memory_bytes_per_us": _thousand(
                self.what("memory", "l2 read 4 MiB, one", "gb_per_s")
            ),
            "mbarrier_us": self.what("flags", "mbarrier", "us"),
            "local_flag_latency_us": self.what("flags", "flag between two SMs", "us"),
            "sm_link_bytes_per_us": _thousand(self.rate("store", "pair", max, sms=1)),
            "link_out_bytes_per_us": _thousand(link),
            "link_in_bytes_per_us": _thousand(link),
            "link_pair_bytes_per_us": _thousand(self.rate("store", "pair", max)),
            "link_reduce_bytes_per_us": _thousand(
                self.rate("tma_reduce_add_bf16", "all", max, chunk_bytes=8192)
            ),
            "link_store_bytes_per_us": _thousand(self.rate("store", "all", max, sms=self.sms)),
            "link_load_bytes_per_us": _thousand(self.rate("load", "all", max, sms=self.sms)),
            "sm_link_load_bytes_per_us": _thousand(self.rate("tma_load", "pair", max, sms=1)),
            "link_latency_us": crossing if crossing and crossing > 0 else None,
            "flag_latency_us": crossing if crossing and crossing > 0 else None,
            "peer_latency_us": self.what("flags", "bulk load of 512 B, from a peer", "us"),
            "barrier_us": self.what("flags", "barrier of", "us"),
            "copy_engine_bytes_per_us": _thousand(self.rate("copy_engine", "staged_push", max)),
            "copy_engine_latency_us": self._copy_latency(),
            "launch_us": self.what("launches", "eager, one block per SM", "us"),
            "graph_launch_us": self.what("launches", "graph node, one block per SM", "us"),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _tensor_rate(self, base: Sheet) -> float | None:
        """The base's main loop rate, scaled by the best whole GEMM seen here and there."""
        here = [float(r["tflops"]) for r in self.results.get("gemm", []) if r["gpus"] == "one GPU"]
        there = max(2e-6 * m * n * k / us for m, n, k, us in base.gemms.m_n_k_us)
        return base.simulator.tensor_flops_per_us * max(here) / there if here else None

    def _copy_latency(self) -> float | None:
        """The time of a copy too small for its bytes to count."""
        rows = self.results.get("copy_engine", [])
        small = [r["us"] for r in rows if r["pattern"] == "pair" and r["bytes"] <= SMALL_COPY]
        return float(max(small)) if small else None

    def copy_engine(self) -> dict[str, object]:
        """[copy_engine], whole or nothing."""
        rows = {r["pattern"]: r for r in self.results.get("copy_engine", [])}
        pairs = [r for r in self.results.get("copy_engine", []) if r["pattern"] == "pair"]
        if not pairs or "staged_push" not in rows:
            return {}
        return {
            "pair_bytes_us": tuple((r["bytes"], r["us"]) for r in pairs),
            "pair_large_gb_per_s": pairs[-1]["gb_per_s"],
            "staged_gb_per_s": rows["staged_push"]["gb_per_s"],
            "all_at_once_gb_per_s": rows["all_at_once"]["gb_per_s"],
        }

    def gemms(self) -> tuple[tuple[int, int, int, float], ...]:
        """[gemms]: one GPU alone."""
        rows = self.results.get("gemm", [])
        return tuple((r["m"], r["n"], r["k"], r["us"]) for r in rows if r["gpus"] == "one GPU")

    def collectives(self) -> list[Collective]:
        """[[collectives]] of NCCL."""
        tables: dict[tuple[str, Any], list[tuple[float, float]]] = {}
        for row in self.results.get("nccl", []):
            pairs = tables.setdefault((row["op"], row["mode"]), [])
            pairs.append((row["bytes"], row["us"]))
        return [Collective(op, "nccl", mode, tuple(sorted(p))) for (op, mode), p in tables.items()]

    def transfers(self) -> list[Transfer]:
        """[[transfers]]: the patterns a sheet knows, at the depth that was measured first."""
        tables: dict[tuple[str, Any, int], list[tuple[float, float]]] = {}
        depth: dict[tuple[str, Any, int], int] = {}
        for section, rows in self.results.items():
            for row in rows:
                if row.get("mechanism") != section or row["pattern"] not in ("pair", "all"):
                    continue
                key = (section, row["pattern"], row["chunk_bytes"])
                if row["in_flight"] == depth.setdefault(key, row["in_flight"]):
                    tables.setdefault(key, []).append((row["sms"], row["gb_per_s"]))
        return [Transfer(*key, tuple(sorted(pairs))) for key, pairs in tables.items()]


def _chip(machine: Record) -> dict[str, object]:
    names = ("sms", "smem_bytes_per_sm", "l2_bytes", "hbm_bytes")
    chip = {name: machine[name] for name in names if machine[name]}
    clocks = [clock for clock in machine["max_clocks_mhz"] if clock]
    return chip | ({"clock_mhz": max(clocks)} if clocks else {})


def _gemms(found: _Findings, base: Sheet, kept: str) -> list[str]:
    rows = found.gemms()
    origin = MEASURED if rows else kept
    return ["[gemms]", f"m_n_k_us = {_toml(rows or base.gemms.m_n_k_us)} # {origin}", ""]


def _table(
    key: str, base: Any, values: dict[str, Any], kept: str, *, array: bool = False
) -> list[str]:
    """One table: every field of the dataclass, from `values` or else from `base`."""
    lines = [f"[[{key}]]" if array else f"[{key}]"]
    nested: list[str] = []
    for field in dataclasses.fields(base):
        value = values.get(field.name, getattr(base, field.name))
        origin = MEASURED if field.name in values else kept
        if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            for item in value:
                nested += _table(f"{key}.{field.name}", item, {}, kept, array=True)
        else:
            lines.append(f"{field.name} = {_toml(value)} # {origin}")
    return [*lines, "", *nested]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(ch for ch in escaped if ch.isprintable()) + '"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, int) or math.isfinite(value):
        return repr(value)
    raise ValueError(f"a hardware sheet has no place for {value!r}")


def _thousand(gb_per_s: float | None) -> float | None:
    """GB/s as bytes per microsecond."""
    return gb_per_s * 1e3 if gb_per_s is not None else None


def _title(machine: Record) -> str:
    return f"{machine['world_size']}x {machine['gpus'][0]}, unicast only"


def _source(record: Record) -> str:
    m = record["machine"]
    return (
        f"measured by pk_runtime.calibrate {record['date']}: {_title(m)}, driver {m['driver']}, "
        f"CUDA {m['cuda']}, torch {m['torch']}, NCCL {m['nccl']}"
    )
