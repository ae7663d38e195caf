"""A bundle's kernel, unpacked and called on tensors."""

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pk_runtime.bundle import write_bundle
from pk_runtime.gpu.symmetric import SymmetricError
from pk_runtime.interface import InterfaceError
from pk_runtime.kernels import shipped_kernel
from pk_runtime.torch_kernel import KernelError

BF16 = torch.bfloat16


def manifest(**more: Any) -> dict[str, Any]:
    tensor = {"shape": ["M", "N"], "dtype": "bfloat16"}
    return {
        "problem": "allreduce",
        "target": "sim:h200x4",
        "verdict": {"status": "correct", "evidence": {"summary": ""}},
        "lineage": [],
        "interface": {
            "inputs": [{"name": "x", **tensor}],
            "outputs": [{"name": "y", **tensor}],
        },
    } | more


def unpacked(folder: Path, content: dict[str, Any]) -> Path:
    write_bundle(folder / "bundle.zip", shipped_kernel("allreduce_two_shot"), content)
    with zipfile.ZipFile(folder / "bundle.zip") as archive:
        archive.extractall(folder / "kernel")
    return folder / "kernel"


def load(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bundled_kernel", folder / "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unpacked(tmp_path, manifest())


def inputs(world: int = 2, rows: int = 64) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(7)
    return [torch.randint(-4, 5, (rows, 64), generator=draw).to(BF16) for _ in range(world)]


@pytest.mark.slow
def test_the_kernel_is_called_on_one_tensor_per_rank(folder: Path) -> None:
    kernel = load(folder)
    for world, rows in ((2, 64), (4, 128)):
        x = inputs(world, rows)
        found = kernel.allreduce(x=x)
        assert len(found) == world
        for y in found:
            torch.testing.assert_close(y, torch.stack(x).float().sum(0).to(BF16))


def test_wrong_tensors_are_refused_before_anything_is_built(folder: Path) -> None:
    kernel = load(folder)
    with pytest.raises(InterfaceError, match="one tensor per rank"):
        kernel.allreduce()
    with pytest.raises(InterfaceError, match="the inputs are x, not z"):
        kernel.allreduce(z=inputs())
    with pytest.raises(InterfaceError, match=r"is \[M, N\]"):
        kernel.allreduce(x=[t[0] for t in inputs()])
    with pytest.raises(InterfaceError, match=r"is torch\.float32, not torch\.bfloat16"):
        kernel.allreduce(x=[t.float() for t in inputs()])
    with pytest.raises(InterfaceError, match="differ in shape"):
        kernel.allreduce(x=[inputs()[0], inputs()[1][:32]])
    assert not (folder / ".build").exists()


def test_a_bundle_without_interface_asks_for_the_outputs(tmp_path: Path) -> None:
    kernel = load(unpacked(tmp_path, manifest(interface=None)))
    with pytest.raises(InterfaceError, match="pass outputs="):
        kernel.allreduce(x=inputs())


def test_a_changed_source_is_refused(folder: Path) -> None:
    path = folder / "source" / "kernel.cu"
    path.write_text(path.read_text() + " ")
    with pytest.raises(KernelError, match=r"kernel\.cu: was changed"):
        load(folder)


def test_changed_knobs_are_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"chosen_knobs": {}', '"chosen_knobs": {"a": 1}'))
    with pytest.raises(KernelError, match="the knobs do not match"):
        load(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "source" / "kernel.cu").unlink()
    with pytest.raises(KernelError, match="unpack the whole bundle"):
        load(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(KernelError, match=r"manifest\.json"):
        load(folder)


def test_on_gpus_every_rank_passes_its_own_tensor(tmp_path: Path) -> None:
    kernel = load(unpacked(tmp_path, manifest(target="cuda:h200x4")))
    with pytest.raises(InterfaceError, match="every rank's process passes its own tensor"):
        kernel.allreduce(x=inputs())
    assert "x=x" in str(kernel.__doc__)
    assert "init_process_group" in str(kernel.__doc__)


def test_in_the_simulator_one_process_passes_all(folder: Path) -> None:
    kernel = load(folder)
    with pytest.raises(InterfaceError, match="pass a list with one tensor per rank"):
        kernel.allreduce(x=inputs()[0])
    with pytest.raises(KernelError, match="there is no process group"):
        kernel.allreduce(x=inputs(), group=object())
    with pytest.raises(KernelError, match="is a simulator"):
        kernel.kernel.on()
    assert "x=[...]" in str(kernel.__doc__)


@pytest.mark.usefixtures("needs_nvcc")
def test_on_gpus_a_process_group_is_needed(tmp_path: Path) -> None:
    kernel = load(unpacked(tmp_path, manifest(target="cuda:h200x4")))
    with pytest.raises(SymmetricError, match="call init_process_group first"):
        kernel.allreduce(x=inputs()[0])


def test_on_gpus_too_a_bundle_without_interface_asks_for_the_outputs(tmp_path: Path) -> None:
    kernel = load(unpacked(tmp_path, manifest(target="cuda:h200x4", interface=None)))
    with pytest.raises(InterfaceError, match="pass outputs="):
        kernel.allreduce(x=inputs()[0])
