"""Triton kernels with peers: the same kernels on GPUs and, slowly, on a CPU.

    from pk_runtime import triton as pk

    peers = pk.join(folder, rank, world_size)       # one process per rank
    x = peers.empty((1024,), torch.float32)         # symmetric: every rank has it
    kernel[grid](x, peers.bases)                    # in it: pk.store(x + i, v, bases, own, peer)
    peers.barrier()

On a CPU set TRITON_INTERPRET=1 before Python starts. docs/triton.md is the guide. Triton is an
optional dependency: only this package imports it.
"""

from pk_runtime.triton.device import (
    INTERPRETED,
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xchg,
    atomic_xor,
    barrier,
    copy,
    dot,
    epoch,
    get,
    load,
    peer_pointer,
    publish,
    put,
    rank,
    signal,
    store,
    wait,
    world_size,
)
from pk_runtime.triton.heap import HeapError
from pk_runtime.triton.peers import Peers, PeerTimeoutError, join, new_run_folder

__all__ = [
    "INTERPRETED",
    "HeapError",
    "PeerTimeoutError",
    "Peers",
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xchg",
    "atomic_xor",
    "barrier",
    "copy",
    "dot",
    "epoch",
    "get",
    "join",
    "load",
    "new_run_folder",
    "peer_pointer",
    "publish",
    "put",
    "rank",
    "signal",
    "store",
    "wait",
    "world_size",
]
