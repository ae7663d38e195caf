"""Isolation back ends: how untrusted programs are run, and what is really enforced."""

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
    "probe",
]

_FIX = (
    "Allow unprivileged user namespaces (sysctl user.max_user_namespaces above 0; on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0), in a container give it CAP_SYS_ADMIN, or "
    "accept the risk with --no-isolation"
)


def choose(*, allow_none: bool = False) -> IsolatedExecutor:
    """The strongest isolation of this machine, checked by a hostile mini-suite.

    `allow_none` is a person's explicit wish to run candidates without isolation, and gives just
    that. Otherwise raises IsolationUnavailable, with the fix, rather than anything weaker.
    """
    if allow_none:
        return UnisolatedExecutor()
    try:
        executor = BubblewrapExecutor()
    except IsolationUnavailable as error:
        raise IsolationUnavailable(
            error.reason, f"{error.fix.rstrip('.')}, or accept the risk with --no-isolation."
        ) from error
    failed = [finding for finding in probe(executor) if not finding.ok]
    if failed:
        found = "; ".join(f"{finding.name}: {finding.detail}" for finding in failed[:4])
        raise IsolationUnavailable(
            f"the sandbox does not hold on this machine ({found})", f"{_FIX}."
        )
    return executor
