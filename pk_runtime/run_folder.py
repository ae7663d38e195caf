"""The folder of one run: what a program of ours reads there, and what it leaves.

Programs are not trusted: whatever is read back is a regular file of a bounded size.
"""

import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

DTYPE_WORDS = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int32: "i32",
}

RankTensors = dict[str, torch.Tensor]


class SimulatorError(RuntimeError):
    """The simulator could not be asked: unsupported dtype, or its directory is unusable."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape per rank and dtype of one tensor of the problem."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(name: str, tensor: torch.Tensor) -> "TensorSpec":
        """The spec of a tensor."""
        return TensorSpec(name, tuple(tensor.shape), tensor.dtype)


@contextmanager
def run_folder(workspace: Path, prefix: str) -> Iterator[Path]:
    """A fresh folder in `workspace`, removed at the end."""
    workspace.mkdir(parents=True, exist_ok=True)
    where = Path(tempfile.mkdtemp(prefix=prefix, dir=workspace))
    where.chmod(0o777)  # an isolating executor may run the program as another user
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)


def specs_of(launches: Sequence[Sequence[RankTensors]]) -> list[TensorSpec]:
    """The specs of the inputs of `launches[launch][rank][name]`, which all have the same."""
    return [TensorSpec.of(name, tensor) for name, tensor in launches[0][0].items()]


def tensor_lines(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Iterator[str]:
    """The lines of a request that name the tensors; SimulatorError for an unknown dtype."""
    for direction, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            word = DTYPE_WORDS.get(spec.dtype)
            if word is None:
                known = ", ".join(DTYPE_WORDS.values())
                raise SimulatorError(
                    f"tensor {spec.name!r} is {spec.dtype}; the simulator has {known}"
                )
            yield f"{direction} {spec.name} {word} {' '.join(map(str, spec.shape))}"


def write_request(where: Path, lines: Sequence[str]) -> None:
    """Writes what the program is asked to do."""
    (where / "request.txt").write_text("\n".join(lines) + "\n")


def write_inputs(where: Path, launches: Sequence[Sequence[RankTensors]]) -> None:
    """Writes the inputs of every launch and rank."""
    for number, ranks in enumerate(launches):
        for rank, tensors in enumerate(ranks):
            for name, tensor in tensors.items():
                data = tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()
                (where / f"in.{number}.{rank}.{name}.bin").write_bytes(data)


def read_untrusted(path: Path, limit: int) -> bytes:
    """A regular file of at most `limit` bytes; links and devices are refused.

    Raises OSError or ValueError.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        size = os.fstat(handle).st_size
        if not path.is_file() or size > limit:
            raise ValueError(f"{path.name} is not a regular file of at most {limit} bytes")
        return file.read(limit + 1)


def read_outputs(
    where: Path, stem: str, launches: int, world_size: int, outputs: Sequence[TensorSpec]
) -> list[list[RankTensors]]:
    """`outputs[launch][rank][name]` as the program left them.

    Raises OSError or ValueError if one is absent or of another size.
    """
    return [
        [
            {spec.name: _output(where, f"{stem}.{launch}.{rank}", rank, spec) for spec in outputs}
            for rank in range(world_size)
        ]
        for launch in range(launches)
    ]


def _output(where: Path, stem: str, rank: int, spec: TensorSpec) -> torch.Tensor:
    size = math.prod(spec.shape) * spec.dtype.itemsize
    data = read_untrusted(where / f"{stem}.{spec.name}.bin", size)
    if len(data) != size:
        raise ValueError(f"output {spec.name!r} of rank {rank} has {len(data)} of {size} bytes")
    return torch.frombuffer(bytearray(data), dtype=spec.dtype).reshape(spec.shape)
