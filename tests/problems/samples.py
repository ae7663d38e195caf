"""Problems, calls and mutants that several tests use."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.contract import (
    Costs,
    Dims,
    OutputSpec,
    Problem,
    Shape,
    Tensors,
    Tolerance,
    bench,
    check,
)
from problems.hosting import InProcessHost, Materialized
from problems.registry import get

SEED = 7


def example_file(folder: Path) -> Path:
    """The problem of docs/problems.md as a file."""
    page = Path(__file__).parents[2] / "docs" / "problems.md"
    source = re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert source is not None
    path = folder / "example.py"
    path.write_text(source[1], encoding="utf-8")
    return path


def materialized(slug: str, world_size: int, shape: str = "tiny", seed: int = SEED) -> Materialized:
    """One call of a catalogue problem."""
    return InProcessHost(get(slug)).materialize(shape, world_size, seed)


def copied(outputs: list[Tensors]) -> list[Tensors]:
    """Outputs that a test may spoil."""
    return [{name: tensor.clone() for name, tensor in rank.items()} for rank in outputs]


class Sample(Problem):
    """An all-reduce whose reference is any function of (group, x), to be run on small tensors."""

    slug = "sample"
    title = "Sample"
    category = "Test"
    statement = "y is what the function says."
    input_names: tuple[str, ...] = ("x",)
    output_names = ("y",)
    tolerance: Tolerance = "T1"
    shapes: tuple[Shape, ...] = (
        check("tiny", M=8, N=12), check("odd", M=5, N=7), bench(M=1024, N=1024),
    )  # fmt: skip

    def __init__(self, function: Callable[[Any, Tensor], Tensor] | None = None) -> None:
        self.function = function if function is not None else all_reduced

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"x": self.spec(dims["M"], dims["N"])}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"y": self.spec(dims["M"], dims["N"])}

    def reference(self, group: dist.ProcessGroup, *args: Any, **inputs: Any) -> Tensors:
        return {"y": self.function(group, inputs["x"])}

    def golden(self, inputs: Any) -> list[Tensors]:
        total = torch.stack([rank["x"].double() for rank in inputs]).sum(0)
        return [{"y": total} for _ in inputs]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        size = dims["M"] * dims["N"]
        return Costs(size, 2 * size, 4 * size, BaselineWork(None, "all_reduce", 2 * size))


def all_reduced(group: dist.ProcessGroup, x: Tensor) -> Tensor:
    """The right answer of `Sample`."""
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y
