"""What `python3 -m benchmarks.gpu` measures: operators, sizes, and which of our kernels compete.

A row's kernels are tried with every setting of knobs listed here; the fastest right one is
reported, with its knobs. `goal_us` is what the project wants to reach on four H200.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Knobs = Mapping[str, int]
Choice = tuple[str, Knobs]  # a shipped kernel and knobs that are not its defaults

KIB, MIB = 1 << 10, 1 << 20
ROW_ELEMENTS = 1024  # columns of the matrices that collectives move, at sizes that allow it


@dataclass(frozen=True)
class Point:
    """One row: an operator at one size, on every rank."""

    section: str
    op: str
    size: str
    problem: str
    dims: Mapping[str, int]
    kernels: Sequence[Choice]
    peers: tuple[str, ...] = ()  # besides NCCL: names of benchmarks.gpu.peers
    goal_us: float | None = None
    quick: bool = False  # also part of --quick

    @property
    def key(self) -> str:
        """What --rows matches, e.g. "allreduce/64KiB"."""
        return f"{self.problem}/{self.size}".replace(" ", "")


@dataclass(frozen=True)
class Ladder:
    """A collective at several sizes; kernels by the largest size they are tried at."""

    op: str
    problem: str
    kernels: Sequence[tuple[str, Knobs, int, int]]  # from and up to this many bytes
    peers: Mapping[str, int] = field(default_factory=dict)  # name: largest size
    goals: Mapping[int, float] = field(default_factory=dict)
    sizes: tuple[int, ...] = (8 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB)
    parts: int = 1  # the size counts so many matrices [M, N] of the problem


def matrix(elements: int) -> dict[str, int]:
    """M and N with M * N elements: 1024 columns, more where there are more than 8192 rows.

    ValueError for a number of elements that is no multiple of 128.
    """
    if elements % 128:
        raise ValueError(f"{elements} elements do not make rows of 128 and more")
    columns = min(ROW_ELEMENTS, elements)
    while elements % columns:
        columns //= 2
    while elements // columns > 8192 and elements % (2 * columns) == 0:
        columns *= 2
    return {"M": elements // columns, "N": columns}


def text_of(size: int) -> str:
    """64 KiB, 1 MiB."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


LARGE_TILES: Knobs = {"rows": 128, "cols": 256, "depth": 2, "warpgroups": 4}
SMALL, MIDDLE, LARGE = 64 * KIB, 2 * MIB, 1 << 40


def ladders(world: int) -> tuple[Ladder, ...]:
    """The collectives."""
    goals = world == 4
    return (
        Ladder(
            "all-reduce",
            "allreduce",
            (
                ("allreduce_ll", {}, 0, MIDDLE),
                ("allreduce_ll", {"warpgroups": 2}, 0, MIDDLE),
                ("allreduce_ll", {"warpgroups": 4, "pieces": 2}, SMALL, MIDDLE),
                ("allreduce_one_shot", {}, 0, MIDDLE),
                ("allreduce_two_shot", {}, SMALL, LARGE),
                ("allreduce_two_shot", {"pieces": 2}, MIB, LARGE),
                ("allreduce_push", {}, MIB, LARGE),
                ("allreduce_push", {"cols": 256}, MIB, LARGE),
                ("allreduce_push", {"depth": 4, "warpgroups": 4}, MIB, LARGE),
                ("allreduce_push", LARGE_TILES, 16 * MIB, LARGE),
            ),
            {"nccl_symmetric": LARGE, "torch_one_shot": MIDDLE, "torch_two_shot": LARGE},
            {8 * KIB: 5.5, 64 * KIB: 7.0, MIB: 10, 16 * MIB: 80, 256 * MIB: 1150} if goals else {},
        ),
        Ladder(
            "all-gather, by shard",
            "allgather",
            (
                ("allgather_ll", {}, 0, MIDDLE),
                ("allgather_ll", {"warpgroups": 4, "pieces": 2}, SMALL, MIDDLE),
                ("allgather_direct", {}, 0, 16 * MIB),
                ("allgather", {}, SMALL, LARGE),
                ("allgather", {"cols": 256, "depth": 4}, MIB, LARGE),
            ),
            {"nccl_symmetric": LARGE, "torch_low_contention": LARGE},
            {MIB: 13, 16 * MIB: 145} if goals else {},
        ),
        Ladder(
            "reduce-scatter, by shard",
            "reducescatter",
            (
                ("reducescatter_ll", {}, 0, MIDDLE),
                ("reducescatter_ll", {"warpgroups": 4, "pieces": 2}, SMALL, MIDDLE),
                ("reducescatter_pull", {}, 0, 16 * MIB),
                ("reducescatter", {}, SMALL, LARGE),
                ("reducescatter", {"cols": 256, "depth": 4}, MIB, LARGE),
                ("reducescatter", {"depth": 4, "warpgroups": 4}, MIB, LARGE),
                ("reducescatter", LARGE_TILES, 16 * MIB, LARGE),
            ),
            {"nccl_symmetric": LARGE, "torch_low_contention": LARGE},
            {MIB: 14, 16 * MIB: 150} if goals else {},
        ),
        Ladder(
            "all-to-all",
            "alltoall",
            (
                ("alltoall_ll", {}, 0, MIDDLE),
                ("alltoall_ll", {"warpgroups": 4, "pieces": 2}, SMALL, MIDDLE),
                ("alltoall_direct", {}, 0, 16 * MIB),
                ("alltoall", {}, SMALL, LARGE),
                ("alltoall", {"cols": 256, "depth": 4}, MIB, LARGE),
            ),
            {"nccl_symmetric": LARGE},
            {MIB: 7, 16 * MIB: 42} if goals else {},
            parts=world,
        ),
        Ladder(
            "last-dimension all-gather, by shard",
            "allgather_last_dim",
            (
                ("allgather_last_dim", {}, 0, LARGE),
                ("allgather_last_dim", {"cols": 256, "depth": 4}, 0, LARGE),
            ),
            sizes=(16 * MIB, 64 * MIB),
        ),
        Ladder(
            "last-dimension reduce-scatter, by shard",
            "reducescatter_last_dim",
            (
                ("reducescatter_last_dim", {}, 0, LARGE),
                ("reducescatter_last_dim", {"cols": 256, "depth": 4}, 0, LARGE),
                ("reducescatter_last_dim", LARGE_TILES, 0, LARGE),
            ),
            sizes=(16 * MIB, 64 * MIB),
        ),
        *(
            Ladder(op, problem, kernels, sizes=(64 * KIB, 16 * MIB), parts=parts)
            for op, problem, kernels, parts in (
                (
                    "broadcast",
                    "broadcast",
                    (("broadcast_ll", {}, 0, MIDDLE), ("broadcast", {}, 0, LARGE)),
                    1,
                ),
                (
                    "reduce",
                    "reduce",
                    (("reduce_ll", {}, 0, MIDDLE), ("reduce_to_root", {}, 0, LARGE)),
                    1,
                ),
                ("gather, by shard", "gather", (("gather", {}, 0, LARGE),), 1),
                ("scatter, by shard", "scatter", (("scatter", {}, 0, LARGE),), 1),
            )
        ),
    )


RS: tuple[Choice, ...] = (
    ("gemm_reducescatter", {}),
    ("gemm_reducescatter", {"super_m": 2}),
    ("gemm_reducescatter", {"stages": 3}),
    ("gemm_reducescatter", {"lag": 16}),
    ("gemm_reducescatter", {"lag": 64, "super_m": 8}),
    ("gemm_reducescatter", {"block_n": 128}),
)
AR: tuple[Choice, ...] = (
    ("gemm_allreduce", {}),
    ("gemm_allreduce", {"stages": 4}),
    ("gemm_allreduce", {"comm_sms": 32, "stages": 4}),
    ("gemm_allreduce", {"block_n": 128, "stages": 4}),
    ("gemm_allreduce_inline", {}),
    ("gemm_allreduce_inline", {"block_n": 128}),
)
AG: tuple[Choice, ...] = (
    ("allgather_gemm", {}),
    ("allgather_gemm", {"comm_sms": 16}),
    ("allgather_gemm", {"super_m": 16}),
    ("allgather_gemm", {"segment": 4}),
    ("allgather_gemm", {"segment": 2, "block_n": 128}),
)
SCATTER: tuple[Choice, ...] = (("gemm_allscatter", {}), ("gemm_allscatter", {"super_m": 1}))
FUSED_RS, FUSED_AG = ("cublas", "torch_fused_rs"), ("cublas", "torch_fused_ag")


def gemms(world: int) -> Iterator[Point]:
    """GEMMs with a collective: square, then where communication cannot hide behind the GEMM."""
    goals = world == 4
    for size, rs_us, ag_us, ar_us in (
        (8192, 420.0, 380.0, 640.0),
        (4096, 100.0, None, None),
        (2048, 28.0, None, None),
        (16384, None, None, None),
    ):
        square = {"M": size, "N": size, "K": size}
        shape = f"{size}"
        yield Point(
            *("fused", "GEMM + reduce-scatter", shape, "gemm_reducescatter", square, RS, FUSED_RS),
            *(rs_us if goals else None, size in (8192, 2048)),
        )
        yield Point(
            *("fused", "all-gather + GEMM", shape, "sp_ag_gemm_m_sharded", square, AG, FUSED_AG),
            *(ag_us if goals else None, size == 8192),
        )
        local_k = {"M": size, "N": size, "K": size // world}
        yield Point(
            *("fused", "GEMM + all-reduce", shape, "gemm_allreduce", local_k, AR, ("cublas",)),
            *(ar_us if goals else None, size == 8192),
        )
        if size <= 8192:
            yield Point(
                *("fused", "GEMM + all-scatter", shape, "gemm_allgather", square, SCATTER),
                *(("cublas", "triton"), None, False),
            )
    for k in (1024, 4096):
        yield Point(
            section="fused, short",
            op="GEMM + reduce-scatter",
            size=f"8192 x 8192, K={k}",
            problem="gemm_reducescatter",
            dims={"M": 8192, "N": 8192, "K": k},
            kernels=RS[:3],
            peers=FUSED_RS,
        )
    for n, k in ((7168, 18432), (8192, 8192)):
        yield Point(
            section="fused, short",
            op="GEMM + reduce-scatter",
            size=f"64 x {n}, K={k}",
            problem="gemm_reducescatter",
            dims={"M": 64, "N": n, "K": k},
            kernels=(("gemm_reducescatter", {"block_n": 128}),),
            peers=("cublas",),
        )
    for n in (1024, 4096):
        yield Point(
            section="fused, short",
            op="all-gather + GEMM",
            size=f"8192 x 8192, N={n}",
            problem="sp_ag_gemm_m_sharded",
            dims={"M": 8192, "N": n, "K": 8192},
            kernels=AG[:3],
            peers=FUSED_AG,
        )


def heads(world: int) -> Iterator[Point]:
    """The 4-D all-to-all, heads to sequence and back; 25 MB leave every rank of four."""
    for tokens, goal in ((256, None), (1024, 78.0), (4096, None)):
        there = {"B": 1, "T": tokens, "h": 32 * world, "d": 128}
        back = {"B": 1, "T": tokens * world, "h": 32, "d": 128}
        out = tokens * 32 * world * 128 * 2 * (world - 1) / world / 1e6
        size = f"{out:.1f} MB out"
        yield Point(
            *("heads", "4-D all-to-all, heads to sequence", size),
            *("ulysses_gather_seq_scatter_heads", there),
            *((("alltoall_heads", {}), ("alltoall_heads", {"cols": 256, "depth": 4})), ()),
            *(goal if world == 4 else None, tokens == 1024),
        )
        yield Point(
            *("heads", "4-D all-to-all, sequence to heads", size),
            *("ulysses_gather_heads_scatter_seq", back),
            *((("alltoall_sequence", {}), ("alltoall_sequence", {"cols": 256, "depth": 4})), ()),
            *((80.0 if goal and world == 4 else None), tokens == 1024),
        )


def points(world: int) -> list[Point]:
    """Every row, the most wanted first, because a run that is short of time stops at its end."""
    collectives = [
        Point(
            section="collectives" if len(ladder.sizes) > 2 else "more collectives",
            op=ladder.op,
            size=text_of(size),
            problem=ladder.problem,
            dims=matrix(size // 2 // ladder.parts),
            kernels=tuple((n, k) for n, k, low, high in ladder.kernels if low <= size <= high),
            peers=tuple(name for name, most in ladder.peers.items() if size <= most),
            goal_us=ladder.goals.get(size),
            quick=size in (64 * KIB, 16 * MIB) and ladder.sizes[0] == 8 * KIB,
        )
        for ladder in ladders(world)
        for size in ladder.sizes
    ]
    fused = list(gemms(world))
    order = ("fused", "collectives", "heads", "fused, short", "more collectives")
    rows = [*fused, *collectives, *heads(world)]
    return sorted(rows, key=lambda row: order.index(row.section))
