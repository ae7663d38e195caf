"""What the emulator finds, with the lines of source it happened in."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pk_runtime.execution import Command, Executor, Limits
from pk_runtime.toolchain import gxx, search_path

_LIMITS = Limits(wall_s=30, memory_bytes=2 << 30)
_ROLES = ("loader", "consumer", "storer", "communicator")


@dataclass(frozen=True)
class Access:
    """Who touched memory, how, and where: `lines` is innermost first, "pk/sm90/ring.h:93"."""

    rank: int
    block: int
    thread: int
    role: str
    does: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        who = f"rank {self.rank} block {self.block} thread {self.thread} ({self.role})"
        if self.role == "host":
            who = f"the host of rank {self.rank}"
        return f"{who}: {self.does}" + (f" [{' < '.join(self.lines)}]" if self.lines else "")


@dataclass(frozen=True)
class Finding:
    """Two accesses that nothing orders; `missing` says what would, `culprit` where it belongs.

    `kind` is one of those in docs/decisions/0010-headers-on-a-cpu.md. With a kind that is about one
    access (`out_of_bounds`, `exit_in_flight`), both are the same.
    """

    kind: str
    object: str
    missing: str
    launch: int
    first: Access
    second: Access
    culprit: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.object}, launch {self.launch}", f"  {self.first}"]
        if self.second != self.first:
            lines.append(f"  {self.second}")
        missing = f"  {self.missing}"
        return "\n".join(
            [*lines, missing + (f" [{' < '.join(self.culprit)}]" if self.culprit else "")]
        )


@dataclass(frozen=True)
class _Place:
    lines: tuple[str, ...]
    functions: tuple[str, ...]


def findings_of(report: dict[str, Any], program: Path, executor: Executor) -> list[Finding]:
    """The findings of a report; KeyError, TypeError or ValueError if it is malformed."""
    stacks = [
        tuple(int(a) for a in stack)
        for found in report["findings"]
        for stack in (found["culprit"], found["first"]["addresses"], found["second"]["addresses"])
    ]
    places = _places(sorted({a for stack in stacks for a in stack}), program, executor)
    return [_finding(found, places) for found in report["findings"]]


def _finding(found: dict[str, Any], places: dict[int, _Place]) -> Finding:
    return Finding(
        str(found["kind"]),
        str(found["object"]),
        str(found["missing"]),
        int(found["launch"]),
        _access(found["first"], places),
        _access(found["second"], places),
        _lines(found["culprit"], places),
    )


def _access(found: dict[str, Any], places: dict[int, _Place]) -> Access:
    names = [name for a in found["addresses"] for name in places[int(a)].functions]
    role = next((r for r in _ROLES for name in names if re.search(rf"::{r}\b", name)), "launch")
    return Access(
        int(found["rank"]),
        int(found["block"]),
        int(found["thread"]),
        "host" if found["host"] else role,
        str(found["does"]),
        _lines(found["addresses"], places),
    )


def _lines(addresses: Iterable[Any], places: dict[int, _Place]) -> tuple[str, ...]:
    lines = [line for a in addresses for line in places[int(a)].lines]
    return tuple(dict.fromkeys(lines))


def _places(addresses: Sequence[int], program: Path, executor: Executor) -> dict[int, _Place]:
    """Source lines of code addresses, with those of the functions they were inlined into."""
    if not addresses:
        return {}
    tool = gxx()
    argv = ("addr2line", "-a", "-i", "-f", "-C", "-e", str(program), *map(hex, addresses))
    env = {"PATH": search_path(tool), "LC_ALL": "C"}
    with TemporaryDirectory() as folder:
        done = executor.run(Command(argv, Path(folder), (program,), env, _LIMITS))
    places: dict[int, _Place] = {}
    for part in re.split(r"^(?=0x)", done.stdout.decode(errors="replace"), flags=re.MULTILINE):
        head, *rest = part.splitlines() or [""]
        if head.startswith("0x"):
            functions, files = rest[::2], rest[1::2]
            lines = [line for name in files if (line := _short(name))]
            places[int(head, 16)] = _Place(tuple(lines), tuple(functions))
    return {a: places.get(a, _Place((), ())) for a in addresses}


def _short(name: str) -> str:
    """`/tmp/x/include/pk/sm90/ptx.h:41` as `pk/sm90/ptx.h:41`; nothing for an unknown line."""
    file, _, line = name.partition(" ")[0].rpartition(":")
    if not line.isdecimal() or line == "0" or "/emulated/" in file or "emulator/engine/" in file:
        return ""
    _, inside, rest = file.rpartition("/pk/")
    return f"pk/{rest}:{line}" if inside else f"{Path(file).name}:{line}"
