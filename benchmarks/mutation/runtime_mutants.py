"""How pk_runtime's own GPU headers are broken: the edits of runtime_mutants.toml."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from pk_runtime.kernels import shipped_kernel, shipped_names

SOURCES = Path(__file__).parent / "sources"


@dataclass(frozen=True)
class RuntimeMutant:
    """One edit of a header, and what must be said of a kernel that is compiled with it.

    `hazard` is a hazard of multi-GPU kernels that the edit brings back, as listed in
    docs/decisions/0010-headers-on-a-cpu.md; `header` a path below include/. `kernel` is a shipped
    kernel or a file of `sources/`; `dims` change its tiny shape. It must be flagged as one of
    `kinds` (of a finding, or an outcome), and a line of source that the report names must contain
    `place` (for an outcome: its summary must).
    """

    hazard: str
    what: str
    header: str
    old: str
    new: str
    kernel: str
    kinds: tuple[str, ...]
    place: str = ""
    knobs: dict[str, int] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    blocks: int = 1
    world: int = 2

    def header_text(self, original: str) -> str:
        """The header with the edit; ValueError if the place is no longer there exactly once."""
        if original.count(self.old) != 1:
            raise ValueError(f"{self.header} has {original.count(self.old)} times: {self.old!r}")
        return original.replace(self.old, self.new)


def source_of(kernel: str) -> str:
    """Source of a shipped kernel or of one in `sources/`."""
    if kernel in shipped_names():
        return shipped_kernel(kernel).source
    return (SOURCES / f"{kernel}.cu").read_text(encoding="utf-8")


def _read(path: Path) -> tuple[RuntimeMutant, ...]:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return tuple(RuntimeMutant(**{**t, "kinds": tuple(t["kinds"])}) for t in tables)


RUNTIME_MUTANTS = _read(Path(__file__).with_name("runtime_mutants.toml"))
