"""Source lines in the simulator's reports.

The engine knows only addresses of calls: it writes `<@1a2b,3c4d>`, the chain of calls from a role
into the engine, innermost first. Here each such mark becomes " (kernel.cu:41, in
pk/common/gemm.h:57)", part of a parenthesis before it, or nothing where the line is unknown. The
program is the candidate's, so it is read by addr2line through the executor that ran it, and all of
it is data to be bounded.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pk_runtime.execution import Command, ExecutionError, Executor, Limits

_MARK = re.compile(r"<@([0-9a-f]{1,12}(?:,[0-9a-f]{1,12}){0,7})>")
_IN_TEXT = re.compile(rf"((?<!\()\)|){_MARK.pattern}")  # the ")" of "release()" takes no line
_PLACE = re.compile(r"^(.+):(\d+)(?: \(discriminator \d+\))?$")
_RUNTIME = "/include/pk/"
_MOST_ADDRESSES = 512
_LIMITS = Limits(wall_s=10.0, memory_bytes=1 << 30, processes=8, output_bytes=1 << 20)


def with_lines(
    report: dict[str, Any], program: Path, executor: Executor, workdir: Path
) -> dict[str, Any]:
    """`report` with every mark of `program`'s calls replaced by the line in the kernel's source."""
    chains = {mark for text in _texts(report) for mark in _MARK.findall(text)}
    if not chains:
        return report
    addresses = sorted({a for chain in chains for a in chain.split(",")})[:_MOST_ADDRESSES]
    places = _look_up(addresses, program, executor, workdir)
    lines = {
        chain: _line([place for a in chain.split(",") for place in places.get(a, ())])
        for chain in chains
    }
    replaced: dict[str, Any] = _replaced(report, lines)
    return replaced


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _replaced(value: Any, lines: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _replaced(item, lines) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, lines) for item in value]
    if not isinstance(value, str):
        return value
    if whole := _MARK.fullmatch(value):
        return lines[whole[1]]

    def place(mark: re.Match[str]) -> str:
        line = lines[mark[2]]
        if mark[1]:
            return f", {line})" if line else ")"
        return f" ({line})" if line else ""

    return _IN_TEXT.sub(place, value)


def _look_up(
    addresses: Sequence[str], program: Path, executor: Executor, workdir: Path
) -> dict[str, list[tuple[str, int]]]:
    """File and line of each address, with those of the calls that were inlined around it."""
    tool = shutil.which("addr2line")
    if tool is None:
        return {}
    argv = (tool, "-a", "-i", "-e", str(program), *(f"0x{a}" for a in addresses))
    command = Command(argv, workdir, (program,), {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}, _LIMITS)
    try:
        done = executor.run(command)
    except ExecutionError:
        return {}
    places: dict[str, list[tuple[str, int]]] = {}
    at: list[tuple[str, int]] = []
    for text in done.stdout.decode(errors="replace").splitlines() if done.ok else ():
        if text.startswith("0x"):
            at = places.setdefault(text[2:].lstrip("0"), [])
        elif found := _PLACE.match(text):
            at.append((found[1], int(found[2])))
    return places


def _line(places: Sequence[tuple[str, int]]) -> str:
    """The first line of a chain that is the author's, and the line of pk/common it goes through."""
    through = ""
    for file, number in places:
        _, inside, header = file.partition(_RUNTIME)
        if not inside and PurePosixPath(file).name not in ("", "??"):
            return f"{PurePosixPath(file).name}:{number}" + (f", in {through}" if through else "")
        if header.startswith("common/"):
            through = through or f"pk/{header}:{number}"
    return ""
