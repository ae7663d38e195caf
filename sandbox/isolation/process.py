"""What a process does to itself between fork and exec; a part of the launcher."""

import ctypes
import os
import resource
import signal
import struct

from sandbox.isolation.mounts import check, libc, write

MAX_DESCRIPTORS = 4096

SET_DUMPABLE = 4
_SET_PDEATHSIG, _SET_SECCOMP = 1, 22
_CAPBSET_DROP, _SET_NO_NEW_PRIVS, _CAP_AMBIENT = 24, 38, 47
_AMBIENT_CLEAR_ALL, _SECCOMP_FILTER = 4, 2
_CAPSET, _CAPABILITY_VERSION = 126, 0x20080522
_MOST_CAPABILITIES = 64


def die_with_parent() -> None:
    """Asks for SIGKILL when the parent ends. A change of user takes it back."""
    prctl(_SET_PDEATHSIG, signal.SIGKILL)


def join_groups(procs_files: "list[str]") -> None:
    """Joins control groups, with all children to come."""
    for procs in procs_files:
        write(procs, "0")


def become(owner: "int | None") -> None:
    """Gives up root for another user without groups; None where the caller is no root."""
    if owner is not None:
        os.setgroups([])
        os.setresgid(owner, owner, owner)
        os.setresuid(owner, owner, owner)


def set_limits(limits: "list[tuple[int, int]]") -> None:
    """Sets resource limits, soft and hard; lower ones of the system stay."""
    for number, value in limits:
        hard = resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        # CPU time: first the signal that says so, a second later the one that cannot be ignored
        most = value + 1 if number == resource.RLIMIT_CPU and value != hard else value
        resource.setrlimit(number, (value, most))


def default_signals() -> None:
    """Undoes what Python does to signals, which a program would inherit."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def give_up_privileges(owner: "int | None") -> None:
    """No capability, now or ever again, and nobody's business: not to be traced or read."""
    for capability in range(_MOST_CAPABILITIES):
        if libc.prctl(*map(ctypes.c_ulong, (_CAPBSET_DROP, capability, 0, 0, 0))) < 0:
            break  # past the last one that this kernel knows
    become(owner)
    prctl(_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    check(libc.syscall(_CAPSET, header, bytes(24)), "give up capabilities")
    prctl(_SET_NO_NEW_PRIVS, 1)
    prctl(SET_DUMPABLE, 0)


def filter_system_calls(program: bytes) -> None:
    """Installs a BPF program for this process and all its children; needs no_new_privs."""
    code = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    place = ctypes.create_string_buffer(filter_, len(filter_))
    prctl(_SET_SECCOMP, _SECCOMP_FILTER, ctypes.addressof(place))


def prctl(option: int, *arguments: int) -> None:
    """prctl(2) with whole words: some options look at what is left in the upper half."""
    words = (option, *arguments, 0, 0, 0, 0)[:5]
    check(libc.prctl(*map(ctypes.c_ulong, words)), f"prctl {option}")
