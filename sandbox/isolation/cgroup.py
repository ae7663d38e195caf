"""Limits on the memory and the number of processes of a whole tree, by control groups.

The layout differs from host to host (version 1, version 2, both, delegated or not), so every
place is tried and believed only when a limit could really be set there.
"""

import contextlib
import itertools
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "pkforge"
_STALE = re.compile(rf"{_PREFIX}-(\d+)-\d+")
_PROBES = {"memory": 64 << 20, "pids": 16}  # kind and a limit to try
_REMOVAL_S = 5.0
_POLL_S = 0.005
_serial = itertools.count()


@dataclass(frozen=True)
class Layout:
    """File names of one controller in one version of the interface."""

    version: int
    limit: str
    swap: str | None = None
    swap_value: str | None = None
    events: str | None = None
    oom_key: str = "oom_kill"


_LAYOUTS = {
    (1, "memory"): Layout(
        1, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", None, "memory.oom_control"
    ),
    (2, "memory"): Layout(2, "memory.max", "memory.swap.max", "0", "memory.events"),
    (1, "pids"): Layout(1, "pids.max"),
    (2, "pids"): Layout(2, "pids.max"),
}


@dataclass(frozen=True)
class Controller:
    """A place where groups with this limit can be made: "memory" or "pids"."""

    kind: str
    layout: Layout
    parent: Path

    def describe(self) -> str:
        """For the capability report."""
        return f"control group version {self.layout.version}, {self.kind}"


class Group:
    """One evaluation's control groups; what joins `procs_files` is limited, with its children."""

    def __init__(self, limits: dict[Controller, int]) -> None:
        name = f"{_PREFIX}-{os.getpid()}-{next(_serial)}"
        self._folders: dict[Controller, Path] = {}
        try:
            for controller, value in limits.items():
                folder = controller.parent / name
                folder.mkdir(exist_ok=True)  # version 2: both controllers live in one folder
                self._folders[controller] = folder
                _set_limit(folder, controller.layout, value)
        except OSError:
            self.remove()
            raise

    @property
    def procs_files(self) -> tuple[Path, ...]:
        """Files into which a process writes "0" to join."""
        return tuple(sorted({folder / "cgroup.procs" for folder in self._folders.values()}))

    @property
    def limits_memory(self) -> bool:
        """Whether the kernel enforces a limit on the memory of the whole group."""
        return any(controller.kind == "memory" for controller in self._folders)

    def out_of_memory(self) -> bool:
        """Whether the kernel killed something here for want of memory."""
        for controller, folder in self._folders.items():
            events = controller.layout.events
            if controller.kind == "memory" and events is not None:
                found = re.search(rf"^{controller.layout.oom_key} (\d+)$",
                                  (folder / events).read_text(), re.MULTILINE)  # fmt: skip
                return found is not None and int(found[1]) > 0
        return False

    def members(self) -> set[int]:
        """The processes inside, by their PID as the judge sees it."""
        found: set[int] = set()
        for procs in self.procs_files:
            with contextlib.suppress(OSError):
                found |= {int(line) for line in procs.read_text().split()}
        return found

    def remove(self) -> None:
        """Kills what is left inside, then deletes the groups; does not wait beyond 5 s."""
        deadline = time.monotonic() + _REMOVAL_S
        for folder in set(self._folders.values()):
            while folder.exists() and time.monotonic() < deadline:
                for pid in self.members():
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(_POLL_S)


def detect(proc: Path = Path("/proc/self")) -> dict[str, Controller]:
    """The controllers that work here, by kind; an empty dict where there are none."""
    working = {kind: _working(kind, value, proc) for kind, value in _PROBES.items()}
    found = {kind: places[0] for kind, places in working.items() if places}
    versions = {controller.layout.version for controller in found.values()}
    if versions == {2} and len({controller.parent for controller in found.values()}) > 1:
        found = _together(working)
    for controller in found.values():
        _remove_stale(controller.parent)
    return found


def _working(kind: str, value: int, proc: Path) -> list[Controller]:
    places = [Controller(kind, layout, parent) for layout, parent in _places(kind, proc)]
    return [controller for controller in dict.fromkeys(places) if _works(controller, value)]


def _together(working: dict[str, list[Controller]]) -> dict[str, Controller]:
    """In version 2 a process is in one group only: the place where most kinds work."""
    by_parent: dict[Path, dict[str, Controller]] = {}
    for kind, places in working.items():
        for controller in places:
            if controller.layout.version == 2:
                by_parent.setdefault(controller.parent, {})[kind] = controller
    return max(by_parent.values(), key=len)


def _places(kind: str, proc: Path) -> list[tuple[Layout, Path]]:
    """Where a group of this kind may be made: below our own group, or as near to it as can be.

    In version 2 a group that holds processes, as our own does, cannot limit groups below it, and
    those above it may not be told to.
    """
    places: list[tuple[Layout, Path]] = []
    own = _own_groups(proc)
    for version, controllers, root, mount in _mounts(proc):
        if version == 1 and kind not in controllers:
            continue
        layout = _LAYOUTS[version, kind]
        group = own.get(kind if version == 1 else "", "/")
        with contextlib.suppress(ValueError):
            own_place = mount / Path(group).relative_to(root)
            above = [path for path in own_place.parents if mount in path.parents]
            places += [(layout, path) for path in (own_place, *above)]
        places.append((layout, mount))
    return places


def _own_groups(proc: Path) -> dict[str, str]:
    groups: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in (proc / "cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            groups |= dict.fromkeys(names.split(","), path)
    return groups


def _mounts(proc: Path) -> list[tuple[int, set[str], str, Path]]:
    """Mounted hierarchies: version, controllers, root within the hierarchy, mount point."""
    mounts = []
    with contextlib.suppress(OSError):
        for line in (proc / "mountinfo").read_text().splitlines():
            head, tail = line.split(" - ", 1)
            kind, _, options = tail.split(" ", 2)
            if kind in {"cgroup", "cgroup2"}:
                root, point = head.split(" ")[3:5]
                version = 2 if kind == "cgroup2" else 1
                mounts.append((version, set(options.split(",")), root, Path(point)))
    return mounts


def _works(controller: Controller, value: int) -> bool:
    try:
        group = Group({controller: value})
    except OSError:
        return False
    group.remove()
    return True


def _set_limit(folder: Path, layout: Layout, value: int) -> None:
    limit = folder / layout.limit
    if not limit.exists():
        raise FileNotFoundError(f"{limit}: the controller is not enabled here")
    limit.write_text(str(value))
    if layout.swap is not None and (folder / layout.swap).exists():
        with contextlib.suppress(OSError):
            (folder / layout.swap).write_text(layout.swap_value or str(value))


def _remove_stale(parent: Path) -> None:
    """Removes the groups of judges that were killed."""
    with contextlib.suppress(OSError):
        for folder in parent.iterdir():
            match = _STALE.fullmatch(folder.name)
            if match and not Path(f"/proc/{match[1]}").exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()
