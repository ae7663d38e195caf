"""Isolation back ends: how untrusted programs are run, and what is really enforced."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeVar

from sandbox.isolation.base import (
    Capabilities,
    IsolatedExecutor,
    IsolationUnavailable,
    SandboxFault,
)
from sandbox.isolation.bubblewrap import BubblewrapExecutor
from sandbox.isolation.docker import DockerExecutor
from sandbox.isolation.namespaces import NamespaceExecutor
from sandbox.isolation.none import UnisolatedExecutor
from sandbox.isolation.probe import Finding, probe
from sandbox.isolation.session import Session

__all__ = [
    "BubblewrapExecutor",
    "Capabilities",
    "Choice",
    "DockerExecutor",
    "Finding",
    "IsolatedExecutor",
    "IsolationUnavailable",
    "Look",
    "NamespaceExecutor",
    "SandboxFault",
    "Session",
    "UnisolatedExecutor",
    "backends",
    "choose",
    "choose_for_sessions",
    "look_at",
    "probe",
]

_FIX = (
    "Allow unprivileged user namespaces (sysctl user.max_user_namespaces above 0; on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0), in a container give it CAP_SYS_ADMIN, or "
    "accept the risk with --no-isolation."
)


Choice = Literal["auto", "docker", "bubblewrap", "namespaces"]
Maker = Callable[[], IsolatedExecutor]


def backends(choice: Choice = "auto", docker_host: str = "") -> dict[str, Maker]:
    """What makes each back end that `choice` allows, by name, strongest first.

    Docker starts containers with gVisor's runsc where its engine has that runtime.
    """
    all_of_them: dict[str, Maker] = {
        "runsc": partial(DockerExecutor, docker_host, "runsc"),
        "docker": partial(DockerExecutor, docker_host),
        "bubblewrap": BubblewrapExecutor,
        "namespaces": NamespaceExecutor,
    }
    chosen = {"auto": set(all_of_them), "docker": {"runsc", "docker"}}.get(choice, {choice})
    return {name: maker for name, maker in all_of_them.items() if name in chosen}


def choose(
    *, allow_none: bool = False, choice: Choice = "auto", docker_host: str = ""
) -> IsolatedExecutor:
    """The strongest back end that a hostile mini-suite cannot break, of those `choice` allows.

    `allow_none` is a person's explicit wish to run candidates without isolation, and gives just
    that. Otherwise raises IsolationUnavailable, with the fix, rather than anything weaker.
    """
    if allow_none:
        return UnisolatedExecutor()
    return _first(backends(choice, docker_host).values())


def choose_for_sessions() -> NamespaceExecutor:
    """The back end for processes that the judge talks to, such as the ranks of a GPU run.

    Raises IsolationUnavailable, with the fix, where it does not hold.
    """
    return _first((NamespaceExecutor,))


Backend = TypeVar("Backend", bound=IsolatedExecutor)


@dataclass(frozen=True)
class Look(Generic[Backend]):
    """One back end as found on this machine: its executor if it holds, else why not and a fix."""

    executor: Backend | None
    reason: str = ""
    fix: str = ""


def look_at(maker: Callable[[], Backend]) -> Look[Backend]:
    """Makes a back end and runs the hostile mini-suite against it (a second; docker: several)."""
    try:
        executor = maker()
    except IsolationUnavailable as error:
        return Look(None, error.reason, error.fix)
    failed = [finding for finding in probe(executor) if not finding.ok]
    if not failed:
        return Look(executor)
    found = "; ".join(f"{finding.name}: {finding.detail}" for finding in failed[:4])
    reason = f"the sandbox of {executor.name} does not hold on this machine ({found})"
    return Look(None, reason, _FIX)


def _first(makers: Iterable[Callable[[], Backend]]) -> Backend:
    reasons, fix = [], ""
    for maker in makers:
        look = look_at(maker)
        if look.executor is not None:
            return look.executor
        reasons.append(look.reason)
        fix = look.fix
    instead = "accept the risk with --no-isolation"
    if instead not in fix:
        fix = f"{fix.rstrip('.')}, or {instead}."
    raise IsolationUnavailable("; ".join(dict.fromkeys(reasons)), fix)
