"""The C interface of kernels built for GPUs, as ctypes.

The other side is include/pk/sm90/{entry,host,state}.h; the version counts changes of either.
"""

import ctypes as c
from dataclasses import dataclass

ABI_VERSION = 2
FOUND, UNKNOWN, OTHER_DIRECTION = range(3)
MOST_DIMS = 8
ROLES = ("loader", "consumer", "storer", "communicator", "runtime", "kernel")
TIMEOUT_OFFSET, FAILURES_OFFSET = 16, 24  # in struct launch


class Description(c.Structure):
    """What a library says of its kernel."""

    _fields_ = [
        *((name, c.c_int32) for name in (
            "abi", "args_bytes", "launch_bytes", "control_bytes", "failure_bytes",
            "shared_bytes", "threads", "comm_sms", "max_world", "roles",
        )),
        ("name", c.c_char_p),
    ]  # fmt: skip


class TensorInfo(c.Structure):
    """One rank's tensor as this process maps it; `pitch` in elements from row to row.

    `dims` are its sizes as the caller has them, 0 after the last.
    """

    _fields_ = [
        ("data", c.c_void_p),
        *((name, c.c_int32) for name in ("type", "planes", "rows", "cols")),
        ("pitch", c.c_int64),
        ("dims", c.c_int32 * MOST_DIMS),
    ]


TENSOR = c.CFUNCTYPE(
    c.c_int32, c.c_void_p, c.c_char_p, c.c_int32, c.c_int32, c.c_int32, c.POINTER(TensorInfo)
)
MEMORY = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p, c.c_char_p, c.c_int32, c.c_uint64)
BOUND = c.CFUNCTYPE(None, c.c_void_p, c.c_int32, c.c_char_p, c.c_char_p)


class HostCalls(c.Structure):
    """How a kernel's setup() asks the launcher for tensors and symmetric memory."""

    _fields_ = [
        *((name, c.c_int32) for name in ("abi", "rank", "world", "plan")),
        ("context", c.c_void_p),
        ("tensor", TENSOR),
        ("memory", MEMORY),
        ("bound", BOUND),
        ("encode", c.c_void_p),
    ]


class Failure(c.Structure):
    """Why a block gave up; written by the device, one per block and role."""

    _fields_ = [
        *((name, c.c_int32) for name in (
            "kind", "rank", "block", "role", "object", "slot", "plane", "row", "col", "epoch",
        )),
        ("seen", c.c_uint64),
        ("wanted", c.c_uint64),
        ("waited_ns", c.c_uint64),
    ]  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """An object that setup() numbered: a tensor, scratch, signals, a barrier, a mailbox."""

    kind: str
    name: str


_WAITS = {1: "a free slot", 2: "data", 5: "rank {slot} to enter", 6: "rank {slot} to leave"}


def describe(failure: Failure, bound: dict[int, Bound]) -> str:
    """The record in words, as the simulator's reports say it."""
    role = ROLES[failure.role] if 0 <= failure.role < len(ROLES) else "runtime"
    who = f"rank {failure.rank} block {failure.block} {role} (launch {failure.epoch})"
    what = bound.get(failure.object, Bound("object", f"#{failure.object}"))
    waited = f"after {failure.waited_ns / 1e9:.3g} s"
    if failure.kind in (3, 4):
        return (
            f"{who} waits for {what.kind.removesuffix('s')} {what.name!r} slot {failure.slot}: "
            f"expected {failure.wanted}, seen {failure.seen}, {waited}"
        )
    if failure.kind == 8:
        return (
            f"{who} waits for mailbox {what.name!r} slot {failure.slot} from rank "
            f"{failure.plane}, {waited}"
        )
    if failure.kind in (1, 2):
        return f"{who} waits for {_WAITS[failure.kind]} of ring #{failure.object}, {waited}"
    if failure.kind in _WAITS:
        return f"{who} waits for {_WAITS[failure.kind].format(slot=failure.slot)}, {waited}"
    where = f"at {{plane {failure.plane}, row {failure.row}, col {failure.col}}}"
    if what.kind in ("signals", "mailbox"):
        where = f"slot {failure.slot} of rank {failure.plane}"
    return f"{who}: {what.kind} {what.name!r} {where} is out of range"
