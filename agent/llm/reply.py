"""Reading a model's reply: one hypothesis, one prediction, one complete file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pk_runtime.candidate import Candidate, CandidateError, validate

FORMAT = """\
Answer in exactly this form, nothing after the code block:

hypothesis: <one sentence: the one thing you change and the cost term it attacks>
predicted_us: <the time you expect, in microseconds>
knobs: <name=value, ... for knobs that shall differ from the defaults in your file, or none>
```cpp
<the complete kernel.cu, not a diff, no omissions>
```"""

_FENCE = re.compile(
    r"^[ \t]*```[ \t]*(?:cpp|c\+\+|cuda|cu)[ \t]*\n(?P<code>.*?)^[ \t]*```[ \t]*$",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_OPEN = re.compile(r"^[ \t]*```[ \t]*(?:cpp|c\+\+|cuda|cu)[ \t]*$", re.MULTILINE | re.IGNORECASE)
_FIELD = r"^[ \t>*_-]*{name}[ \t*_]*:[ \t*_]*(?P<value>[^\n]*)$"
_NUMBER = re.compile(r"\d[\d_,]*(?:\.\d+)?(?:[eE][+-]?\d+)?")
_KNOB = re.compile(r"([a-z][a-z0-9_]*)\s*=\s*([+-]?\d+)")
HYPOTHESIS_CHARACTERS = 500


class UnusableReplyError(ValueError):
    """A reply without a candidate in it; the message tells the model what is missing."""


@dataclass(frozen=True)
class ParsedReply:
    """What a usable reply proposes."""

    candidate: Candidate
    hypothesis: str
    predicted_us: float | None


def parse_reply(text: str) -> ParsedReply:
    """Read a reply in the form of FORMAT; raise UnusableReplyError that says what is wrong."""
    blocks = _FENCE.findall(text)
    if len(blocks) > 1:
        raise UnusableReplyError(f"there are {len(blocks)} ```cpp blocks: send exactly one")
    if not blocks:
        if _OPEN.search(text):
            raise UnusableReplyError(
                "the ```cpp block is not closed, so the file is cut off: send a shorter reply"
            )
        raise UnusableReplyError("there is no ```cpp block with the complete kernel.cu")
    prose = _FENCE.sub("", text)
    hypothesis = _field(prose, "hypothesis")
    if not hypothesis:
        raise UnusableReplyError("there is no line 'hypothesis: ...'")
    candidate = Candidate("pk", {"kernel.cu": blocks[0]}, _knobs(_field(prose, "knobs")))
    try:
        validate(candidate)
    except CandidateError as error:
        raise UnusableReplyError(str(error)) from error
    number = _NUMBER.search(_field(prose, "predicted_us"))
    predicted = float(re.sub("[_,]", "", number[0])) if number else None
    return ParsedReply(candidate, hypothesis[:HYPOTHESIS_CHARACTERS], predicted)


def _field(prose: str, name: str) -> str:
    found = re.search(_FIELD.format(name=name), prose, re.MULTILINE | re.IGNORECASE)
    return found["value"].strip(" \t*_`") if found else ""


def _knobs(text: str) -> dict[str, int]:
    if text.lower().strip(".") in ("", "none", "default", "defaults"):
        return {}
    knobs = {name: int(value) for name, value in _KNOB.findall(text)}
    if not knobs:
        raise UnusableReplyError(f"the line 'knobs: {text[:80]}' is not 'name=value, ...' or none")
    return knobs
