"""One rank's end of a built kernel: its arguments, its launches, its reports. Needs no torch.

The kernel's setup() runs here, once per set of tensors: it asks for tensors by name and for
symmetric memory, and makes the kernel's arguments of them, tensor maps included. A launch then is
one call, and may be captured into a graph.
"""

import ctypes as c
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pk_runtime.gpu.abi import (
    ABI_VERSION,
    BOUND,
    FAILURES_OFFSET,
    FOUND,
    MEMORY,
    MOST_DIMS,
    OTHER_DIRECTION,
    TENSOR,
    TIMEOUT_OFFSET,
    UNKNOWN,
    Bound,
    Description,
    Failure,
    HostCalls,
    TensorInfo,
    describe,
)
from pk_runtime.gpu.driver import HostMemory, current_device, multiprocessors

MAX_BLOCKS = 1024  # of a launch on one rank; max_blocks in state.h
ALIGNMENT = 256  # of arguments and of symmetric memory
PITCH_BYTES = 16  # what rows of a tensor must start at a multiple of
DTYPE_NUMBERS = {"bfloat16": 0, "float16": 1, "float32": 2, "int32": 3}
_ROLES = 4
_MESSAGE_BYTES = 2048

MemoryOf = Callable[[str, str, int], int]


class LaunchError(RuntimeError):
    """The kernel refused these shapes, or the driver refused the launch."""


class RefusedError(LaunchError):
    """The kernel's setup() refused these tensors: the same on every rank, before anything runs."""


class DeviceError(RuntimeError):
    """A kernel gave up on a device. `reports` says who waited for what, or which tile was wrong."""

    def __init__(self, reports: Sequence[str], cause: BaseException | None) -> None:
        self.reports = tuple(reports)
        super().__init__("; ".join(self.reports) or f"a kernel failed without a record: {cause}")


@dataclass(frozen=True)
class TensorView:
    """One rank's tensor as this process maps it: `planes` of `rows` x `cols` elements, plane after
    plane; `pitch` elements from row to row. `dtype` is a value of DTYPE_NUMBERS. `dims` is its
    whole shape: for tensors of more dimensions than planes, rows and columns."""

    address: int
    dtype: int
    planes: int
    rows: int
    cols: int
    pitch: int
    dims: tuple[int, ...] = ()


@dataclass(frozen=True)
class Needed:
    """Symmetric memory that every rank must have, zeroed, at a multiple of ALIGNMENT bytes."""

    kind: str
    name: str
    nbytes: int


Views = Mapping[str, Sequence[TensorView]]


@dataclass
class _Setup:
    """One run of a kernel's setup(): answers what it asks, and remembers that."""

    views: Views
    outputs: Collection[str] | None
    memory: MemoryOf | None
    needed: dict[Needed, None] = field(default_factory=dict)
    bound: dict[int, Bound] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    error: BaseException | None = None

    def run(
        self,
        library: c.CDLL,
        rank: int,
        world_size: int,
        arguments: c.c_void_p,
        run: c.Array[c.c_char],
    ) -> None:
        """Fills `arguments` and `run`; LaunchError if the kernel refuses."""
        message = c.create_string_buffer(_MESSAGE_BYTES)
        answers = (TENSOR(self._tensor), MEMORY(self._memory), BOUND(self._note))
        plan = int(self.memory is None)
        calls = HostCalls(ABI_VERSION, rank, world_size, plan, None, *answers, None)
        refused = library.pk_setup(c.byref(calls), arguments, run, message, _MESSAGE_BYTES)
        if self.error is not None:
            raise self.error
        if refused:
            raise RefusedError(message.value.decode(errors="replace"))

    def _tensor(
        self,
        _: object,
        name: bytes,
        rank: int,
        output: int,
        peers: int,
        info: "c._Pointer[TensorInfo]",
    ) -> int:
        key = name.decode(errors="replace")
        if key not in self.views:
            return UNKNOWN
        if self.outputs is not None and (key in self.outputs) != bool(output):
            return OTHER_DIRECTION
        try:
            view = self.views[key][rank]
        except IndexError:
            self.error = LaunchError(f"tensor {key!r} has no view of rank {rank}")
            return UNKNOWN
        size = (view.planes, view.rows, view.cols)
        dims = (c.c_int32 * MOST_DIMS)(*(view.dims or size)[:MOST_DIMS])
        info[0] = TensorInfo(view.address or None, view.dtype, *size, view.pitch, dims)
        if peers:
            self.shared.add(key)
        return FOUND

    def _memory(self, _: object, kind: bytes, name: bytes, rank: int, nbytes: int) -> int | None:
        needed = Needed(kind.decode(errors="replace"), name.decode(errors="replace"), nbytes)
        self.needed[needed] = None
        if self.memory is None:
            return None
        try:
            return self.memory(needed.kind, needed.name, rank) or None
        except Exception as error:  # noqa: BLE001 - cannot pass through C++: raised by run()
            self.error = error
            return None

    def _note(self, _: object, number: int, kind: bytes, name: bytes) -> None:
        self.bound[number] = Bound(kind.decode(errors="replace"), name.decode(errors="replace"))


@dataclass(frozen=True)
class Plan:
    """What a kernel needs for tensors of given shapes."""

    needed: tuple[Needed, ...]
    shared: frozenset[str]  # tensors that peers read or write: they must lie in symmetric memory


class Library:
    """A file that `Compiler.library` built, loaded. LaunchError if another version built it."""

    def __init__(self, path: Path) -> None:
        try:
            self.calls = c.CDLL(str(path))
            self.about = Description.in_dll(self.calls, "pk_description")
        except (OSError, ValueError) as error:
            raise LaunchError(f"{path} is not a built kernel: {error}") from error
        if self.about.abi != ABI_VERSION:
            raise LaunchError(f"{path} was built by another version of pkforge: build it again")

    @property
    def name(self) -> str:
        """The kernel's name in its source."""
        return str((self.about.name or b"").decode(errors="replace"))

    def plan(
        self, rank: int, world_size: int, views: Views, outputs: Collection[str] | None = None
    ) -> Plan:
        """What the kernel needs for these tensors; addresses may be 0. Works without a GPU.

        LaunchError if it refuses them; directions are not checked without `outputs`.
        """
        setup = _Setup(views, outputs, None)
        self.arguments(setup, rank, world_size)
        return Plan(tuple(setup.needed), frozenset(setup.shared))

    def arguments(self, setup: _Setup, rank: int, world_size: int) -> "_Arguments":
        """Runs setup() and returns what it made."""
        raw = c.create_string_buffer(self.about.args_bytes + ALIGNMENT)
        start = c.c_void_p(-(-c.addressof(raw) // ALIGNMENT) * ALIGNMENT)
        run = c.create_string_buffer(self.about.launch_bytes)
        setup.run(self.calls, rank, world_size, start, run)
        return _Arguments(raw, start, run)


@dataclass(frozen=True)
class _Arguments:
    raw: c.Array[c.c_char]  # keeps the memory of `start`
    start: c.c_void_p
    run: c.Array[c.c_char]


class Launch:
    """A kernel on one set of tensors. Made by `Binding`, which must live as long."""

    def __init__(self, binding: "Binding", arguments: _Arguments) -> None:
        self._binding = binding
        self._arguments = arguments

    def launch(self, stream: int) -> None:
        """Starts the kernel in a stream (a CUstream as a number); returns at once.

        The binding's device must be current. Every rank must launch, equally often, in the same
        order. LaunchError if the driver refuses.
        """
        self._binding._start(self._arguments, stream)


class Binding(Launch):
    """One rank's end of a kernel.

    `library` is what `Compiler.library` built. `views[name]` has one view per rank, `memory(kind,
    name, rank)` gives the address of that rank's symmetric memory as this process maps it (see
    `plan`). A device's context must be current: it is the rank's. Raises LaunchError.

    `cooperative=False` is for ranks that share one GPU, which then must fit it together.
    """

    def __init__(
        self,
        library: Path,
        rank: int,
        world_size: int,
        views: Views,
        outputs: Collection[str],
        memory: MemoryOf,
        timeout_s: float = 5.0,
        *,
        cooperative: bool = True,
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._library = Library(library)
        self._outputs, self._memory = frozenset(outputs), memory
        self._timeout_ns, self._cooperative = int(timeout_s * 1e9), cooperative
        self._launched = False
        sms, resident = multiprocessors(current_device()), c.c_int()
        error = self._library.calls.pk_prepare(c.byref(resident))
        if error or resident.value < 1:
            raise LaunchError(f"rank {rank}: the kernel does not fit the device (error {error})")
        self.most_blocks = min(sms, resident.value, MAX_BLOCKS)
        self._blocks = self.most_blocks
        self._records = HostMemory(self.most_blocks * _ROLES * self._library.about.failure_bytes)
        setup = _Setup(views, self._outputs, memory)
        super().__init__(self, self._made(setup))
        self.bound = setup.bound

    @staticmethod
    def plan(
        library: Path,
        rank: int,
        world_size: int,
        views: Views,
        outputs: Collection[str] | None = None,
    ) -> list[Needed]:
        """The symmetric memory that the kernel needs for these tensors; see `Library.plan`."""
        return list(Library(library).plan(rank, world_size, views, outputs).needed)

    @property
    def blocks(self) -> int:
        """Blocks of a launch. Every rank must have the same number: set it to the least of them,
        before the first launch."""
        return self._blocks

    @blocks.setter
    def blocks(self, count: int) -> None:
        least = self._library.about.comm_sms + 1
        if not least <= count <= self.most_blocks:
            raise LaunchError(
                f"rank {self.rank}: {count} blocks were asked for; on this device the kernel takes "
                f"{least} to {self.most_blocks}"
            )
        if self._launched and count != self._blocks:
            raise LaunchError("the number of blocks cannot change after the first launch")
        self._blocks = count

    def rebind(self, views: Views) -> Launch:
        """The same kernel on other tensors of the same shapes, with the same symmetric memory.

        For buffers that are used by turns: every rank must launch the same one of them.
        """
        return Launch(self, self._made(_Setup(views, self._outputs, self._memory)))

    def failures(self) -> list[str]:
        """What blocks wrote before they gave up, in words; readable after the context is lost."""
        size, data = c.sizeof(Failure), self._records.read()
        records = (Failure.from_buffer_copy(data, at) for at in range(0, len(data), size))
        return [describe(record, self.bound) for record in records if record.kind]

    def close(self) -> None:
        """Frees the records; no launch may be under way."""
        self._records.close()

    def _made(self, setup: _Setup) -> _Arguments:
        made = self._library.arguments(setup, self.rank, self.world_size)
        c.c_uint64.from_buffer(made.run, TIMEOUT_OFFSET).value = self._timeout_ns
        c.c_uint64.from_buffer(made.run, FAILURES_OFFSET).value = self._records.address
        return made

    def _start(self, arguments: _Arguments, stream: int) -> None:
        error = self._library.calls.pk_launch(
            c.c_void_p(stream), self._blocks, int(self._cooperative), arguments.start, arguments.run
        )
        if error:
            raise LaunchError(f"rank {self.rank}: the launch failed with CUDA error {error}")
        self._launched = True
