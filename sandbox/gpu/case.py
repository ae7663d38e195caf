"""One shape on one rank, in a worker: inputs, expectation, poison, verdict on what came out.

The expectation is never in memory that a runner can map: inputs are kept a second time, and
reference and golden are computed from that copy.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from problems.answers.compare import Checker
from problems.answers.exact import golden_of
from problems.answers.tolerance import Rule
from problems.contract import Dims, OutputSpec, Problem, Tensors
from problems.description import dtype_name
from problems.scales import exponent, scaled, span_of
from sandbox.gpu.arena import GUARD, POISON, Spec, lay_out, specs_to_json
from sandbox.gpu.memory import allocate, view


def specs_of(specs: Mapping[str, OutputSpec]) -> dict[str, Spec]:
    """A problem's specs as an arena takes them."""
    return {name: Spec(tuple(s.shape), dtype_name(s.dtype)) for name, s in specs.items()}


class Case:
    """The tensors of `sets` launches of one shape on one rank."""

    def __init__(
        self,
        problem: Problem,
        dims: Dims,
        group: dist.ProcessGroup,
        device: torch.device,
        sets: int,
    ) -> None:
        self.problem, self.dims, self.group, self.device = problem, dims, group, device
        self.rank, self.world = group.rank(), group.size()
        inputs = specs_of(problem.input_specs(dims, self.world))
        outputs = specs_of(problem.output_specs(dims, self.world))
        self.arena = lay_out(inputs, outputs, sets)
        self.layout = {
            "inputs": specs_to_json(inputs),
            "outputs": specs_to_json(outputs),
            "nbytes": self.arena.nbytes,
        }
        self.block = allocate(device, self.arena.nbytes)
        self.block.bytes.fill_(GUARD)
        self._views = [
            {name: view(self.block.bytes, place) for name, place in places.items()}
            for places in self.arena.sets
        ]
        self.inputs: list[Tensors] = []
        self._references: list[Tensors] = []
        self._goldens: list[Tensors] = []
        self._rules: list[dict[str, Rule]] = []
        self._first: dict[tuple[int, str], Tensor] = {}

    def fill(self, seeds: Sequence[int], on_device: bool) -> None:
        """Makes the inputs of every set and what must come out. All ranks call it together."""
        for seed in seeds:
            everyone = [self._make(rank, seed, on_device) for rank in range(self.world)]
            own = everyone[self.rank]
            golden = {n: t.clone() for n, t in self._golden(everyone)[self.rank].items()}
            self.inputs.append({name: tensor.clone() for name, tensor in own.items()})
            with torch.no_grad():
                reference = self.problem.reference(self.group, **own)
            self._goldens.append(golden)
            self._references.append({n: reference[n].clone() for n in self.problem.output_names})
            self._rules.append(
                {
                    name: Rule(self.problem.tolerance, golden[name], reference[name])
                    for name in self.problem.output_names
                }
            )

    def poison(self) -> None:
        """Restores every input and fills every output with NaN; returns when that is done."""
        for number, places in enumerate(self.arena.sets):
            for name in self.problem.input_names:
                self._views[number][name].copy_(self.inputs[number][name])
            for name in self.problem.output_names:
                place = places[name]
                self.block.bytes[place.offset : place.offset + place.nbytes].fill_(POISON)
        self.synchronize()

    def withhold(self, number: int, keeper: int) -> None:
        """Moves the inputs of a set to the place of another's, and leaves poison in their own."""
        for name in self.problem.input_names:
            self._views[keeper][name].copy_(self.inputs[number][name])
            place = self.arena.sets[number][name]
            self.block.bytes[place.offset : place.offset + place.nbytes].fill_(POISON)
        self.synchronize()

    def poisoned(self) -> bool:
        """Whether every output is still as `poison` left it."""
        return all(
            bool((self.block.bytes[p.offset : p.offset + p.nbytes] == POISON).all())
            for places in self.arena.sets
            for p in (places[name] for name in self.problem.output_names)
        )

    def verify(self, sets: Sequence[int], *, remember: bool = False) -> dict[str, Any]:
        """Compares outputs, inputs and guards of the sets.

        wrong: [[set, output]]; errors: the largest by output; changed: [[set, input]]; guards: byte
        offsets that were overwritten; differs: sets whose bits differ from those first remembered.
        """
        wrong: list[list[Any]] = []
        changed: list[list[Any]] = []
        differs: set[int] = set()
        errors: dict[str, list[float]] = {}
        for number in sets:
            views = self._views[number]
            for name in self.problem.output_names:
                result = views[name].contiguous()
                found = self._rules[number][name].errors(result)
                if not found.ok:
                    wrong.append([number, name])
                known = errors.get(name)
                if known is None or not found.max_error <= known[0]:
                    errors[name] = [found.max_error, found.max_limit]
                if remember and self._is_new(number, name, result):
                    differs.add(number)
            for name in set(self.problem.input_names) - self.problem.mutates:
                if not torch.equal(views[name], self.inputs[number][name]):
                    changed.append([number, name])
        return {
            "wrong": wrong,
            "errors": {n: [_finite(e), _finite(limit)] for n, (e, limit) in errors.items()},
            "changed": changed,
            "guards": self._broken_guards(),
            "differs": sorted(differs),
        }

    def outputs(self, number: int) -> Tensors:
        """The outputs of a set as they are, on the CPU."""
        return {n: self._views[number][n].cpu().contiguous() for n in self.problem.output_names}

    def export_outputs(self, number: int) -> tuple[dict[str, Any], list[int]]:
        """The outputs of a set as bytes in files: their names in order, and the descriptors."""
        names, files = [], []
        for name, tensor in self.outputs(number).items():
            file = os.memfd_create("output")
            data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
            while data:
                data = data[os.write(file, data) :]
            names.append(name)
            files.append(file)
        return {"names": names}, files

    def diagnose(self, number: int) -> dict[str, Any]:
        """What is wrong with the outputs of a set on this rank, in words; slow."""
        golden, reference = (
            {name: tensor.cpu() for name, tensor in made[number].items()}
            for made in (self._goldens, self._references)
        )
        checker = Checker(self.problem, [golden], [reference], world_size=self.world)
        found = checker.compare([self.outputs(number)]).to_json()
        for finding in found["findings"]:
            finding["rank"] = self.rank
        text = json.dumps(found)
        return {"comparison": found if len(text) < 1 << 19 else {"summary": found["summary"]}}

    def synchronize(self) -> None:
        """Returns when the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Gives the memory back."""
        self._views.clear()
        self.block.close()

    def _is_new(self, number: int, name: str, result: Tensor) -> bool:
        first = self._first.setdefault((number, name), result)
        if first is result:
            self._first[number, name] = result.clone()
            return False
        size = result.element_size()
        kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
        return not torch.equal(first.view(kind), result.view(kind))

    def _broken_guards(self) -> list[int]:
        regions = list(self.arena.guards())
        memory = self.block.bytes
        if not bool((torch.cat([memory[a:b] for a, b in regions]) != GUARD).any()):
            return []
        return [a + int((memory[a:b] != GUARD).int().argmax()) for a, b in regions
                if bool((memory[a:b] != GUARD).any())][:16]  # fmt: skip

    def _golden(self, everyone: Sequence[Tensors]) -> list[Tensors]:
        """On the device if the problem's code can, else on the CPU."""
        if self.device.type == "cuda":
            try:
                return golden_of(self.problem, everyone)
            except Exception:  # noqa: BLE001 - code that names no device; the CPU will tell
                torch.cuda.synchronize(self.device)
        on_cpu = [{name: tensor.cpu() for name, tensor in rank.items()} for rank in everyone]
        return [
            {name: tensor.to(self.device) for name, tensor in rank.items()}
            for rank in golden_of(self.problem, on_cpu)
        ]

    def _make(self, rank: int, seed: int, on_device: bool) -> Tensors:
        if on_device and self.device.type == "cuda" and _draws_normally(self.problem):
            made = device_inputs(self.problem, rank, self.world, seed, self.dims, self.device)
        else:
            drawn = self.problem.make_inputs(rank, self.world, seed, self.dims)
            made = {name: tensor.to(self.device) for name, tensor in drawn.items()}
        # As `InProcessHost` does; also where launches are timed, so that no kernel can tell.
        return scaled(made, exponent(span_of(self.problem, self.dims, self.world), seed))


def device_inputs(
    problem: Problem, rank: int, world: int, seed: int, dims: Dims, device: torch.device
) -> Tensors:
    """Inputs as `Problem.make_inputs` makes them, but from the device's generator: the same values
    on every GPU of a kind, other ones than on the CPU."""
    made = {}
    for name, spec in problem.input_specs(dims, world).items():
        source = "all" if name in problem.replicated else str(rank)
        key = f"{problem.slug}/{name}/{source}/{seed}".encode()
        number = int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1
        generator = torch.Generator(device).manual_seed(number)
        values = torch.randn(spec.shape, generator=generator, device=device)
        made[name] = values.mul_(problem.input_std(name, dims, world)).to(spec.dtype)
    return made


def _draws_normally(problem: Problem) -> bool:
    """Whether the problem leaves the making of inputs to `Problem`."""
    kind = type(problem)
    return all(
        getattr(kind, name) is getattr(Problem, name)
        for name in ("make_inputs", "draw", "generator")
    )


def _finite(value: float) -> float:
    """JSON has no NaN or infinity: -1 stands for both."""
    return value if abs(value) < float("inf") else -1.0
