"""Finding the tools, and what is said when one is missing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pk_runtime import toolchain
from pk_runtime.toolchain import ToolchainError, cuobjdump, gxx, nvcc, search_path


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for find in (gxx, nvcc, cuobjdump):
        find.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "_CUDA_FOLDERS", ())
    monkeypatch.setattr(toolchain, "_package_folders", lambda name: ())
    yield
    for find in (gxx, nvcc, cuobjdump):
        find.cache_clear()


def test_gxx_is_found_with_its_headers() -> None:
    tool = gxx()
    assert tool.path.is_file()
    assert "g++" in tool.version
    assert any((folder / "c++").is_dir() for folder in tool.headers)


@pytest.mark.usefixtures("needs_nvcc")
def test_nvcc_is_found_with_its_toolkit() -> None:
    tool = nvcc()
    assert tool.path.parent.parent == tool.root
    assert "release" in tool.version
    assert list(tool.root.rglob("cuda_bf16.h"))


@pytest.mark.usefixtures("nothing_installed")
def test_a_missing_tool_is_named_with_what_to_do() -> None:
    with pytest.raises(ToolchainError, match=r"no g\+\+: install it"):
        gxx()
    with pytest.raises(ToolchainError, match=r"no nvcc: install .* or use a sim: target"):
        nvcc()
    with pytest.raises(ToolchainError, match="no cuobjdump: install the triton wheel"):
        cuobjdump()


def test_a_tool_that_does_not_work_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    gxx.cache_clear()
    try:
        with pytest.raises(ToolchainError, match="does not work"):
            gxx()
    finally:
        gxx.cache_clear()


def test_the_search_path_has_each_folder_once() -> None:
    folders = search_path(gxx(), gxx()).split(":")
    assert len(folders) == len(set(folders))
    assert {"/usr/bin", "/bin"} <= set(folders)
