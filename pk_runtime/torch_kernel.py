"""A bundle's kernel as a function on tensors: build once, call with one tensor per rank."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.execution import Executor, LocalExecutor
from pk_runtime.interface import Interface, InterfaceError, TensorShape
from pk_runtime.simulator import Simulator, TensorSpec
from pk_runtime.target import Target, parse_target

WALL_S = 120.0

RankTensors = list[torch.Tensor]


class KernelError(RuntimeError):
    """A bundle's kernel cannot be built or called, or its run did not finish; says why."""


class TorchKernel:
    """The kernel of an unpacked bundle.

    `sources` maps the source files to their SHA-256: a changed file is refused. Build results go to
    `.build` in the bundle's folder. The kernel runs without isolation unless an executor that
    isolates is given: call only kernels whose source you would run.
    """

    def __init__(
        self, folder: Path, sources: Mapping[str, str], executor: Executor | None = None
    ) -> None:
        self._folder = folder.resolve()
        self._executor = executor or LocalExecutor()
        manifest = _read(self._folder / "manifest.json")
        try:
            self._manifest: dict[str, Any] = json.loads(manifest)
            self._target: Target = parse_target(self._manifest["target"])
            files = {
                name.removeprefix("source/"): _verified(self._folder / name, sha)
                for name, sha in sources.items()
            }
            self._candidate = Candidate.from_json(
                {
                    "language": self._manifest["language"],
                    "files": files,
                    "knobs": self._manifest["chosen_knobs"],
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise KernelError(f"{self._folder}: the bundle is not usable: {error}") from error
        if self._candidate.digest() != self._manifest.get("candidate"):
            raise KernelError(f"{self._folder}: manifest.json was changed: the knobs do not match")
        self._program: Path | None = None

    def __call__(
        self, *, outputs: Mapping[str, TensorShape] | None = None, **inputs: Sequence[torch.Tensor]
    ) -> RankTensors | dict[str, RankTensors]:
        """Runs the kernel once: `kernel(a=[one tensor per rank], b=[...])`.

        Returns one tensor per rank, or a dictionary of such lists if there are several outputs.
        `outputs` gives shape and dtype of each where the bundle has no interface that tells.
        Raises KernelError for a run that does not finish, InterfaceError for wrong shapes.
        """
        if self._target.backend != "sim":
            raise KernelError(
                f"a kernel for {self._target} runs on its GPUs, which this version cannot start "
                "from Python; judge it with `pkforge eval`"
            )
        world = self._world_size(inputs)
        shapes = dict(outputs) if outputs is not None else self._output_shapes(inputs, world)
        specs = [TensorSpec(name, shape, dtype) for name, (shape, dtype) in shapes.items()]
        simulator = Simulator(self._executor, self._folder / ".build" / "runs")
        ranks = [{name: tensors[r] for name, tensors in inputs.items()} for r in range(world)]
        run = simulator.functional(
            self._build(),
            launches=[ranks],
            outputs=specs,
            sheet=self._target.sheet,
            schedule_seed=0,
            wall_s=WALL_S,
        )
        if run.outcome != "finished":
            raise KernelError(f"{run.outcome}: {run.diagnosis.get('summary', 'no diagnosis')}")
        results = {s.name: [rank[s.name] for rank in run.outputs[0]] for s in specs}
        return results if len(results) > 1 else next(iter(results.values()))

    def _build(self) -> Path:
        if self._program is None:
            compiler = Compiler(self._folder / ".build" / "cache", self._executor)
            self._program = compiler.simulator(self._candidate)
        return self._program

    def _world_size(self, inputs: Mapping[str, Sequence[torch.Tensor]]) -> int:
        counts = {len(tensors) for tensors in inputs.values()}
        if len(counts) != 1 or 0 in counts:
            given = {name: len(tensors) for name, tensors in inputs.items()}
            raise InterfaceError(f"every input needs one tensor per rank; given are {given}")
        return counts.pop()

    def _output_shapes(
        self, inputs: Mapping[str, Sequence[torch.Tensor]], world: int
    ) -> dict[str, TensorShape]:
        if self._manifest.get("interface") is None:
            raise InterfaceError(
                'this bundle has no interface: pass outputs={"c": ((rows, cols), torch.bfloat16)}'
            )
        interface = Interface.from_json(self._manifest["interface"])
        solutions = []
        for rank in range(world):
            tensors = {name: given[rank] for name, given in inputs.items()}
            solutions.append(interface.solve({n: t.shape for n, t in tensors.items()}, world))
            for name, tensor in tensors.items():
                if tensor.dtype != interface.inputs[name].dtype:
                    wanted = interface.inputs[name].dtype
                    raise InterfaceError(
                        f"input {name!r} of rank {rank} is {tensor.dtype}, not {wanted}"
                    )
        if any(solution != solutions[0] for solution in solutions):
            raise InterfaceError("the ranks' tensors differ in shape")
        return interface.output_shapes(solutions[0])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KernelError(f"{path}: cannot be read: unpack the whole bundle") from error


def _verified(path: Path, sha256: str) -> str:
    data = _read(path)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise KernelError(f"{path}: was changed after the bundle was made; unpack the bundle again")
    return data.decode()
