"""The command line: which probes to run, tables as they come, at the end JSON and a sheet."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from pk_runtime.calibrate import compute, latencies, nccl, tables, transfers
from pk_runtime.calibrate.machine import describe
from pk_runtime.calibrate.node import Node
from pk_runtime.calibrate.probes import MAX_PEERS, PartlyMeasuredError, ProbeError, Probes, build
from pk_runtime.calibrate.sheet_writer import sheet_text
from pk_runtime.calibrate.transfers import Plan, Row
from pk_runtime.sheet import Sheet, SheetError, load_sheet, read_sheet, sheet_names
from pk_runtime.toolchain import ToolchainError

FORMAT = 1
MIB = 1 << 20
PROTOCOL = (
    "one process drives all GPUs; all GPUs of a sample are kept waiting until everything is "
    "enqueued, meet in a barrier, and start their clocks; a time is the slowest GPU's, between "
    "two events; the median of the repeats after one that does not count; GB/s are 1e9 bytes per "
    "second and GPU, in its direction; NCCL in one process per GPU"
)
MECHANISMS = ("store", "load", "tma_store", "tma_load", "tma_reduce_add_bf16")


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    repeats: int
    plan: Plan
    shapes: tuple[tuple[int, int, int], ...]
    comm_sms: tuple[int, ...]
    nccl_sizes: tuple[int, ...]
    nccl_limit_s: float


def quick(sms: int) -> Effort:
    """Enough for a hardware sheet, in under a minute."""
    plan = Plan(
        sms=tuple(sorted({1, 8, 16, 32, sms})),
        chunks=(2048, 8192, 32768),
        in_flight=(4,),
        patterns=("pair", "all"),
        copy_bytes=(2048, 65536, MIB, 16 * MIB, 256 * MIB, 1024 * MIB),
        staged_bytes=64 * MIB,
    )
    sizes = (65536, MIB, 16 * MIB, 256 * MIB)
    return Effort(3, plan, compute.SHAPES[:5], (0, 8, 16), sizes, 60.0)


def full(sms: int) -> Effort:
    """Everything, in under six minutes."""
    plan = Plan(
        sms=tuple(sorted({1, 2, 4, 8, 16, 32, 64, sms})),
        chunks=(512, 1024, 2048, 4096, 8192, 16384, 32768),
        in_flight=(4, 1, 16),
        patterns=("pair", "fan", "ring", "all"),
        copy_bytes=(*(2048 * 4**i for i in range(10)), 1024 * MIB),
        staged_bytes=256 * MIB,
    )
    sizes = tuple(8192 * 2**i for i in range(16))  # 8 KiB to 256 MiB
    return Effort(7, plan, compute.SHAPES, compute.COMM_SMS, sizes, 150.0)


def sections(node: Node, effort: Effort) -> dict[str, Callable[[], list[Row]]]:
    """What can be measured here, by the name that --only takes."""
    pair: dict[str, Callable[[], list[Row]]] = {}
    if node.world > 1:
        pair = {
            "copy_engine": lambda: transfers.measure_copy_engine(node, effort.plan),
            **{name: _mechanism(node, effort.plan, name) for name in MECHANISMS},
        }
    rest: dict[str, Callable[[], list[Row]]] = {
        "flags": lambda: latencies.measure_flags(node),
        "launches": lambda: latencies.measure_launches(node),
        "memory": lambda: transfers.measure_memory(node),
        "gemm": lambda: compute.measure_gemms(node, effort.shapes),
    }
    if node.world > 1:
        rest["slowdown"] = lambda: compute.measure_slowdown(node, effort.comm_sms)
        rest["nccl"] = lambda: nccl.measure_nccl(
            node.world, effort.nccl_sizes, effort.repeats, effort.nccl_limit_s
        )
    return pair | rest


NAMES = ("copy_engine", *MECHANISMS, "flags", "launches", "memory", "gemm", "slowdown", "nccl")


def _mechanism(node: Node, plan: Plan, name: str) -> Callable[[], list[Row]]:
    return lambda: transfers.measure_transfers(node, plan, (name,))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; exits with a message for a wrong one."""
    parser = argparse.ArgumentParser(
        prog="python -m pk_runtime.calibrate",
        description="Measures the GPUs of this machine and how they reach each other.",
    )
    parser.add_argument("--gpus", type=int, default=0, help="how many; default: all, at most 8")
    parser.add_argument("--quick", action="store_true", help="fewer points, under a minute")
    parser.add_argument(
        "--only", action="append", choices=NAMES, help="one section; may be given several times"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write everything measured there")
    parser.add_argument(
        "--sheet", type=Path, metavar="OUT.toml", help="write a hardware sheet, named like the file"
    )
    parser.add_argument(
        "--base",
        default="h200x4",
        metavar="SHEET",
        help="sheet that values not measured here are taken from: a shipped one "
        f"({', '.join(sheet_names())}) or a file; default h200x4",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints, writes; 1 if a section failed, 2 if nothing could be measured."""
    options = parse(sys.argv[1:] if argv is None else argv)
    try:
        base = _base(options.base)
        for path in filter(None, (options.json, options.sheet)):
            if not path.parent.is_dir():
                raise ProbeError(f"{path}: there is no folder {path.parent}: create it first")
        record = measure(options.gpus, quick_only=options.quick, only=options.only)
    except (ProbeError, ToolchainError, SheetError) as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.sheet:
        options.sheet.write_text(sheet_text(record, base, options.sheet.stem), encoding="utf-8")
        read_sheet(options.sheet)
    for name, why in record["errors"].items():
        print(f"calibrate: {name} failed: {why}", file=sys.stderr)
    return 1 if record["errors"] else 0


def measure(gpus: int, *, quick_only: bool, only: Sequence[str] | None) -> dict[str, Any]:
    """Runs the sections, printing each as it ends; what failed is in `errors`, by section."""
    if not torch.cuda.is_available():
        raise ProbeError("there is no GPU that torch can use on this machine")
    started = time.monotonic()
    world = gpus or min(torch.cuda.device_count(), MAX_PEERS)
    with tempfile.TemporaryDirectory() as folder:
        probes = Probes(build(Path(folder)))
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    effort = quick(sms) if quick_only else full(sms)
    node = Node(probes, world, effort.repeats)
    record: dict[str, Any] = {
        "format": FORMAT,
        "tool": "pk_runtime.calibrate",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick_only,
        "protocol": PROTOCOL,
        "repeats": effort.repeats,
        "machine": describe(world),
        "results": {},
        "errors": {},
    }
    for name, run in sections(node, effort).items():
        if only and name not in only:
            continue
        try:
            rows = run()
        except PartlyMeasuredError as error:
            rows, record["errors"][name] = error.rows, str(error)
        except (ProbeError, RuntimeError, OSError) as error:
            record["errors"][name] = f"{type(error).__name__}: {error}"
            continue
        if not rows:
            continue
        record["results"][name] = rows
        print(f"\n{tables.render(name, rows)}", flush=True)
    record["clocks_after_mhz"] = describe(world)["clocks_mhz"]
    record["seconds"] = round(time.monotonic() - started, 1)
    print(f"\n{record['seconds']:.0f} s in all", flush=True)
    return record


def _base(name: str) -> Sheet:
    return read_sheet(Path(name)) if name.endswith(".toml") else load_sheet(name)
