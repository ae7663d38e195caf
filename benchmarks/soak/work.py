"""What is evaluated: shipped kernels, broken ones, and hostile kernels and problem files."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

from pk_runtime.candidate import Candidate
from pk_runtime.kernels import shipped, shipped_kernel
from problems.contract import Problem
from problems.registry import catalogue, get
from sandbox.problem_host import CustomProblem

REFUSED = "problem refused"  # how the judge answers a problem file that is at fault


@dataclass(frozen=True)
class Work:
    """One evaluation and the answers that are right for it."""

    name: str
    candidate: Candidate
    problem: Problem | CustomProblem
    expected: tuple[str, ...]

    @property
    def shapes(self) -> tuple[str, ...] | None:
        """The shape to time: the smallest, because it is not times that are looked for."""
        if isinstance(self.problem, CustomProblem):
            return None
        benches = [shape for shape in self.problem.shapes if shape.kind == "bench"]
        return (min(benches, key=lambda shape: math.prod(shape.dims.values())).name,)


def _edited(kernel: str, old: str, new: str) -> Candidate:
    source = shipped_kernel(kernel).source
    if old not in source:
        raise LookupError(f"{kernel} no longer contains {old!r}")
    return Candidate("pk", {"kernel.cu": source.replace(old, new, 1)})


_LOADER = "auto in = s.in.producer(self);"
_SIGNAL = "signal(self, g.ready, at.plane, at.row * g.cols() + at.col);"
_BOMB = (
    "template <int N> struct bomb { "
    "static constexpr int size = bomb<N - 1>::size + bomb<N - 2>::size; };"
    "\nconstexpr int boom = bomb<100000>::size;\nusing namespace pk;"
)
_SPIN = (
    "constexpr int spin(int n) { int s = 0; for (int i = 0; i < n; ++i) s += i % 7; return s; }\n"
    "constexpr int spun = spin(2000000000);\nusing namespace pk;"
)
_DEEP = (
    "PK_FN int deeper(int n) { volatile int room[4096]; room[n & 4095] = n; "
    "return n < 0 ? 0 : deeper(n + 1) + room[(n * 7) & 4095]; }\nusing namespace pk;"
)

# Kernels that harm, and what the judge must say of each. All edit GEMM + reduce-scatter.
_KERNELS = {
    "endless loop": (_LOADER, _LOADER + " for (;;) {}", ("timeout",)),
    "never signals": (_SIGNAL, ";", ("deadlock",)),
    "null pointer": (_LOADER, _LOADER + " *(volatile int*)nullptr = 1;", ("crashed", "rejected")),
    "division by zero": (
        _LOADER, _LOADER + " volatile int z = 0; if (1 / z) return;", ("crashed", "rejected"),
    ),
    "endless recursion": (
        "using namespace pk;", _DEEP, ("crashed", "rejected", "build_failed"),
    ),
    "template bomb": ("using namespace pk;", _BOMB, ("build_failed",)),
    "constexpr bomb": ("using namespace pk;", _SPIN, ("build_failed",)),
    "reads a file of the host": (
        "using namespace pk;", "#include </etc/passwd>\nusing namespace pk;", ("rejected",),
    ),
}  # fmt: skip

# Problem files that harm when they are loaded: arbitrary Python in the sandbox.
_FILES = {
    "fork bomb": "import os\nwhile True:\n    os.fork()\n",
    "memory hog": "kept = []\nwhile True:\n    kept.append(bytearray(1 << 28))\n",
    "disk fill": (
        "import os\nfor folder in ('.', '/tmp', '/dev/shm'):\n"
        "    with open(folder + '/fill', 'wb') as file:\n"
        "        while True:\n            file.write(bytes(1 << 24))\n"
    ),
    "many files": "for i in range(10**7):\n    open(f'/tmp/{i}', 'w').close()\n",
    "survivor": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        time.sleep(10000)\n    os._exit(0)\nraise SystemExit(3)\n"
    ),
    "output flood": "while True:\n    print('x' * (1 << 20))\n",
    "kills everything it sees": "import os\nos.kill(-1, 9)\n",
}


def hostile() -> Iterator[Work]:
    """The hostile evaluations, over and over."""
    rs, kernel = get("gemm_reducescatter"), shipped_kernel("gemm_reducescatter")
    works = [
        Work(name, _edited("gemm_reducescatter", old, new), rs, expected)
        for name, (old, new, expected) in _KERNELS.items()
    ] + [
        Work(f"problem file: {name}", kernel, CustomProblem(text), (REFUSED,))
        for name, text in _FILES.items()
    ]
    return cycle(works)


def honest() -> Iterator[Work]:
    """Every shipped kernel, over and over."""
    return cycle(
        Work(f"{problem.slug} {number}", candidate, problem, ("correct",))
        for problem in catalogue()
        for number, candidate in enumerate(shipped(problem.slug))
    )


def stream(count: int, hostile_every: int) -> Iterator[Work]:
    """`count` evaluations, one in `hostile_every` hostile."""
    good, bad = honest(), hostile()
    for number in range(count):
        yield next(bad) if number % hostile_every == hostile_every - 1 else next(good)
