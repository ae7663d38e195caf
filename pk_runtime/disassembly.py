"""Reads machine code: which instructions a cubin holds and what its kernels take of an SM."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pk_runtime.execution import Command, Executor, Limits, LocalExecutor
from pk_runtime.toolchain import ToolchainError, cuobjdump, search_path

_LIMITS = Limits(wall_s=60, memory_bytes=2 << 30, output_bytes=256 << 20)
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.M)
_USAGE = re.compile(
    r"Function (?P<function>\S+):\s*\n\s*REG:(?P<registers>\d+) STACK:(?P<stack>\d+) "
    r"SHARED:(?P<shared>\d+)"
)
_SPILLS = re.compile(
    r"Function properties for (?P<function>\S+)\s*\n"
    r".*?(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)


@dataclass(frozen=True)
class ResourceUsage:
    """What one kernel of a cubin takes: registers per thread, bytes of the rest.

    `smem_bytes` is static shared memory only. The spills are 0 where the build's log is not known.
    """

    function: str
    registers: int
    stack_bytes: int
    smem_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


def opcodes(cubin: Path, executor: Executor | None = None) -> Counter[str]:
    """How often each instruction occurs in a cubin, without modifiers: HGMMA, UTMALDG, ...

    ToolchainError if there is no disassembler or it cannot read the file.
    """
    text = _cuobjdump(cubin, "-sass", executor or LocalExecutor())
    return Counter(name.split(".")[0] for name in _INSTRUCTION.findall(text))


def resource_usage(cubin: Path, executor: Executor | None = None) -> tuple[ResourceUsage, ...]:
    """What each kernel of a cubin takes; spills from the log `Compiler.cubin` keeps beside it."""
    text = _cuobjdump(cubin, "-res-usage", executor or LocalExecutor())
    log = cubin.with_suffix(".log")
    properties = log.read_text(encoding="utf-8") if log.is_file() else ""
    spills = {
        match["function"]: (int(match["stores"]), int(match["loads"]))
        for match in _SPILLS.finditer(properties)
    }
    return tuple(
        ResourceUsage(
            match["function"],
            int(match["registers"]),
            int(match["stack"]),
            int(match["shared"]),
            *spills.get(match["function"], (0, 0)),
        )
        for match in _USAGE.finditer(text)
    )


def _cuobjdump(cubin: Path, option: str, executor: Executor) -> str:
    tool = cuobjdump()
    cubin = cubin.absolute()
    argv = (str(tool.path), option, cubin.name)
    env = {"PATH": search_path(tool), "LC_ALL": "C"}
    done = executor.run(Command(argv, cubin.parent, (tool.root,), env, _LIMITS))
    if not done.ok:
        text = (done.stderr or done.stdout).decode(errors="replace").strip()[:500]
        raise ToolchainError(f"{tool.path.name} cannot read {cubin.name}: {text}")
    return done.stdout.decode(errors="replace")
