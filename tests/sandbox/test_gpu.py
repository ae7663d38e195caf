"""What a sandbox must see of a machine with GPUs, and the check of it, on a driver that is a fake.

The real driver is tried by `python3 -m sandbox.isolation.gpu_check` on a machine that has one.
"""

import os
import subprocess
from pathlib import Path

import pytest

from sandbox.isolation import gpu, gpu_check

NODES = (Path("/dev/tty"), Path("/dev/ptmx"))  # they stand for GPU 0 and GPU 1: see fake_driver.c
SOURCE = Path(__file__).with_name("fake_driver.c")


@pytest.fixture
def fake_driver(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver's library in a folder that no sandbox sees by itself, and two devices."""
    library = folder / "driver" / gpu.DRIVER
    library.parent.mkdir()
    subprocess.run(
        ["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE],
        check=True,
    )
    monkeypatch.setattr(gpu, "driver_library", lambda: library)
    monkeypatch.setattr(gpu, "gpu_devices", lambda count: NODES[:count])
    monkeypatch.setattr(gpu, "count_gpus", lambda: len(NODES))
    return library


def test_devices_of_the_first_gpus(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools",
                 "nvidia-caps", "null"):  # fmt: skip
        (tmp_path / name).touch()
    names = [path.name for path in gpu.gpu_devices(2, tmp_path)]
    assert names == ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia2"]
    assert [path.name for path in gpu.gpu_devices(3, tmp_path)][-1] == "nvidia10"
    assert gpu.count_gpus(tmp_path) == 3


def test_missing_devices_are_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(gpu.NoGpu, match=r"2 GPUs are wanted and .* has 0.*use a machine"):
        gpu.gpu_devices(2, tmp_path)
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    with pytest.raises(gpu.NoGpu, match=r"nvidia-uvm is missing: .*nvidia-modprobe"):
        gpu.gpu_devices(2, tmp_path)


def test_paths_lead_to_the_driver(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "580").mkdir()
    (folder / "580" / gpu.DRIVER).touch()
    (folder / "current").symlink_to("580")
    library = folder / "current" / gpu.DRIVER
    monkeypatch.setattr(gpu, "driver_library", lambda: library)
    assert gpu.gpu_paths() == (folder / "580", folder / "current")
    assert gpu.gpu_environment() == {"LD_LIBRARY_PATH": str(folder / "current")}
    monkeypatch.setattr(gpu, "_loader_cache", lambda: (library,))
    assert gpu.gpu_environment() == {}
    monkeypatch.setattr(gpu, "driver_library", lambda: Path("/usr/lib64", gpu.DRIVER))
    assert gpu.gpu_paths() == ()  # every sandbox sees /usr
    monkeypatch.setattr(gpu, "driver_library", lambda: None)
    assert (gpu.gpu_paths(), gpu.gpu_environment()) == ((), {})


def test_the_loader_knows_the_c_library() -> None:
    assert any(path.name == "libc.so.6" and path.exists() for path in gpu._loader_cache())


def test_the_check_is_passed(fake_driver: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:7].strip() for line in lines[:-1]] == ["OK"] * (len(lines) - 1)
    assert lines[-1] == "all checks are OK"
    text = "\n".join(lines)
    assert "rank 0 in a sandbox: GPU 0 of 2, first fake" in text
    assert "rank 1 in a sandbox: GPU 1 of 2, second fake" in text
    assert "cuInit returned 100 CUDA_ERROR_NO_DEVICE" in text  # without devices, as it must be


def test_the_check_names_the_call_that_is_refused(
    fake_driver: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices that are not passed on: works outside, fails inside, and the search finds nothing."""
    monkeypatch.setattr(gpu, "gpu_devices", lambda count: (Path("/dev/zero"),) * (count > 0))
    monkeypatch.setattr(gpu, "count_gpus", lambda: 1)
    assert gpu_check.main([]) == 1
    text = capsys.readouterr().out
    assert "OK      outside the sandbox" in text
    refused = next(line for line in text.splitlines() if "rank 0 in a sandbox" in line)
    assert refused.startswith("FAILED")
    assert "cuInit returned 100 CUDA_ERROR_NO_DEVICE" in refused
    assert "/dev/nvidiactl: ENOENT" in refused
    assert "FAILED  search: with all of these" in text
    assert text.endswith("checks FAILED\n")


def test_the_search_finds_the_restriction(
    fake_driver: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that was forgotten in the list is found by giving all of them."""
    monkeypatch.setattr(gpu, "gpu_devices", lambda count: (Path("/dev/zero"),) * (count > 0))
    monkeypatch.setattr(gpu, "count_gpus", lambda: 1)
    monkeypatch.setattr(gpu_check, "driver_nodes", lambda: [*NODES])
    assert gpu_check.main([]) == 1
    text = capsys.readouterr().out
    assert "OK      search: with every device node of the driver" in text
    assert "FAILED  search: without the system call filter" in text


def test_a_machine_without_gpus_fails_the_check_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpu.count_gpus():
        pytest.skip("this machine has GPUs")
    monkeypatch.setattr(gpu_check, "hostile", lambda executor: "left out")
    assert gpu_check.main([]) == 1
    assert "1 GPUs are wanted" in capsys.readouterr().out


def test_descriptors_do_not_leak(fake_driver: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    gpu_check.main(["2"])
    assert set(os.listdir("/proc/self/fd")) == before
