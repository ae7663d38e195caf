"""What a chat model is to the optimizer, whichever library talks to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.records import CostSource

Message = Mapping[str, str]  # {"role": "system" | "user" | "assistant", "content": text}


@dataclass(frozen=True)
class Usage:
    """Tokens of one call, as the service counted them."""

    tokens_in: int = 0
    tokens_out: int = 0


@dataclass(frozen=True)
class Reply:
    """What a model answered and what it cost (`usd` None: `cost_source` is "unknown")."""

    text: str
    usage: Usage
    usd: float | None
    cost_source: CostSource
    model: str
    raw: Mapping[str, Any] = field(default_factory=dict)


class ChatError(Exception):
    """A call that brought no reply and was not charged; the message says what to do."""


class ContextOverflowError(ChatError):
    """The prompt is longer than the model takes."""


class NoReplyError(ChatError):
    """The service accepted the call but its answer is unusable or late: it may have charged."""


class ChatModel(Protocol):
    """A model that answers a conversation."""

    model: str
    context_tokens: int | None
    """The longest prompt plus reply, where it is known."""

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return about how many tokens a prompt has."""

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        """Return the dollars for that many tokens, None if the price is unknown."""

    def complete(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """Make one call, retrying only refusals of the service; raises ChatError."""


@dataclass(frozen=True)
class LlmSettings:
    """How to reach models: filled by whoever owns the settings, passed per call, never global.

    Prices are dollars per million tokens; give both or neither, and they win over litellm's table.
    `context_tokens` is for models whose limit litellm does not know.
    """

    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 300.0
    max_tokens: int = 16_000
    context_tokens: int | None = None
    input_usd_per_million: float | None = None
    output_usd_per_million: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if only one of the two prices is given."""
        if (self.input_usd_per_million is None) != (self.output_usd_per_million is None):
            raise ValueError("give both the price of input and of output tokens, or neither")
