"""The chat model behind litellm, imported on first use.

litellm reads the environment while it is imported. Two variables are set here, before that, for
this process alone: LITELLM_LOCAL_MODEL_COST_MAP=True, or it would fetch a price table over the
network, and LITELLM_MODE=PRODUCTION, or it would load a `.env` file of the working directory into
the environment. Keys are passed with each call and never put into the environment.
"""

from __future__ import annotations

import functools
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import tenacity

from agent.llm.protocol import (
    ChatError,
    ContextOverflowError,
    LlmSettings,
    Message,
    NoReplyError,
    Reply,
    Usage,
)
from agent.records import CostSource

TRIES = 4  # of one call, when the service refuses it with 429 or 5xx or cannot be reached
FIRST_WAIT_S = 1.0  # doubled with each try, unless the service says how long to wait
LONGEST_WAIT_S = 60.0
MESSAGE_CHARACTERS = 600  # of a provider's error that are worth showing


@functools.cache
def load_litellm() -> ModuleType:
    """Import litellm (seconds, 170 MB) with everything off that phones home or prints."""
    # house: environment, litellm has no other switch and reads these two while it is imported
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["LITELLM_MODE"] = "PRODUCTION"  # house: environment, as above
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    return litellm


class LiteLlm:
    """One model through litellm, named as litellm names it (`openai/gpt-...`, `anthropic/...`)."""

    def __init__(
        self, model: str, settings: LlmSettings, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Look the model up in litellm's local table; nothing is sent."""
        self.model = model
        self._settings = settings
        self._sleep = sleep
        self._litellm = load_litellm()
        self.context_tokens = settings.context_tokens or self._known_context()

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return about how many tokens a prompt has, counted locally."""
        return int(self._litellm.token_counter(model=self.model, messages=list(messages)))

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        """Return the dollars for that many tokens, None if the price is unknown."""
        per_in, per_out = (
            self._settings.input_usd_per_million,
            self._settings.output_usd_per_million,
        )
        if per_in is not None and per_out is not None:
            return (tokens_in * per_in + tokens_out * per_out) / 1e6
        try:
            parts = self._litellm.cost_per_token(
                model=self.model, prompt_tokens=tokens_in, completion_tokens=tokens_out
            )
        except Exception:  # noqa: BLE001 - litellm raises a bare Exception for unmapped models
            return None
        return float(sum(parts))

    def complete(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """Make one call; raises ContextOverflowError, NoReplyError or another ChatError."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(TRIES),
            wait=_wait,
            retry=tenacity.retry_if_exception(_refused),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            response = retrying(
                self._litellm.completion,
                model=self.model,
                messages=[dict(message) for message in messages],
                max_tokens=max_tokens,
                api_base=self._settings.api_base,
                api_key=self._settings.api_key,
                timeout=self._settings.timeout_s,
                num_retries=0,
                max_retries=0,
            )
        except Exception as error:  # litellm's errors have no common base
            raise self._translate(error) from error
        return self._reply(response)

    def _reply(self, response: Any) -> Reply:
        try:
            text = response.choices[0].message.content or ""
            usage = Usage(response.usage.prompt_tokens, response.usage.completion_tokens)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # pydantic's, about litellm's own types
                raw = json.loads(response.model_dump_json())
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise NoReplyError(f"{self.model} sent no chat completion: {error}") from error
        usd, source = self._cost(response, usage)
        return Reply(text, usage, usd, source, response.model or self.model, raw)

    def _cost(self, response: Any, usage: Usage) -> tuple[float | None, CostSource]:
        if self._settings.input_usd_per_million is not None:
            return self.price(usage.tokens_in, usage.tokens_out), "configured"
        try:
            cost = self._litellm.completion_cost(completion_response=response, model=self.model)
        except Exception:  # noqa: BLE001 - litellm raises a bare Exception for unmapped models
            return None, "unknown"
        return float(cost), "litellm"

    def _known_context(self) -> int | None:
        try:
            known = self._litellm.get_model_info(self.model).get("max_input_tokens")
        except Exception:  # noqa: BLE001 - litellm raises a bare Exception for unmapped models
            return None
        return int(known) if known else None

    def _translate(self, error: Exception) -> ChatError:
        said = str(error)[:MESSAGE_CHARACTERS]
        if self._settings.api_key:
            said = said.replace(self._settings.api_key, "***")
        if isinstance(error, self._litellm.ContextWindowExceededError):
            return ContextOverflowError(f"the prompt is too long for {self.model}: {said}")
        status = getattr(error, "status_code", None)
        if isinstance(error, self._litellm.Timeout):
            return NoReplyError(f"{self.model} did not answer in {self._settings.timeout_s:g} s")
        if _refused(error):
            return ChatError(f"{self.model} cannot be reached after {TRIES} tries: {said}")
        if isinstance(status, int) and status >= 500:
            return NoReplyError(f"the answer of {self.model} is malformed: {said}")
        return ChatError(f"{self.model} refused the call; check model name and key: {said}")


def _refused(error: BaseException) -> bool:
    """Whether the service said 429 or 5xx, or could not be reached: nothing was charged.

    litellm also maps an unreadable answer to status 500; that one was paid for. The two differ in
    their causes: a refusal stems from an HTTP status or a connection error.
    """
    status = getattr(error, "status_code", None)
    if status != 429 and not (isinstance(status, int) and status >= 500):
        return False
    modules = {type(cause).__module__.partition(".")[0] for cause in _causes(error)}
    return bool(modules & {"httpx", "openai"})


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    asked = _retry_after(error)
    wait = FIRST_WAIT_S * 2 ** (state.attempt_number - 1) if asked is None else asked
    return min(wait, LONGEST_WAIT_S)


def _retry_after(error: BaseException | None) -> float | None:
    """Return the seconds the service asked to wait, if it did."""
    response = getattr(error, "response", None)
    for headers in (
        getattr(error, "litellm_response_headers", None),
        getattr(response, "headers", None),
    ):
        if isinstance(headers, Mapping) and (text := headers.get("retry-after")):
            try:
                return max(0.0, float(text))
            except ValueError:  # an HTTP date: the usual backoff will do
                return None
    return None
