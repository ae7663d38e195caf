"""`python3 -m tests.gpu.sanitizer [NAME...]`: the shipped kernels under compute-sanitizer.

memcheck and racecheck, at small and ragged shapes, several ranks in one process on one GPU, without
torch in the checked process. A line for each: clean, or everything that the tool says; nothing is
filtered. NAMEs choose kernels by a part of the problem's or the kernel's name. `--gpus` run at a
time, one check on each.
"""

import argparse
import os
import queue
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from pk_runtime.compiler import BuildError
from tests.gpu import budget, children
from tests.gpu.kernels import EXAMPLES, Kernel, all_kernels, libraries

TOOLS = ("memcheck", "racecheck")
SHAPES = ("tiny", "odd")
RANKS = 2
LAUNCHES = 2
DEADLINE_S = 60.0
_FOLDERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin")
_SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: (.*)")
_CLEAN = re.compile(r"0 (errors|hazards displayed \(0 errors, 0 warnings\))\s*")
_REFUSED = ("Device not supported", "not supported on this device", "Unable to find injection")


def sanitizer() -> str | None:
    """The program, or None where it is not installed."""
    folders = os.pathsep.join((os.environ.get("PATH", ""), *_FOLDERS))
    return shutil.which("compute-sanitizer", path=folders)


@dataclass(frozen=True)
class Check:
    """One kernel under one tool at one shape."""

    kernel: Kernel
    tool: str
    shape: str

    def __str__(self) -> str:
        return f"{self.kernel} {self.tool} {self.shape}"


@dataclass(frozen=True)
class Found:
    """What a tool says: its summary, everything else it says, why the run did not end, how long.

    `ranks` took part: one where several could not run at the same time, of which `before` tells.
    """

    summary: str
    said: str
    trouble: str
    ranks: int
    seconds: float
    before: str = ""

    @property
    def clean(self) -> bool:
        """Whether the kernel ran to its end and the tool found nothing."""
        return not self.trouble and _CLEAN.fullmatch(self.summary) is not None

    @property
    def refused(self) -> bool:
        """Whether the tool does not work on this machine at all."""
        return any(word in self.said for word in _REFUSED)


def checks(names: Sequence[str], tools: Sequence[str], shapes: Sequence[str]) -> list[Check]:
    """All combinations, of the kernels chosen by a part of their name."""
    return [
        Check(kernel, tool, shape)
        for kernel in (*all_kernels(), *EXAMPLES)
        if not names or any(name in f"{kernel} {kernel.name}" for name in names)
        for tool in tools
        for shape in shapes
        if shape in {s.name for s in kernel.problem.shapes}
    ]


def examine(check: Check, library: Path, ranks: int, device: int = 0) -> Found:
    """Runs one check; once more with one rank if several wait for each other in vain.

    A tool that lets kernels run only one after the other cannot run ranks that wait for peers.
    """
    found = _run(check, library, ranks, device)
    if ranks > 1 and "waits for" in found.trouble:
        before = f"{ranks} ranks: {found.summary}: {found.trouble}\n{found.said}"
        return replace(_run(check, library, 1, device), before=before)
    return found


def _run(check: Check, library: Path, ranks: int, device: int) -> Found:
    program = sanitizer()
    assert program is not None, "compute-sanitizer is not installed"
    problem = check.kernel.problem
    dims = problem.shape(check.shape).dims
    tensors = {
        name: {
            "shape": list(spec.shape),
            "dtype": str(spec.dtype).removeprefix("torch."),
            "output": output,
        }
        for specs, output in (
            (problem.input_specs(dims, ranks), False),
            (problem.output_specs(dims, ranks), True),
        )
        for name, spec in specs.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        started = time.monotonic()
        child = children.run(
            "run",
            {"library": str(library), "tensors": tensors, "ranks": ranks, "launches": LAUNCHES},
            deadline_s=DEADLINE_S,
            module="tests.gpu.sanitized",
            launcher=(program, "--tool", check.tool, "--log-file", str(log)),
            env={"CUDA_VISIBLE_DEVICES": str(device)},
            alone=False,
            linger_s=30.0,
        )
        text = log.read_text(errors="replace") if log.exists() else child.stderr
    lines = [line.removeprefix("=========").rstrip() for line in text.splitlines()]
    summaries = [match[2] for line in lines if (match := _SUMMARY.search(line))]
    said = "\n".join(
        line for line in lines if line.strip() not in ("", "COMPUTE-SANITIZER")
        and not _SUMMARY.search(line)
    )  # fmt: skip
    trouble = child.trouble or ("" if child.of("done") else "it did not run to its end")
    summary = summaries[-1] if summaries else "no summary"
    return Found(summary, said, trouble, ranks, time.monotonic() - started)


def line(check: Check, found: Found) -> str:
    """What was found, for a reader."""
    word = "clean" if found.clean else "NOT CLEAN"
    head = f"{check!s:50} {word:10} {found.ranks} ranks {found.seconds:4.0f} s  {found.summary}"
    details = [text for text in (found.before, found.trouble, found.said) if text.strip()]
    return "\n".join([head, *("    " + part.replace("\n", "\n    ") for part in details)])


def examine_all(todo: Sequence[Check], ranks: int, gpus: int) -> Iterator[tuple[Check, Found]]:
    """Builds what is needed, runs every check, `gpus` at a time; yields in order."""
    built = libraries(dict.fromkeys(check.kernel for check in todo))
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for device in range(gpus):
        free.put(device)

    def one(check: Check) -> Found:
        library = built[check.kernel]
        if isinstance(library, BuildError):
            return Found("not built", library.log, "it does not build", ranks, 0.0)
        device = free.get()
        try:
            return examine(check, library, ranks, device)
        finally:
            free.put(device)

    with ThreadPoolExecutor(gpus) as pool:
        yield from zip(todo, pool.map(one, todo), strict=True)


def main(argv: list[str] | None = None) -> int:
    """Runs the command; exit code 1 if anything was found, 2 if the tool is missing."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu.sanitizer", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--gpus", type=int, default=1, help="how many GPUs to use at a time")
    parser.add_argument("--seconds", type=float, default=0.0, help="for all; 0: without an end")
    options = parser.parse_args(argv)
    if sanitizer() is None:
        print("there is no compute-sanitizer: install the CUDA toolkit and put it on the PATH")
        return 2
    todo = checks(options.names, options.tools.split(","), options.shapes.split(","))
    budget.start(options.seconds)
    clean = 0
    for check, found in examine_all(todo, options.ranks, options.gpus):
        print(line(check, found), flush=True)
        clean += found.clean
    print(f"{clean} of {len(todo)} clean")
    return 0 if clean == len(todo) else 1


if __name__ == "__main__":
    sys.exit(main())
