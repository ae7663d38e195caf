"""Finds the compilers and disassemblers on this machine."""

import functools
import importlib.util
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pk_runtime.execution import Command, Completed, Limits, LocalExecutor

_LIMITS = Limits(wall_s=30, memory_bytes=1 << 30)
_CUDA_FOLDERS = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda")


class ToolchainError(RuntimeError):
    """A tool is missing or does not work here. Never the candidate's fault."""


@dataclass(frozen=True)
class Tool:
    """A program, its version, the folder it lives in and the folders of its own headers."""

    path: Path
    version: str
    root: Path
    headers: tuple[Path, ...]


@functools.cache
def gxx() -> Tool:
    """The C++ compiler of the simulator; ToolchainError if there is none."""
    path = _find("g++")
    if path is None:
        raise ToolchainError("there is no g++: install it, e.g. `apt-get install g++`")
    prefix = path.parent.parent
    headers = tuple(
        dict.fromkeys(
            folder / sub
            for folder in (prefix, Path("/usr"))
            for sub in ("include", "lib/gcc", "lib64/gcc", "local/include")
        )
    )
    return Tool(path, _version(path, "--version"), prefix, headers)


@functools.cache
def nvcc() -> Tool:
    """The CUDA compiler; ToolchainError if there is none or it cannot be asked where it lives."""
    wheels = [f"{folder}/cu13/bin" for folder in _package_folders("nvidia")]
    path = _find("nvcc", *(f"{folder}/bin" for folder in _CUDA_FOLDERS), *wheels)
    if path is None:
        raise ToolchainError(
            "there is no nvcc: install the CUDA toolkit 13.0 and put nvcc on the PATH, "
            "or use a sim: target, which needs only g++"
        )
    # nvcc may be a wrapper script elsewhere; only its dry run says where the toolkit is.
    plan = _run(path, "--dryrun", "-x", "cu", "-E", "/dev/null").stderr.decode(errors="replace")
    home = re.search(r"_HERE_=(.+)", plan)
    if home is None:
        raise ToolchainError(f"{path} does not work: `nvcc --dryrun` names no toolkit folder")
    root = Path(home[1].strip()).parent
    headers = (root, root.resolve(), *gxx().headers)
    return Tool(Path(home[1].strip()) / "nvcc", _version(path, "--version"), root, headers)


@functools.cache
def cuobjdump() -> Tool:
    """The disassembler of cubins; ToolchainError if there is none."""
    wheels = [f"{folder}/backends/nvidia/bin" for folder in _package_folders("triton")]
    for folder in [*wheels, *(f"{folder}/bin" for folder in _CUDA_FOLDERS)]:
        path = Path(folder) / "cuobjdump"
        if path.is_file() and (path.parent / "nvdisasm").is_file():
            return Tool(path, _version(path, "--version"), path.parent, ())
    path_found = _find("cuobjdump")
    if path_found is None:
        raise ToolchainError(
            "there is no cuobjdump: install the triton wheel (`pip install triton`), "
            "which brings it, or the CUDA toolkit"
        )
    return Tool(path_found, _version(path_found, "--version"), path_found.parent, ())


def search_path(*tools: Tool) -> str:
    """A PATH with the folders of these tools and the system's."""
    folders = [str(tool.path.parent) for tool in tools] + ["/usr/bin", "/bin"]
    return os.pathsep.join(dict.fromkeys(folders))


def _package_folders(name: str) -> tuple[str, ...]:
    """Where a package is installed, without importing it: importing triton takes seconds."""
    spec = importlib.util.find_spec(name)
    return tuple(spec.submodule_search_locations or ()) if spec else ()


def _find(name: str, *folders: str) -> Path | None:
    found = shutil.which(name)
    if found is None and folders:
        found = shutil.which(name, path=os.pathsep.join(folders))
    return Path(found) if found else None


def _version(path: Path, option: str) -> str:
    text = _run(path, option).stdout.decode(errors="replace").strip()
    lines = [line for line in text.splitlines() if re.search(r"\d+\.\d+", line)]
    if not lines:
        raise ToolchainError(f"{path} does not work: `{path.name} {option}` names no version")
    # NVIDIA's tools print their copyright first.
    return next((line for line in lines if "release" in line), lines[0]).strip()


def _run(path: Path, *arguments: str) -> Completed:
    env = {"PATH": f"{path.parent}:/usr/bin:/bin", "LC_ALL": "C"}
    with tempfile.TemporaryDirectory() as workdir:
        command = Command((str(path), *arguments), Path(workdir), (), env, _LIMITS)
        return LocalExecutor().run(command)
