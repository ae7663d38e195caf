"""Commands over a channel: one side asks, the other serves, one command at a time. No torch here.

A command is {"do": name, ...}. The answer is {"done": name, ...} or {"failed": text, ...}; an
answer to another command than the one asked is against the rules. Files travel both ways.
"""

import contextlib
import os
import select
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pk_runtime.gpu.channel import Channel, ChannelClosed, ChannelError, ChannelTimeout, Message

SEND_S = 10.0
MOST_NUMBERS = 4096
_GRACE_S = 0.005


class Refused(Exception):  # noqa: N818 - an answer, not an error of this program
    """A handler raises it to answer {"failed": ...}; `fields` go into the answer."""

    def __init__(self, text: str, **fields: Any) -> None:
        super().__init__(text)
        self.fields = fields


@dataclass
class Reply:
    """What a handler answers: fields, and descriptors that are closed here once they are sent."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[int] = ()


class Serving(Protocol):
    """A program that serves commands; `files` of a command are the handler's to close."""

    def handle(self, name: str, body: Mapping[str, Any], files: tuple[int, ...]) -> Reply:
        """Does one command. Refused becomes an answer; anything else does too, and is told."""
        ...


def serve(channel: Channel, program: Serving, *, idle_s: float, files: int = 32) -> None:
    """Serves until the other end closes, says "exit", or has been silent for `idle_s`; closes."""
    try:
        while _served(channel, program, idle_s, files):
            pass
    finally:
        channel.close()


def _served(channel: Channel, program: Serving, idle_s: float, files: int) -> bool:
    """Serves one command; whether there may be another."""
    try:
        message = channel.receive(timeout_s=idle_s, files=files)
    except ChannelError:
        return False
    name = message.body.get("do")
    if not isinstance(name, str) or name == "exit":
        message.close()
        return False
    reply = _answered(program, name, message)
    try:
        channel.send(reply.fields, reply.files, timeout_s=SEND_S)
    except (ChannelError, ValueError):
        return False
    finally:
        close_files(reply.files)
    return True


def _answered(program: Serving, name: str, message: Message) -> Reply:
    try:
        reply = program.handle(name, message.body, message.files)
    except Refused as refused:
        return Reply({"failed": str(refused), "of": name, **refused.fields})
    except Exception as error:  # noqa: BLE001 - told to the other side, which decides
        text = f"{type(error).__name__}: {error}"[:4000]
        return Reply({"failed": text, "of": name, "internal": True})
    return Reply({"done": name, **reply.fields}, reply.files)


def close_files(files: Iterable[int]) -> None:
    """Closes descriptors; those that are closed already do not matter."""
    for descriptor in files:
        with contextlib.suppress(OSError):
            os.close(descriptor)


@dataclass
class Answer:
    """What one end said, or why it said nothing. Exactly one of `body` and `silence` is set."""

    body: dict[str, Any] | None = None
    files: tuple[int, ...] = ()
    silence: ChannelError | None = None

    @property
    def failed(self) -> str | None:
        """The text of a {"failed": ...} answer."""
        text = None if self.body is None else self.body.get("failed")
        return None if text is None else str(text)

    @property
    def late(self) -> bool:
        """Whether the other end is still there, and silent."""
        return isinstance(self.silence, ChannelTimeout)

    @property
    def ok(self) -> bool:
        """Whether the command was done."""
        return self.body is not None and self.failed is None


def ask_all(
    channels: Sequence[Channel],
    name: str,
    bodies: Sequence[Mapping[str, Any]],
    *,
    timeout_s: float,
    files: Sequence[Sequence[int]] | None = None,
    expect_files: int = 0,
    after_failure_s: float | None = None,
) -> list[Answer]:
    """Sends one command to every channel, then collects every answer until `timeout_s`.

    Once an end has failed or is gone, the others get no more than `after_failure_s` from then on.
    """
    answers: list[Answer | None] = [None] * len(channels)
    for index, channel in enumerate(channels):
        sent = files[index] if files is not None else ()
        try:
            channel.send({"do": name, **bodies[index]}, sent, timeout_s=SEND_S)
        except ChannelError as error:
            answers[index] = Answer(silence=error)
    deadline = time.monotonic() + timeout_s
    pending = {index for index, answer in enumerate(answers) if answer is None}
    failed = len(pending) < len(channels)
    while pending:
        if failed and after_failure_s is not None:
            deadline, failed = min(deadline, time.monotonic() + after_failure_s), False
        by_file = {channels[index].fileno(): index for index in pending}
        left = max(deadline - time.monotonic(), 0.0)
        ready = [by_file[file] for file in select.select(list(by_file), [], [], left)[0]]
        # Past the deadline the rest is asked once more, and found silent.
        for index in ready or sorted(pending):
            pending.discard(index)
            answers[index] = answer = _answer(channels[index], name, deadline, expect_files)
            failed = failed or not answer.ok
    return [answer for answer in answers if answer is not None]


def _answer(channel: Channel, name: str, deadline: float, files: int) -> Answer:
    try:
        # The last bytes of an answer that has just arrived are still read after the deadline.
        left = max(deadline - time.monotonic(), _GRACE_S)
        message = channel.receive(timeout_s=left, files=files)
    except ChannelError as error:
        return Answer(silence=error)
    if message.body.get("done") != name and "failed" not in message.body:
        message.close()
        return Answer(silence=ChannelClosed(f"it answers something else than {name!r}"))
    return Answer(message.body, message.files)


def text(body: Mapping[str, Any], name: str) -> str:
    """A field that must be text."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"{name!r} must be text, not {value!r}")
    return value


def number(body: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """A field that must be an integer in a range."""
    value = body.get(name)
    if type(value) is not int or not low <= value <= high:
        raise Refused(f"{name!r} must be an integer from {low} to {high}, not {value!r}")
    return value


def numbers(body: Mapping[str, Any], name: str) -> list[int]:
    """A field that must be a list of integers that are not negative."""
    value = body.get(name)
    if not isinstance(value, list) or len(value) > MOST_NUMBERS:
        raise Refused(f"{name!r} must be a list of at most {MOST_NUMBERS} integers")
    if any(type(item) is not int or item < 0 for item in value):
        raise Refused(f"{name!r} must hold integers that are not negative")
    return value
