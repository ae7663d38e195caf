"""Exit codes of every `pkforge` command, documented in `docs/cli.md`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType


class ExitCode(IntEnum):
    """What a command's exit status means."""

    OK = 0
    NOT_CORRECT = 1
    USAGE = 2
    NOT_FOUND = 3
    SERVICE = 5
    BUDGET = 6
    TIMEOUT = 7
    INTERRUPTED = 130


MEANINGS: Mapping[ExitCode, str] = MappingProxyType(
    {
        ExitCode.OK: "done; a judged candidate is correct, a watched job has its kernel",
        ExitCode.NOT_CORRECT: "judged and not correct, or the job ended without what was asked",
        ExitCode.USAGE: "the command or its input makes no sense as it stands",
        ExitCode.NOT_FOUND: "the problem, target, job, attempt or file does not exist",
        ExitCode.SERVICE: "the service, the network, the sandbox or this machine failed",
        ExitCode.BUDGET: "the job's budget ran out before what was asked was reached",
        ExitCode.TIMEOUT: "`--timeout` passed first; the job itself goes on",
        ExitCode.INTERRUPTED: "Ctrl-C; a watched job goes on",
    }
)


class CliError(Exception):
    """Ends the command with `code` and a message that says what, where and what to do next."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
