"""How long a flag, a barrier and a launch take."""

import ctypes
import statistics
import time

import torch

from pk_runtime.calibrate.node import Node, Start
from pk_runtime.calibrate.probes import ADD_FLAG, STORE_FLAG
from pk_runtime.calibrate.transfers import Row, local_bulk_load_us, transfer

ROUNDS = 1000
LAUNCHES = 500
THREADS = 384


def measure_flags(node: Node) -> list[Row]:
    """Flags between two GPUs, among all, between two SMs and inside one SM; TMA latency."""
    rows: list[Row] = []
    if node.world > 1:
        rows.append(_round_trip(node, "round trip, two GPUs, store.release", STORE_FLAG))
        rows.append(_round_trip(node, "round trip, two GPUs, red.release.add", ADD_FLAG))
        barrier = {d: node.barrier(ROUNDS, list(node.devices), d) for d in node.devices}
        us = node.sample(barrier, ROUNDS).per(ROUNDS).us
        rows.append({"what": f"barrier of {node.world} GPUs in a kernel", "us": round(us, 4)})
    rows += [_local_flag(node), _mbarrier(node)]
    rows += _bulk_latencies(node)
    return rows


def _round_trip(node: Node, what: str, how: int) -> Row:
    flags = [torch.zeros(64, dtype=torch.int32, device=f"cuda:{d}") for d in (0, 1)]
    at = [t.data_ptr() for t in flags]
    done = 0

    def start(device: int, rounds: int) -> Start:
        first, own, other = int(device == 0), at[device], at[1 - device]
        return lambda stream: node.probes.on(
            device, "ping", how, own, other, first, done, rounds, node.status, stream
        )

    node.sample_us({d: start(d, 0) for d in (0, 1)})  # loads the kernel before anybody waits in it
    times = []
    for _ in range(node.repeats + 1):
        times.append(node.sample_us({d: start(d, ROUNDS) for d in (0, 1)}) / ROUNDS)
        done += ROUNDS
    return {"what": what, "us": round(statistics.median(times[1:]), 4)}


def _local_flag(node: Node) -> Row:
    flags = torch.zeros(64, dtype=torch.int32, device="cuda:0")
    done = 0

    def start(stream: int) -> None:
        nonlocal done
        node.probes.on(0, "local_ping", flags.data_ptr(), done, ROUNDS, node.status, stream)
        done += ROUNDS

    us = node.sample({0: start}).per(2 * ROUNDS).us
    return {"what": "flag between two SMs of one GPU, one way", "us": round(us, 4)}


def _mbarrier(node: Node) -> Row:
    def start(stream: int) -> None:
        node.probes.on(0, "mbarrier", ROUNDS, node.status, stream)

    us = node.sample({0: start}).per(2 * ROUNDS).us
    return {"what": "mbarrier between two warps, arrive to wait", "us": round(us, 4)}


def _bulk_latencies(node: Node) -> list[Row]:
    """Small bulk loads, one at a time."""
    us = local_bulk_load_us(node, 512)
    rows: list[Row] = [{"what": "bulk load of 512 B, own memory", "us": round(us, 4)}]
    if node.world > 1:
        row = transfer(node, "tma_load", "pair", sms=1, chunk=512, in_flight=1)
        rate = row["gb_per_s"]
        assert isinstance(rate, float)
        rows.append({"what": "bulk load of 512 B, from a peer", "us": round(0.512 / rate, 4)})
    return rows


def measure_launches(node: Node) -> list[Row]:
    """What an empty kernel costs: eager and as a node of a CUDA graph, small and whole-chip."""
    rows: list[Row] = []
    for shape, blocks in (("one block", 1), ("one block per SM", node.sms)):
        rows.append({"what": f"eager, {shape}", "us": round(_eager_us(node, blocks), 4)})
        rows.append({"what": f"graph node, {shape}", "us": round(_graph_us(node, blocks), 4)})
    node.synchronize()
    begin = time.perf_counter()
    node.probes.on(0, "empty", 1, THREADS, LAUNCHES, node.stream(0))
    host_us = (time.perf_counter() - begin) * 1e6 / LAUNCHES
    node.synchronize()
    rows.append({"what": "eager, host side", "us": round(host_us, 4)})
    return rows


def _eager_us(node: Node, blocks: int) -> float:
    """Back to back while the host enqueues: what a loop of launches really takes."""

    def start(stream: int) -> None:
        node.probes.on(0, "empty", blocks, THREADS, LAUNCHES, stream)

    return node.sample({0: start}, queued=False).per(LAUNCHES).us


def _graph_us(node: Node, blocks: int) -> float:
    graph = ctypes.c_void_p()
    node.probes.on(0, "graph", blocks, THREADS, LAUNCHES, node.stream(0), ctypes.byref(graph))
    try:
        launched = node.sample({0: lambda stream: node.probes.on(0, "graph_launch", graph, stream)})
        return launched.per(LAUNCHES).us
    finally:
        node.synchronize()
        node.probes.call("graph_free", graph)
