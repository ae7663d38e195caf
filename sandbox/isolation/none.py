"""No isolation, asked for by name: for code that its owner trusts. Every verdict records it."""

from pk_runtime.execution import LocalExecutor
from sandbox.isolation.base import Capabilities


class UnisolatedExecutor(LocalExecutor):
    """A plain subprocess with limits on time, memory, output and file size; nothing is hidden."""

    def capabilities(self) -> Capabilities:
        """Says that nothing is isolated."""
        return Capabilities(
            backend="none",
            isolated=False,
            environment="only the command's own",
            memory="watched, not enforced by the kernel",
        )
