"""Running this very Python interpreter inside a sandbox, wherever it is installed."""

import site
import sys
import sysconfig
from functools import cache
from pathlib import Path

_SYSTEM = Path("/usr")


@cache
def interpreter_paths() -> tuple[Path, ...]:
    """What must be readable for `sys.executable` to start with its installed packages.

    The folders of the interpreter, of its standard library and of its environment, without those
    that every sandbox has anyway and without folders inside one another.
    """
    named = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    named += [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    named += site.getsitepackages()
    found = {Path(name) for name in named if Path(name).exists()}
    found |= {path.resolve() for path in found} | _links(Path(sys.executable))
    outside = {path for path in found if not path.is_relative_to(_SYSTEM)}
    return tuple(sorted(path for path in outside if not outside & set(path.parents)))


def _links(executable: Path) -> set[Path]:
    """The executable and each step of its chain of symbolic links."""
    chain: set[Path] = set()
    while executable not in chain:
        chain.add(executable)
        if executable.is_symlink():
            executable = executable.parent / executable.readlink()
    return chain
