"""A bundle's kernel as a function on tensors: build once, call.

For a sim: target one process calls with one tensor per rank. For a cuda: target every rank's
process calls with its own tensors, on its GPU, under torch.distributed.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import BuildError, Compiler, ToolchainError
from pk_runtime.execution import Executor, LocalExecutor
from pk_runtime.gpu.group_kernel import GroupKernel
from pk_runtime.gpu.symmetric import heap_of
from pk_runtime.interface import Interface, InterfaceError, Tensors, TensorShape
from pk_runtime.simulator import Simulator, TensorSpec
from pk_runtime.target import Target, parse_target

WALL_S = 120.0

RankTensors = list[torch.Tensor]
Given = torch.Tensor | Sequence[torch.Tensor]


_NO_INTERFACE = 'this bundle has no interface: pass outputs={"c": ((rows, cols), torch.bfloat16)}'


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
        self._groups: dict[tuple[dist.ProcessGroup | None, str], GroupKernel] = {}

    def __call__(
        self,
        *,
        outputs: Mapping[str, TensorShape] | None = None,
        group: dist.ProcessGroup | None = None,
        **inputs: Given,
    ) -> Any:
        """Runs the kernel once.

        sim: targets: `kernel(a=[one tensor per rank], b=[...])` returns one tensor per rank, or a
        dictionary of such lists if there are several outputs. cuda: targets: every process of
        `group` (all, if left out) calls `kernel(a=tensor, b=tensor, group=group)` with its own
        tensors on its current device, and gets its own outputs; the kernel runs in the current
        stream. The first call with new shapes makes symmetric memory on all ranks together.

        `outputs` gives shape and dtype of each where the bundle has no interface that tells.
        Raises KernelError for a kernel that cannot be built or does not finish, InterfaceError for
        wrong shapes; on GPUs also LaunchError and SymmetricError.
        """
        if self._target.backend == "sim":
            if group is not None:
                raise KernelError(f"{self._target} is a simulator: there is no process group")
            return self._simulate(outputs, inputs)
        for name, tensor in inputs.items():
            if not isinstance(tensor, torch.Tensor):
                raise InterfaceError(
                    f"input {name!r}: on {self._target} every rank's process passes its own tensor"
                )
        tensors = {n: tensor for n, tensor in inputs.items() if isinstance(tensor, torch.Tensor)}
        interface = None
        if self._manifest.get("interface") is None:
            interface = _literal(tensors, outputs)
        made = self.on(group, interface)(**tensors)
        return made if len(made) > 1 else next(iter(made.values()))

    def on(
        self, group: dist.ProcessGroup | None = None, interface: Interface | None = None
    ) -> GroupKernel:
        """The kernel on one process group of GPUs, for `pk_runtime.gpu.operator` and for callers
        that give the outputs' memory. Collective at the first call. KernelError on sim: targets."""
        if self._target.backend != "cuda":
            raise KernelError(f"{self._target} is a simulator: call the kernel on lists of tensors")
        if interface is None:
            interface = self._interface()
        key = (group, json.dumps(interface.to_json()))
        if key not in self._groups:
            self._groups[key] = GroupKernel(
                *(self._library(), heap_of(group), interface),
                name=str(self._manifest["problem"]),
                identity=self._candidate.digest(),
            )
        return self._groups[key]

    def _simulate(
        self, outputs: Mapping[str, TensorShape] | None, given: Mapping[str, Given]
    ) -> RankTensors | dict[str, RankTensors]:
        inputs: dict[str, Sequence[torch.Tensor]] = {}
        for name, tensors in given.items():
            if isinstance(tensors, torch.Tensor):
                raise InterfaceError(f"input {name!r}: pass a list with one tensor per rank")
            inputs[name] = tensors
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

    def _compiler(self) -> Compiler:
        return Compiler(self._folder / ".build" / "cache", self._executor)

    def _library(self) -> Path:
        try:
            return self._compiler().library(self._candidate)
        except (BuildError, ToolchainError) as error:
            raise KernelError(f"the kernel cannot be built here: {error}") from error

    def _build(self) -> Path:
        if self._program is None:
            self._program = self._compiler().simulator(self._candidate)
        return self._program

    def _world_size(self, inputs: Mapping[str, Sequence[torch.Tensor]]) -> int:
        counts = {len(tensors) for tensors in inputs.values()}
        if len(counts) != 1 or 0 in counts:
            given = {name: len(tensors) for name, tensors in inputs.items()}
            raise InterfaceError(f"every input needs one tensor per rank; given are {given}")
        return counts.pop()

    def _interface(self) -> Interface:
        if self._manifest.get("interface") is None:
            raise InterfaceError(_NO_INTERFACE)
        return Interface.from_json(self._manifest["interface"])

    def _output_shapes(
        self, inputs: Mapping[str, Sequence[torch.Tensor]], world: int
    ) -> dict[str, TensorShape]:
        interface = self._interface()
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


def _literal(
    inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, TensorShape] | None
) -> Interface:
    """An interface of exactly these shapes, for a bundle that has none."""
    if outputs is None:
        raise InterfaceError(_NO_INTERFACE)
    return Interface(
        {name: Tensors(tuple(map(str, t.shape)), t.dtype) for name, t in inputs.items()},
        {name: Tensors(tuple(map(str, s)), dtype) for name, (s, dtype) in outputs.items()},
    )


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
