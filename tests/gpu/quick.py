"""`python3 -m tests.gpu.quick [NAME...]`: every shipped kernel once on the GPUs, a line for each.

Builds all of them in parallel, then runs each at its small, ragged and default shapes in a process
of its own with a deadline, so that one that hangs does not stop the rest. NAMEs choose kernels by a
part of the problem's or the kernel's name. Exit code 1 if any is not right.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pk_runtime.compiler import BuildError
from tests.gpu import children
from tests.gpu.kernels import EXAMPLES, Kernel, all_kernels, libraries, world

SHAPES = ("tiny", "odd", "default")
READY_AT_ONCE = 8


def examine(
    kernel: Kernel, library: Path, shapes: tuple[str, ...], world: int, deadline_s: float
) -> dict[str, str]:
    """What is wrong at each shape, else ""; after a shape that ends its child comes a new child."""
    found: dict[str, str] = {}
    while rest := [shape for shape in shapes if shape not in found]:
        arguments = {"slug": kernel.slug, "library": str(library), "shapes": rest, "seeds": 2}
        child = children.run("check", {**arguments, "world": world}, deadline_s=deadline_s)
        found |= {event["shape"]: event["wrong"] for event in child.of("shape")}
        if late := [shape for shape in rest if shape not in found]:
            found[late[0]] = child.trouble or "no result"
            if not child.of("ready"):
                return found | dict.fromkeys(late, child.trouble)
    return found


def line(kernel: Kernel, found: dict[str, str]) -> str:
    """The kernel's line, and one more for each thing that is wrong."""
    words = "  ".join(f"{shape} {'OK' if not text else 'FAILED'}" for shape, text in found.items())
    details = [f"    {shape}: {text}" for shape, text in found.items() if text]
    return "\n".join([f"{kernel!s:28} {kernel.name:26} {words}", *details])


def main(argv: list[str] | None = None) -> int:
    """Runs the command; the number of kernels that are not right decides the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu.quick", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--world", type=int, default=world())
    parser.add_argument("--deadline", type=float, default=30.0, metavar="SECONDS")
    options = parser.parse_args(argv)
    shapes = tuple(options.shapes.split(","))
    kernels = [
        kernel
        for kernel in (*all_kernels(), *EXAMPLES)
        if not options.names or any(n in f"{kernel} {kernel.name}" for n in options.names)
    ]
    started = time.monotonic()
    built = libraries(kernels)
    print(f"{len(kernels)} kernels built in {time.monotonic() - started:.0f} s", flush=True)

    def one(kernel: Kernel) -> bool:
        library = built[kernel]
        if isinstance(library, BuildError):
            print(f"{kernel!s:28} {kernel.name:26} does not build\n{library.log}", flush=True)
            return False
        known = {shape.name for shape in kernel.problem.shapes}
        chosen = tuple(shape for shape in shapes if shape in known)
        found = examine(kernel, library, chosen, options.world, options.deadline)
        print(line(kernel, found), flush=True)
        return not any(found.values())

    with ThreadPoolExecutor(READY_AT_ONCE) as pool:
        right = list(pool.map(one, kernels))
    print(f"{sum(right)} of {len(right)} right, {time.monotonic() - started:.0f} s", flush=True)
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
