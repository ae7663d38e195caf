"""Many launches in a row on skewed ranks, every output of each compared on its GPU."""

import random
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pk_runtime.gpu.one_process import OneProcess
    from tests.gpu.checks import Case

DELAY_CYCLES = 150_000  # of the SM clock: about 80 us, several times what a small launch takes
CHANGED = 0.5  # share of the launches with new inputs and poisoned outputs
DELAYED = 0.3  # share of the ranks that are late
_WORDS = {2: torch.int16, 4: torch.int32}


def poison(out: torch.Tensor) -> None:
    """NaN, or the largest integer, everywhere."""
    out.fill_(float("nan") if out.dtype.is_floating_point else torch.iinfo(out.dtype).max)


def back_to_back(case: "Case", library: str, launches: int) -> str:
    """Launches with nothing between them, which then must have left the right bits."""
    kernel = case.kernel(library)
    first = case.run(kernel, 0)
    for _ in range(launches):
        kernel.launch()
    kernel.synchronize()
    changed = sum(
        int(differing(kernel.tensors[name][rank].cpu(), value.cpu()))
        for rank, values in enumerate(first)
        for name, value in values.items()
    )
    return f"{changed} elements changed after {launches} launches" if changed else ""


def skewed(case: "Case", library: str, launches: int) -> str:
    """Launches with late ranks and changing inputs; every output of each is compared bit by bit.

    The outputs of each seed are those of a lone launch, which `case` has found right. Nothing
    here waits for the GPUs until the end.
    """
    kernel = case.kernel(library)
    seeds = tuple(case.inputs)
    expected = {seed: _on_gpus(kernel, case.run(kernel, seed)) for seed in seeds}
    for seed in seeds:
        if wrong := case.wrong(case.run(kernel, seed), seed):
            return wrong
    inputs = {seed: _on_gpus(kernel, case.inputs[seed]) for seed in seeds}
    names = case.problem.output_names
    bad = [
        torch.zeros(launches, dtype=torch.int64, device=kernel.tensors[names[0]][rank].device)
        for rank in range(case.world)
    ]
    chance = random.Random(case.shape)
    seed = seeds[-1]
    for launch in range(launches):
        changed = chance.random() < CHANGED
        seed = chance.choice(seeds) if changed else seed
        for rank in range(case.world):
            with torch.cuda.device(bad[rank].device):
                if changed:
                    _renew(case, kernel, rank, inputs[seed][rank])
                if chance.random() < DELAYED:
                    sleep(chance.randrange(DELAY_CYCLES))
        kernel.launch()
        for rank in range(case.world):
            with torch.cuda.device(bad[rank].device):
                for name in names:
                    got, want = kernel.tensors[name][rank], expected[seed][rank][name]
                    bad[rank][launch] += differing(got, want)
    kernel.synchronize()
    return _summary(bad, launches)


def sleep(cycles: int) -> None:
    """A kernel that does nothing for so many cycles, in the current stream."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def _summary(bad: list[torch.Tensor], launches: int) -> str:
    counts = torch.stack([b.cpu() for b in bad])
    wrong = counts.any(0).nonzero().flatten().tolist()
    if not wrong:
        return ""
    ranks = counts[:, wrong[0]].nonzero().flatten().tolist()
    return (
        f"{len(wrong)} of {launches} launches differ from a lone launch, first launch {wrong[0]} "
        f"on rank {', '.join(map(str, ranks))}: {int(counts[:, wrong[0]].sum())} elements"
    )


def _renew(case: "Case", kernel: "OneProcess", rank: int, inputs: dict[str, torch.Tensor]) -> None:
    for name, value in inputs.items():
        kernel.tensors[name][rank].copy_(value)
    for name in case.problem.output_names:
        poison(kernel.tensors[name][rank])


def _on_gpus(
    kernel: "OneProcess", ranks: list[dict[str, torch.Tensor]]
) -> list[dict[str, torch.Tensor]]:
    return [
        {name: value.to(kernel.tensors[name][rank].device) for name, value in tensors.items()}
        for rank, tensors in enumerate(ranks)
    ]


def differing(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """How many elements differ in their bits, as a number on their device."""
    return (_bits(left) != _bits(right)).sum()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_WORDS[tensor.element_size()])
