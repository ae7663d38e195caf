"""Isolation back ends: how untrusted programs are run, and what is really enforced."""

from collections.abc import Callable
from typing import TypeVar

from sandbox.isolation.base import (
    Capabilities,
    IsolatedExecutor,
    IsolationUnavailable,
    SandboxFault,
)
from sandbox.isolation.bubblewrap import BubblewrapExecutor
from sandbox.isolation.namespaces import NamespaceExecutor
from sandbox.isolation.none import UnisolatedExecutor
from sandbox.isolation.probe import Finding, probe
from sandbox.isolation.session import Session

__all__ = [
    "BubblewrapExecutor",
    "Capabilities",
    "Finding",
    "IsolatedExecutor",
    "IsolationUnavailable",
    "NamespaceExecutor",
    "SandboxFault",
    "Session",
    "UnisolatedExecutor",
    "choose",
    "choose_for_sessions",
    "probe",
]

_FIX = (
    "Allow unprivileged user namespaces (sysctl user.max_user_namespaces above 0; on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0), in a container give it CAP_SYS_ADMIN, or "
    "accept the risk with --no-isolation."
)


def choose(*, allow_none: bool = False) -> IsolatedExecutor:
    """The first back end that a hostile mini-suite cannot break: bubblewrap, then namespaces.

    `allow_none` is a person's explicit wish to run candidates without isolation, and gives just
    that. Otherwise raises IsolationUnavailable, with the fix, rather than anything weaker.
    """
    return UnisolatedExecutor() if allow_none else _first(BubblewrapExecutor, NamespaceExecutor)


def choose_for_sessions() -> NamespaceExecutor:
    """The back end for processes that the judge talks to, such as the ranks of a GPU run.

    Raises IsolationUnavailable, with the fix, where it does not hold.
    """
    return _first(NamespaceExecutor)


Backend = TypeVar("Backend", bound=IsolatedExecutor)


def _first(*kinds: Callable[[], Backend]) -> Backend:
    refused, fix = [], ""
    for kind in kinds:
        try:
            executor = kind()
        except IsolationUnavailable as error:
            refused.append(error.reason)
            fix = f"{error.fix.rstrip('.')}, or accept the risk with --no-isolation."
            continue
        failed = [finding for finding in probe(executor) if not finding.ok]
        if not failed:
            return executor
        found = "; ".join(f"{finding.name}: {finding.detail}" for finding in failed[:4])
        refused.append(f"the sandbox of {executor.name} does not hold on this machine ({found})")
        fix = _FIX
    raise IsolationUnavailable("; ".join(dict.fromkeys(refused)), fix)
