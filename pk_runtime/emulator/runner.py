"""Runs emulator programs: inputs in, outputs and findings out."""

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from pk_runtime.emulator.findings import Finding, findings_of
from pk_runtime.execution import Command, Executor, Limits
from pk_runtime.simulator import DTYPE_WORDS, RankTensors, TensorSpec

Outcome = Literal["finished", "race", "deadlock", "fault", "refused", "timeout"]

MEMORY_BYTES = 4 << 30
REPORT_BYTES = 4 << 20
_ENDED_BY = ("finished", "race", "deadlock", "fault", "refused")


@dataclass(frozen=True)
class Emulation:
    """How a run ended. `outputs[launch][rank][name]` are there if every launch was completed.

    `race`: it ran to its end, and `findings` are not empty. `deadlock` and `fault`: `summary` is
    the kernel's own record of who gave up or what was out of range, `waiting` who waits for what.
    """

    outcome: Outcome
    summary: str = ""
    findings: list[Finding] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[list[RankTensors]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.outcome}: {self.summary}" if self.summary else self.outcome]
        lines += [str(finding) for finding in self.findings]
        lines += [
            f"rank {w['rank']} block {w['block']} thread {w['thread']} waits for {w['for']}"
            for w in self.waiting
        ]
        return "\n".join(lines)


class Emulator:
    """Runs programs of `EmulatorBuilder`. `workspace` holds one fresh directory per run."""

    def __init__(self, executor: Executor, workspace: Path) -> None:
        self._executor = executor
        self._workspace = workspace

    def run(
        self,
        program: Path,
        *,
        launches: Sequence[Sequence[RankTensors]],
        outputs: Sequence[TensorSpec],
        blocks: int = 2,
        seed: int = 0,
        wall_s: float = 60.0,
    ) -> Emulation:
        """Runs `launches[launch][rank][name]` back to back on as many ranks, `blocks` blocks each.

        Seed 0 takes threads in turn and completes copies late; others take them in random order,
        and from 2 on one rank is slow. Each launch overwrites the inputs of the one before.
        """
        world = len(launches[0])
        request = [
            f"world {world}",
            f"launches {len(launches)}",
            f"blocks {blocks}",
            f"seed {seed}",
        ]
        inputs = [TensorSpec(n, tuple(t.shape), t.dtype) for n, t in launches[0][0].items()]
        for way, specs in (("input", inputs), ("output", outputs)):
            for spec in specs:
                sizes = " ".join(map(str, spec.shape))
                request.append(f"{way} {spec.name} {DTYPE_WORDS[spec.dtype]} {sizes}")
        with self._directory() as where:
            (where / "request.txt").write_text("\n".join(request) + "\n")
            for number, ranks in enumerate(launches):
                for rank, tensors in enumerate(ranks):
                    for name, tensor in tensors.items():
                        (where / f"in.{number}.{rank}.{name}.bin").write_bytes(_bytes(tensor))
            limits = Limits(wall_s, MEMORY_BYTES, processes=4)
            done = self._executor.run(Command((str(program),), where, (program,), {}, limits))
            if done.exceeded == "wall":
                return Emulation("timeout", f"still running after {wall_s:g} s; it was stopped")
            try:
                report = json.loads(_read(where / "report.json", REPORT_BYTES))
                findings = findings_of(report, program, self._executor)
                outcome, summary = report["outcome"], str(report["summary"])
                waiting = [dict(w) for w in report["waiting"]]
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                return Emulation("fault", f"the program left no usable report: {error!r}")
            if outcome not in _ENDED_BY:
                return Emulation("fault", "the report has an outcome that is not known")
            found: list[list[RankTensors]] = []
            if outcome in ("finished", "race"):
                try:
                    found = [
                        [{s.name: _output(where, i, r, s) for s in outputs} for r in range(world)]
                        for i in range(len(launches))
                    ]
                except (OSError, ValueError) as error:
                    return Emulation("fault", f"an output is unusable: {error}", findings)
        return Emulation(outcome, summary, findings, waiting, found)

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        self._workspace.mkdir(parents=True, exist_ok=True)
        where = Path(tempfile.mkdtemp(prefix="emulate-", dir=self._workspace))
        where.chmod(0o777)  # an isolating executor may run the program as another user
        try:
            yield where
        finally:
            shutil.rmtree(where, ignore_errors=True)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()


def _read(path: Path, limit: int) -> bytes:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > limit:
        raise ValueError(f"{path.name} is not a regular file of at most {limit} bytes")
    return path.read_bytes()


def _output(where: Path, launch: int, rank: int, spec: TensorSpec) -> torch.Tensor:
    size = math.prod(spec.shape) * spec.dtype.itemsize
    data = _read(where / f"out.{launch}.{rank}.{spec.name}.bin", size)
    if len(data) != size:
        raise ValueError(f"output {spec.name!r} of rank {rank} has {len(data)} of {size} bytes")
    return torch.frombuffer(bytearray(data), dtype=spec.dtype).reshape(spec.shape)
