"""Rates between GPUs: by copy engine, plain stores and loads, and TMA; and of one GPU's memory."""

from dataclasses import dataclass
from typing import Literal

import torch

from pk_runtime.calibrate.node import GIB, WINDOW, Node, Sample, Start
from pk_runtime.calibrate.probes import KINDS, Transfer

Row = dict[str, object]
# pair: one GPU to one other. fan: one GPU to all others in turn. ring: every GPU to the next one.
# all: every GPU to all others in turn.
Pattern = Literal["pair", "fan", "ring", "all"]

COPY_STEP = 128 << 10  # what a block of the plain copy moves between two choices of a peer
INSTRUCTION_BYTES = 16  # of a plain load or store
RING_BYTES = 192 << 10  # of shared memory, at most, for chunks in flight
SAMPLE_US = 1000.0
SM_BYTES_PER_US, GPU_BYTES_PER_US = 45e3, 370e3  # only to choose how much a sample moves


@dataclass(frozen=True)
class Plan:
    """Which points to measure."""

    sms: tuple[int, ...]
    chunks: tuple[int, ...]
    in_flight: tuple[int, ...]
    patterns: tuple[Pattern, ...]
    copy_bytes: tuple[int, ...]
    staged_bytes: int


def peers_of(device: int, world: int, pattern: Pattern) -> list[int]:
    """The GPUs that a GPU sends to or reads from, in its own order, so that no two begin alike."""
    others = [(device + 1 + i) % world for i in range(world - 1)]
    return others[:1] if pattern in ("pair", "ring") else others


def transfer(
    node: Node, mechanism: str, pattern: Pattern, *, sms: int, chunk: int, in_flight: int
) -> Row:
    """One point: GB/s of every GPU taking part, in its direction."""
    step = COPY_STEP if KINDS[mechanism] == 0 else chunk
    rate = min(sms * SM_BYTES_PER_US, GPU_BYTES_PER_US)
    total = max(int(rate * SAMPLE_US), step * sms)
    senders = [0] if pattern in ("pair", "fan") else list(node.devices)
    starts: dict[int, Start] = {}
    for device in senders:
        work = Transfer(
            kind=KINDS[mechanism], device=device, blocks=sms, chunk=step, in_flight=in_flight,
            window=WINDOW, total=total, status=node.status,
        )  # fmt: skip
        _point(work, node, peers_of(device, node.world, pattern), "load" in mechanism)
        starts[device] = starting(node, work)
    sample = node.sample(starts)
    moved = -(-total // (step * sms)) * step * sms
    return {
        "mechanism": mechanism,
        "pattern": pattern,
        "chunk_bytes": INSTRUCTION_BYTES if KINDS[mechanism] == 0 else chunk,
        "in_flight": in_flight,
        "sms": sms,
        **rates(sample, moved),
    }


def starting(node: Node, work: Transfer) -> Start:
    """A transfer as work to be timed."""
    return lambda stream: node.probes.transfer(work, stream)


def _point(work: Transfer, node: Node, peers: list[int], pull: bool) -> None:
    """Sets the addresses: every pair of GPUs has a window of its own at the receiver."""
    work.peers = len(peers)
    for i, peer in enumerate(peers):
        here, there = node.source(work.device), node.window(peer, work.device)
        if pull:
            here, there = node.window(work.device, peer), node.source(peer)
        work.src[i], work.dst[i] = (there, here) if pull else (here, there)


def rates(sample: Sample, moved: int) -> Row:
    """us and GB/s of a sample that moved so many bytes per GPU."""
    return {
        "us": round(sample.us, 3),
        "gb_per_s": round(moved / sample.us / 1e3, 2),
        "gb_per_s_min": round(moved / sample.us_max / 1e3, 2),
        "gb_per_s_max": round(moved / sample.us_min / 1e3, 2),
    }


def measure_transfers(node: Node, plan: Plan, mechanisms: tuple[str, ...]) -> list[Row]:
    """Every mechanism by pattern, chunk, chunks in flight and SMs."""
    rows = []
    for mechanism in mechanisms:
        plain = KINDS[mechanism] == 0
        for pattern in plan.patterns:
            for chunk in plan.chunks[:1] if plain else plan.chunks:
                for in_flight in plan.in_flight[:1] if plain else plan.in_flight:
                    if in_flight * chunk > RING_BYTES:
                        continue
                    rows += [
                        transfer(
                            node, mechanism, pattern, sms=sms, chunk=chunk, in_flight=in_flight
                        )
                        for sms in plan.sms
                    ]
    return rows


def measure_copy_engine(node: Node, plan: Plan) -> list[Row]:
    """Copies of one pair by size; then every GPU to all others, one at a time and all at once."""
    rows = [_copy_pair(node, size) for size in plan.copy_bytes]
    if node.world > 1:
        size = plan.staged_bytes
        rows.append(_copy_staged(node, size, "staged_push"))
        rows.append(_copy_staged(node, size, "staged_pull"))
        rows.append(_copy_all_at_once(node, size))
    return rows


def _copy_pair(node: Node, size: int) -> Row:
    times = max(1, min(100, int(4e-3 * 370e9 / max(size, 4 << 20))))

    def start(stream: int) -> None:
        node.probes.on(0, "copy", node.target(1), 1, node.source(0), 0, size, times, stream)

    sample = node.sample({0: start}).per(times)
    return {"pattern": "pair", "bytes": size, **rates(sample, size)}


def _copy_staged(node: Node, size: int, pattern: str) -> Row:
    def start(device: int) -> Start:
        def enqueue(stream: int) -> None:
            for peer in peers_of(device, node.world, "all"):
                to, of = (device, peer) if pattern == "staged_pull" else (peer, device)
                node.probes.on(
                    *(device, "copy", node.target(to), to, node.source(of), of, size, 1, stream)
                )

        return enqueue

    sample = node.sample({d: start(d) for d in node.devices})
    return {"pattern": pattern, "bytes": size, **rates(sample, size * (node.world - 1))}


def _copy_all_at_once(node: Node, size: int) -> Row:
    """Every GPU starts its copies to all peers together, each on a stream of its own."""
    branches = [
        [torch.cuda.Stream(d) for _ in range(node.world - 1)]  # type: ignore[no-untyped-call]
        for d in node.devices
    ]

    def start(device: int) -> Start:
        def enqueue(_: int) -> None:
            main = node.streams[device]
            peers = peers_of(device, node.world, "all")
            for peer, branch in zip(peers, branches[device], strict=True):
                branch.wait_stream(main)
                to, of = node.target(peer), node.source(device)
                handle = int(branch.cuda_stream)
                node.probes.on(device, "copy", to, peer, of, device, size, 1, handle)
            for branch in branches[device]:
                main.wait_stream(branch)

        return enqueue

    sample = node.sample({d: start(d) for d in node.devices})
    return {"pattern": "all_at_once", "bytes": size, **rates(sample, size * (node.world - 1))}


def measure_memory(node: Node) -> list[Row]:
    """One GPU's own memory: copy and read rates, whole chip and one SM, and latencies of a load."""
    result = torch.zeros(4, dtype=torch.int32, device="cuda:0")
    rows = [_local_copy(node)]
    for what, size, blocks, rounds in (
        ("hbm read, all SMs", GIB, node.sms, 2),
        ("l2 read 8 MiB, all SMs", 8 << 20, node.sms, 200),
        ("l2 read 24 MiB, all SMs", 24 << 20, node.sms, 60),
        ("l2 read 4 MiB, one SM", 4 << 20, 1, 10),
        ("hbm read, one SM", 256 << 20, 1, 1),
    ):
        sample = node.sample({0: _reading(node, size, rounds, blocks, result)})
        rows.append({"what": what, "bytes": size, **rates(sample, size * rounds)})
    rows += [
        _chase(node, "load latency, l2", 4 << 20, 0),
        _chase(node, "load latency, hbm", GIB // 4, 0),
    ]
    if node.world > 1:
        rows.append(_chase(node, "load latency, peer", 64 << 20, 1))
    return rows


def _reading(node: Node, size: int, rounds: int, blocks: int, result: torch.Tensor) -> Start:
    at, out = node.source(0), result.data_ptr()
    return lambda stream: node.probes.on(0, "read", at, size, rounds, blocks, out, stream)


def _local_copy(node: Node) -> Row:
    def start(stream: int) -> None:
        node.probes.on(0, "copy", node.target(0), 0, node.source(0), 0, GIB, 1, stream)

    sample = node.sample({0: start})
    return {"what": "hbm copy, read + write", "bytes": GIB, **rates(sample, 2 * GIB)}


LINE_WORDS, CHASE_STEPS = 32, 2000


def _chase(node: Node, what: str, size: int, device: int) -> Row:
    """Time of one dependent load: a walk through all lines of `size` bytes in random order."""
    lines = size // (4 * LINE_WORDS)
    order = torch.randperm(lines, device=f"cuda:{device}", dtype=torch.int64)
    following = torch.zeros(lines, LINE_WORDS, dtype=torch.int32, device=f"cuda:{device}")
    following[order, 0] = (order.roll(-1) * LINE_WORDS).int()
    place = torch.zeros(4, dtype=torch.int32, device="cuda:0")
    for gpu in {0, device}:
        torch.cuda.synchronize(gpu)
    # Once around, so that what fits into L2 is there; else never around, so that no line is.
    steps = CHASE_STEPS if size > 32 << 20 else lines

    def start(stream: int) -> None:
        node.probes.on(0, "chase", following.data_ptr(), steps, place.data_ptr(), stream)

    sample = node.sample({0: start}).per(steps)
    return {"what": what, "bytes": size, "us": round(sample.us, 4)}


def local_bulk_load_us(node: Node, chunk: int) -> float:
    """One bulk load from the GPU's own memory into shared memory at a time."""
    count = 2000
    work = Transfer(
        kind=KINDS["tma_load"], device=0, blocks=1, chunk=chunk, in_flight=1, peers=1,
        window=WINDOW, total=count * chunk, status=node.status,
    )  # fmt: skip
    work.src[0] = node.source(0)
    return node.sample({0: starting(node, work)}).us / count


def moving(node: Node, device: int, sms: int, duration_us: float, moved: int) -> Transfer:
    """Plain stores to all peers in turn for so long; `moved` is the address of a byte counter."""
    work = Transfer(
        kind=KINDS["store"], device=device, blocks=sms, chunk=COPY_STEP, in_flight=1,
        window=WINDOW, duration_ns=int(duration_us * 1e3), moved=moved,
        status=node.status,
    )  # fmt: skip
    _point(work, node, peers_of(device, node.world, "all"), pull=False)
    return work
