"""The system calls a candidate may not make: a BPF program, assembled without libseccomp, and the
same list in Docker's words.

Namespaces do not cover everything: vsock sockets leave a network namespace, io_uring and ptrace
reach the kernel and PID 1. x86-64 only; another architecture in the process is killed.
"""

import errno
import json
import platform
import struct
from collections.abc import Iterator
from typing import Any

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_CLONE, _CLONE3, _SOCKET, _PRLIMIT64 = 56, 435, 41, 302
_CLONE_NEW_FLAGS = 0x7E020080  # every CLONE_NEW*: mount, cgroup, uts, ipc, user, pid, net, time
_SOCKET_FAMILIES = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16}

DENIED = {
    # other processes
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
    "pidfd_getfd": 438,
    # namespaces and mounts, old and new interface
    "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "fspick": 433, "mount_setattr": 442, "open_tree_attr": 467, "open_by_handle_at": 304,
    # kernel surface that nothing here needs
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425,
    "io_uring_enter": 426, "io_uring_register": 427, "keyctl": 250, "add_key": 248,
    "request_key": 249, "fanotify_init": 300, "syslog": 103, "lookup_dcookie": 212,
    # the machine
    "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313,
    "delete_module": 176, "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163,
    "quotactl": 179, "iopl": 172, "ioperm": 173, "settimeofday": 164, "clock_settime": 227,
    "clock_adjtime": 305, "adjtimex": 159, "sethostname": 170, "setdomainname": 171,
}  # fmt: skip


class UnsupportedArchitecture(RuntimeError):  # noqa: N818 - names the state
    """The deny list is written for x86-64 only."""


def program() -> bytes:
    """The filter for `bwrap --seccomp`; raises UnsupportedArchitecture elsewhere than x86-64."""
    _require_x86_64()
    denied = _returning(_FAIL | errno.EPERM)
    lines = [
        _line(_LOAD, _ARCH_AT),
        _line(_JUMP_EQUAL, _ARCH_X86_64, yes=1),
        _returning(_KILL_PROCESS),
        _line(_LOAD, _NUMBER_AT),
        _line(_JUMP_AT_LEAST, _X32_BIT, no=1),
        denied,
        # libc falls back from clone3, whose flags a filter cannot read, to clone
        _line(_JUMP_EQUAL, _CLONE3, no=1),
        _returning(_FAIL | errno.ENOSYS),
        _line(_JUMP_EQUAL, _CLONE, no=4),
        _line(_LOAD, _FIRST_ARGUMENT_AT),
        _line(_JUMP_ANY_BIT, _CLONE_NEW_FLAGS, no=1),
        denied,
        _returning(_ALLOW),
        # limits of its own, not of the sandbox's first process, which has the same user
        _line(_JUMP_EQUAL, _PRLIMIT64, no=4),
        _line(_LOAD, _FIRST_ARGUMENT_AT),
        _line(_JUMP_EQUAL, 0, yes=1),
        denied,
        _returning(_ALLOW),
        _line(_JUMP_EQUAL, _SOCKET, no=len(_SOCKET_FAMILIES) + 3),
        _line(_LOAD, _FIRST_ARGUMENT_AT),
    ]
    families = sorted(_SOCKET_FAMILIES.values())
    lines += [_line(_JUMP_EQUAL, f, yes=len(families) - i) for i, f in enumerate(families)]
    lines += [denied, _returning(_ALLOW)]
    for number in sorted(DENIED.values()):
        lines += [_line(_JUMP_EQUAL, number, no=1), denied]
    return b"".join([*lines, _returning(_ALLOW)])


def docker_profile() -> str:
    """The filter for `docker run --security-opt seccomp=FILE`, as JSON; raises as `program`.

    Docker kills what uses another architecture. It has no "any of these bits" and takes several
    conditions on one argument as alternatives, so flags and families are listed one by one.
    """
    _require_x86_64()
    rules = [
        _rule(list(DENIED), errno.EPERM),
        _rule(["clone3"], errno.ENOSYS),
        _rule(["prlimit64"], errno.EPERM, _condition(0, "SCMP_CMP_NE", 0)),
        *(_rule(["clone"], errno.EPERM, _condition(0, "SCMP_CMP_MASKED_EQ", flag, flag))
          for flag in _bits(_CLONE_NEW_FLAGS)),
        *(_rule(["socket"], errno.EPERM, _condition(0, "SCMP_CMP_EQ", family))
          for family in range(max(_SOCKET_FAMILIES.values()))
          if family not in _SOCKET_FAMILIES.values()),
        _rule(["socket"], errno.EPERM,
              _condition(0, "SCMP_CMP_GT", max(_SOCKET_FAMILIES.values()))),
    ]  # fmt: skip
    return json.dumps({
        "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"], "syscalls": rules
    })  # fmt: skip


def _require_x86_64() -> None:
    if platform.machine() != "x86_64":
        raise UnsupportedArchitecture(f"no system call filter for {platform.machine()}")


def _rule(names: list[str], error: int, *conditions: dict[str, Any]) -> dict[str, Any]:
    return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error, "args": conditions}


def _condition(argument: int, operation: str, value: int, masked: int = 0) -> dict[str, Any]:
    return {"index": argument, "op": operation, "value": value, "valueTwo": masked}


def _bits(mask: int) -> Iterator[int]:
    yield from (1 << bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def allowing_all() -> bytes:
    """A filter that refuses nothing: for finding out whether `program` is in the way."""
    return _returning(_ALLOW)


def _line(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _returning(action: int) -> bytes:
    return _line(_RETURN, action)
