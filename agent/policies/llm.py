"""A model writes the kernels: attempt 1 is the shipped kernel, then one call per attempt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from agent.llm.prompt import LAST_ATTEMPTS, Prompt, Situation
from agent.llm.protocol import (
    ChatError,
    ChatModel,
    ContextOverflowError,
    Message,
    NoReplyError,
)
from agent.llm.reply import ParsedReply, UnusableReplyError, parse_reply
from agent.loop import BudgetExhaustedError, Context, PolicyFailedError, PolicyStop
from agent.policies.openings import openings
from agent.ranking import leaders
from agent.records import AttemptRecord, CostSource, LlmCall, Proposal, unused_reply
from agent.spec import JobSpec
from pk_runtime.candidate import Candidate
from pk_runtime.kernels import shipped, shipped_problems

UNUSABLE_LIMIT = 3  # unusable replies in a row that end the search
REPAIR_LIMIT = 4  # failing attempts in a row that are repaired before going back to a good one
HISTORY_LENGTHS = (8, LAST_ATTEMPTS, 2, 0)  # tried in turn when the context window is too small
DIVERSIFY_AT, RESTART_AT = 1, 2  # flat windows

DIVERSIFY = (
    "The last attempts brought no gain. Try an idea of another kind: another transfer mechanism, "
    "another granularity of communication, another split of SMs, another order of tiles."
)


class LlmPolicy:
    """Asks a chat model for the next kernel.

    A reply is stored before it is read, so a crash never buys it twice. It is derived from the
    last attempt while that can be repaired, else from the best (after two flat windows: from the
    second best).
    """

    name = "llm"

    def __init__(self, spec: JobSpec, chat: ChatModel, prompt: Prompt, max_tokens: int) -> None:
        """Take the openings of a job: `start_from`, else the first shipped kernel, else none."""
        self._openings = openings(spec)[:1]
        self._example = None if self._openings else _example(spec.problem)
        self._chat = chat
        self._prompt = prompt
        self._max_tokens = max_tokens

    def propose(self, context: Context) -> Proposal | None:
        """Return what the model proposes; raises PolicyStop (budget, service, unusable replies)."""
        for opening in self._openings:
            if not any(attempt.candidate == opening for attempt in context.attempts):
                return Proposal(candidate=opening, hypothesis="The kernel to start from, as it is.")
        parent = choose_parent(context)
        while True:
            calls = context.ledger.llm_calls()
            _stop_if_unusable(calls)
            call = unused_reply(calls, context.attempts) or self._buy(context, parent, calls)
            if call is None:
                continue
            try:
                parsed = self._read(call, context)
            except UnusableReplyError as error:
                context.ledger.llm_discard(call.number, str(error))
                continue
            return Proposal(
                candidate=parsed.candidate,
                hypothesis=parsed.hypothesis,
                parent=parent.number if parent else None,
                predicted_us=parsed.predicted_us,
                cost=call.cost,
                llm_call=call.number,
            )

    def _read(self, call: LlmCall, context: Context) -> ParsedReply:
        parsed = parse_reply(call.reply or "")
        if (known := context.judged(parsed.candidate)) is not None:
            raise UnusableReplyError(
                f"this is attempt {known.number} again, unchanged, which was {known.status}"
            )
        return parsed

    def _buy(
        self, context: Context, parent: AttemptRecord | None, calls: Sequence[LlmCall]
    ) -> LlmCall | None:
        """Make one call and store what came of it; None if it brought no reply."""
        situation = Situation(
            attempts=context.attempts,
            parent=parent,
            example=self._example,
            complaint=_complaint(calls),
            advice=DIVERSIFY if context.plateau >= DIVERSIFY_AT else "",
        )
        for history in HISTORY_LENGTHS:
            messages = self._prompt.build(situation, history)
            tokens = self._chat.count_tokens(messages)
            limit = self._chat.context_tokens
            if limit is not None and tokens + self._max_tokens > limit:
                continue
            try:
                return self._call(context, messages, tokens)
            except ContextOverflowError:
                continue
        raise PolicyFailedError(
            f"the prompt of about {tokens} tokens plus {self._max_tokens} for the reply does not "
            f"fit into {self._chat.model} even without history: use a model with a longer context"
        )

    def _call(self, context: Context, messages: list[Message], tokens: int) -> LlmCall | None:
        """Reserve, call, settle. Raises BudgetExhaustedError before a call that could overspend."""
        model = self._chat.model
        price = self._chat.price(tokens, self._max_tokens)
        if price is None and context.spec.budget.usd == 0:
            raise BudgetExhaustedError(
                f"the budget is 0 dollars and the price of {model} is unknown: configure prices"
            )
        call = LlmCall(
            number=context.ledger.llm_reserve(model, price or 0.0),
            model=model,
            reserved_usd=price or 0.0,
            settled=True,
            request=messages,
        )
        started = time.monotonic()
        try:
            reply = self._chat.complete(messages, self._max_tokens)
        except NoReplyError as error:
            source: CostSource = "unknown" if price is None else "reserved"
            charged = replace(call, error=str(error), usd=price, cost_source=source)
            context.ledger.llm_record(charged)
            context.ledger.llm_discard(call.number, str(error))
            return None
        except ChatError as error:
            context.ledger.llm_record(replace(call, error=str(error), usd=0.0))
            if isinstance(error, ContextOverflowError):
                raise
            raise PolicyFailedError(str(error)) from error
        bought = replace(
            call,
            reply=reply.text,
            usd=reply.usd,
            cost_source=reply.cost_source,
            tokens_in=reply.usage.tokens_in,
            tokens_out=reply.usage.tokens_out,
            latency_s=time.monotonic() - started,
            raw=reply.raw,
        )
        context.ledger.llm_record(bought)
        return bought


def choose_parent(context: Context) -> AttemptRecord | None:
    """Return the attempt the next kernel is derived from, None to start from scratch.

    The last attempt, while it fails and REPAIR_LIMIT repairs in a row have not been tried; else the
    best, or after two flat windows the second best.
    """
    by_number = {a.number: a for a in context.attempts if a.status != "infra_error"}
    if not by_number:
        return None
    last = by_number[max(by_number)]
    failing, attempt = 0, by_number.get(max(by_number))
    while attempt is not None and not attempt.correct:
        failing += 1
        attempt = by_number.get(attempt.parent or 0)
    if 0 < failing <= REPAIR_LIMIT:
        return last
    ranking = leaders(context.attempts)
    elite = 1 if context.plateau >= RESTART_AT and len(ranking) > 1 else 0
    return ranking[elite] if ranking else None


def _complaint(calls: Sequence[LlmCall]) -> str:
    """Return why the last reply could not be used, if it could not."""
    return (_answered(calls)[-1].unusable or "") if _answered(calls) else ""


def _stop_if_unusable(calls: Sequence[LlmCall]) -> None:
    last = _answered(calls)[-UNUSABLE_LIMIT:]
    if len(last) == UNUSABLE_LIMIT and all(call.unusable for call in last):
        raise PolicyStop(
            f"{UNUSABLE_LIMIT} replies of {last[-1].model} in a row could not be used; "
            f"the last one: {last[-1].unusable}"
        )


def _answered(calls: Sequence[LlmCall]) -> list[LlmCall]:
    """Leave out calls that a crash cut off or the service refused: they say nothing."""
    return [call for call in calls if call.reply is not None or call.unusable]


def _example(problem: str) -> Candidate | None:
    others = [slug for slug in shipped_problems() if slug != problem]
    return shipped(others[0])[0] if others else None
