"""Hardware sheets: what one machine can do, read strictly from `sheets/<name>.toml`.

Every table of the TOML is one dataclass here and every key one field, with its unit in the name.
An unknown, missing, mistyped or non-positive key is a `SheetError` that names file and key.
"""

import dataclasses
import functools
import itertools
import math
import tomllib
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

Mode = Literal["eager", "graph"]
Pairs = tuple[tuple[float, float], ...]

_SHEETS = Path(__file__).parent / "sheets"
_Record = TypeVar("_Record")


class SheetError(ValueError):
    """A hardware sheet that cannot be used: the file, the key and what to do."""

    def __init__(self, file: str, key: str, what: str, fix: str) -> None:
        super().__init__(f"{file}: {key}: {what}. {fix}")
        self.file = file
        self.key = key
        self.fix = fix


@dataclass(frozen=True)
class Chip:
    """Fixed properties of one GPU."""

    sms: int
    smem_bytes_per_sm: int
    l2_bytes: int
    hbm_bytes: int
    clock_mhz: float


@dataclass(frozen=True)
class Peaks:
    """Nominal peaks of one GPU, for the roofline; NVLink is per direction."""

    bf16_tflops: float
    fp16_tflops: float
    fp8_tflops: float
    tf32_tflops: float
    fp32_tflops: float
    fp64_tflops: float
    nvlink_gb_per_s: float
    hbm_gb_per_s: float


@dataclass(frozen=True)
class SimulatorScalars:
    """Scalars of the simulator's timing mode: one GPU as a whole unless the name says `sm`."""

    tensor_flops_per_us: float
    vector_flops_per_us: float
    hbm_bytes_per_us: float
    hbm_latency_us: float
    l2_bytes_per_us: float
    l2_latency_us: float
    l2_capacity_bytes: float
    sm_memory_bytes_per_us: float
    sm_shared_bytes_per_us: float
    tma_issue_us: float
    tma_latency_us: float
    mbarrier_us: float
    local_flag_latency_us: float
    sm_link_bytes_per_us: float
    sm_link_load_bytes_per_us: float
    link_out_bytes_per_us: float
    link_in_bytes_per_us: float
    link_pair_bytes_per_us: float
    link_store_bytes_per_us: float
    link_load_bytes_per_us: float
    link_reduce_bytes_per_us: float
    link_latency_us: float
    peer_latency_us: float
    release_us: float
    acquire_us: float
    poll_us: float
    slab_latency_us: float
    enter_us: float
    flag_latency_us: float
    barrier_us: float
    copy_engine_bytes_per_us: float
    copy_engine_latency_us: float
    launch_us: float
    graph_launch_us: float


@dataclass(frozen=True)
class GemmTile:
    """An output tile of the vendor's GEMM and its main loop rate relative to the largest tile."""

    m: int
    n: int
    relative_rate: float


@dataclass(frozen=True)
class GemmModel:
    """Parameters of the vendor GEMM's time (see `pk_runtime.baseline.gemm_us`)."""

    main_loop_tflops: float
    wave_overhead_us: float
    launch_us: float
    power_free_gflop: float
    power_full_gflop: float
    power_slowdown: float
    tiles: tuple[GemmTile, ...]


@dataclass(frozen=True)
class Gemms:
    """Measured GEMMs alone: (m, n, k, microseconds) of one rank."""

    m_n_k_us: tuple[tuple[int, int, int, float], ...]


@dataclass(frozen=True)
class Collective:
    """Measured times of one collective: (bytes, microseconds), bytes increasing.

    The bytes are one rank's buffer for all_reduce and all_to_all, one rank's shard for all_gather
    (its input) and reduce_scatter (its output).
    """

    op: str
    library: str
    mode: Mode
    bytes_us: Pairs


@dataclass(frozen=True)
class Transfer:
    """Measured peer transfer rates: (SMs, GB/s per GPU and direction)."""

    mechanism: str
    pattern: Literal["pair", "all"]
    chunk_bytes: int
    sms_gb_per_s: Pairs


@dataclass(frozen=True)
class CopyEngine:
    """Measured copy engine transfers between peers."""

    pair_bytes_us: Pairs
    pair_large_gb_per_s: float
    staged_gb_per_s: float
    all_at_once_gb_per_s: float


@dataclass(frozen=True)
class Fused:
    """Measured operators (GEMM with a collective): (m, n, k, microseconds) of one rank."""

    op: str
    implementation: str
    mode: Mode
    m_n_k_us: tuple[tuple[int, int, int, float], ...]


@dataclass(frozen=True)
class Sheet:
    """A machine of `world_size` equal GPUs."""

    name: str
    title: str
    source: str
    architecture: str
    world_size: int
    multicast: bool
    calibrated: bool  # false: made of published figures, times are good for ranking only
    chip: Chip
    peaks: Peaks
    simulator: SimulatorScalars
    gemm_model: GemmModel
    gemms: Gemms
    collectives: tuple[Collective, ...]
    transfers: tuple[Transfer, ...]
    copy_engine: CopyEngine
    fused: tuple[Fused, ...]

    def simulator_parameters(self) -> dict[str, float]:
        """Everything the simulator's timing mode takes from the sheet, by name."""
        chip = {
            "sms": self.chip.sms,
            "smem_bytes_per_sm": self.chip.smem_bytes_per_sm,
            "l2_bytes": self.chip.l2_bytes,
        }
        return {k: float(v) for k, v in {**chip, **dataclasses.asdict(self.simulator)}.items()}

    def collective(self, op: str, library: str = "nccl") -> Collective:
        """The table of a collective: CUDA graph replay where it was measured, else eager."""
        tables = [t for t in self.collectives if t.op == op and t.library == library]
        if not tables:
            known = ", ".join(sorted({t.op for t in self.collectives if t.library == library}))
            raise SheetError(
                f"{self.name}.toml",
                "collectives",
                f"no table for {op!r} of {library!r}",
                f"Use one of: {known or 'none'}; or add a measured [[collectives]] table",
            )
        return min(tables, key=lambda table: table.mode != "graph")


def sheet_names() -> tuple[str, ...]:
    """Names of the sheets the project ships."""
    # A sheet may have a `<name>.dispatch.toml` beside it (gpu/dispatch_table.py).
    return tuple(sorted(p.stem for p in _SHEETS.glob("*.toml") if "." not in p.stem))


@functools.cache
def load_sheet(name: str) -> Sheet:
    """The shipped sheet of that name; SheetError if there is none or it is malformed."""
    if name not in sheet_names():
        raise SheetError(
            f"{name}.toml", "name", "no such sheet", f"Known sheets: {', '.join(sheet_names())}"
        )
    return read_sheet(_SHEETS / f"{name}.toml")


def read_sheet(path: Path) -> Sheet:
    """Reads a sheet from a file whose stem is its name; SheetError if it is malformed."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SheetError(
            path.name, "file", f"cannot be read: {error}", "Write a valid TOML"
        ) from None
    sheet = _Reader(path.name).record(Sheet, data, "")
    if sheet.name != path.stem:
        raise SheetError(
            path.name, "name", f"is {sheet.name!r}", f"Name the sheet like its file: {path.stem!r}"
        )
    return sheet


@dataclass(frozen=True)
class _Reader:
    """Turns parsed TOML into the dataclasses above, by their annotations."""

    file: str

    def error(self, key: str, what: str, fix: str) -> SheetError:
        return SheetError(self.file, key or "top level", what, fix)

    def record(self, kind: type[_Record], data: object, key: str) -> _Record:
        if not isinstance(data, dict):
            raise self.error(key, "is not a table", f"Write a table for {kind.__name__}")
        hints = typing.get_type_hints(kind)
        if unknown := sorted(set(data) - set(hints)):
            known = ", ".join(hints)
            raise self.error(_join(key, unknown[0]), "unknown key", f"Known keys: {known}")
        for name in hints:
            if name not in data:
                raise self.error(_join(key, name), "missing key", "Add it, with its source")
        values = {name: self.value(hints[name], data[name], _join(key, name)) for name in hints}
        return kind(**values)

    def value(self, hint: Any, data: object, key: str) -> object:
        if dataclasses.is_dataclass(hint):
            return self.record(typing.cast(type[object], hint), data, key)
        origin = typing.get_origin(hint)
        if origin is Literal:
            choices = typing.get_args(hint)
            if data not in choices:
                raise self.error(key, f"is {data!r}", f"Use one of: {', '.join(choices)}")
            return data
        if origin is tuple:
            return self.sequence(hint, data, key)
        return self.scalar(hint, data, key)

    def sequence(self, hint: Any, data: object, key: str) -> tuple[object, ...]:
        kinds = typing.get_args(hint)
        repeated = len(kinds) == 2 and kinds[1] is Ellipsis
        if not isinstance(data, list) or not data or not (repeated or len(data) == len(kinds)):
            length = "at least one item" if repeated else f"{len(kinds)} items"
            raise self.error(key, "is not a list of the right length", f"Write {length}")
        if repeated:
            kinds = kinds[:1] * len(data)
        pairs = enumerate(zip(kinds, data, strict=True))
        items = tuple(self.value(kind, item, f"{key}[{i}]") for i, (kind, item) in pairs)
        if hint == Pairs and any(a >= b for (a, _), (b, _) in itertools.pairwise(data)):
            raise self.error(key, "first numbers do not increase", "Sort the rows by them")
        return items

    def scalar(self, hint: Any, data: object, key: str) -> object:
        number = isinstance(data, int | float) and not isinstance(data, bool)
        right = number if hint is float else type(data) is hint
        if not right:
            raise self.error(key, f"is {data!r}", f"Write a value of type {hint.__name__}")
        if number and not (math.isfinite(data) and data > 0):  # type: ignore[arg-type, operator]
            raise self.error(key, f"is {data!r}", "Write a finite number greater than zero")
        if data == "":
            raise self.error(key, "is empty", "Write a text")
        return float(data) if hint is float else data  # type: ignore[arg-type]


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
