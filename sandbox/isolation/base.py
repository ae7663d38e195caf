"""What every isolation back end promises, and the errors of isolation itself."""

from dataclasses import asdict, dataclass
from typing import Protocol

from pk_runtime.execution import ExecutionError, Executor

NOT_ENFORCED = "not enforced"


class IsolationUnavailable(RuntimeError):  # noqa: N818 - a state of the machine, not a mistake
    """This machine cannot isolate untrusted code; `fix` says what a person can do about it."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}. {fix}")
        self.reason = reason
        self.fix = fix


class SandboxFault(ExecutionError):  # noqa: N818 - the machine's, not the caller's
    """The sandbox itself failed (mount, disk, launcher): never the fault of what ran inside."""


@dataclass(frozen=True)
class Capabilities:
    """What a back end enforces, one plain sentence part each; stored with every verdict."""

    backend: str
    isolated: bool
    network: str = NOT_ENFORCED
    filesystem: str = NOT_ENFORCED
    environment: str = NOT_ENFORCED
    user: str = NOT_ENFORCED
    processes: str = NOT_ENFORCED
    memory: str = NOT_ENFORCED
    disk: str = NOT_ENFORCED
    seccomp: str = NOT_ENFORCED
    nested_namespaces: str = NOT_ENFORCED

    def to_dict(self) -> dict[str, str | bool]:
        """The report as JSON."""
        return asdict(self)


class IsolatedExecutor(Executor, Protocol):
    """An executor that can say what it enforces."""

    def capabilities(self) -> Capabilities:
        """What is enforced on this machine, as found, not as hoped."""
        ...
