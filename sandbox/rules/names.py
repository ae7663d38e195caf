"""Names that a pk kernel could reach although it is not to know them.

`<pk/pk.h>` brings the C library's names along, and the engine's are found through the namespace of
an argument. A kernel has no use for either, as a call, as a value, or as a name of its own: a
function with the name of one in the C library would replace it for the engine as well.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandbox.rules.parts import KEYWORDS, OPERATING_SYSTEM, Place, words
from sandbox.rules.tokens import Token

# What the headers of glibc that <pk/pk.h> includes declare, and more of the kind.
_LISTED = (Path(__file__).parent / "c_names.txt").read_text(encoding="utf-8")
C_NAMES = words(_LISTED) | OPERATING_SYSTEM
# Words that an author may well want for a variable; as values they need a pointer to do harm.
PLAIN_WORDS = words(
    "pipe index link select remove rewind access free div read write sync truncate close time open "
    "bind connect accept listen send poll stat"
)
# pk has functions of these names.
_PK_TOO = words("wait signal")
ENGINE = words(
    "arithmetic rank_of world_of block_of blocks_of claim_shared ring_init ring_acquire ring_load "
    "ring_commit ring_wait ring_release slab_load slab_use slab_store mma_issue vector_work "
    "to_float from_float bind_tensor bind_scratch bind_signals bind_mailbox host_state host_rank "
    "host_world tensor_ref tile_ref signal_ref mailbox_ref ring_core dtype_of unset_registers "
    "check_mma fiber pk_program"
)
_MATHS = re.compile(
    r"(a?(sin|cos|tan)h?|atan2|exp(2|10|m1)?|log(2|10|1p|b)?|pow|sqrt|rsqrt|cbrt|hypot|fma|fabs|fmod|"
    r"fm(ax|in)|floor|ceil|round|trunc|rint|nearbyint|l?l?r(ound|int)|erfc?|[lt]gamma|frexp|ldexp|"
    r"modf|scalb(n|ln)|copysign|nextafter|remainder|remquo|fdim|nan)[fl]?"
)


def known_names(code: Sequence[Token], at: int) -> Iterator[Place]:
    """What is wrong with the name at this place."""
    token = code[at]
    before = code[at - 1].text if at else ""
    after = code[at + 1].text if at + 1 < len(code) else ""
    if before in {".", "->"}:
        return
    of_pk = before == "::" and at > 1 and code[at - 2].text == "pk"
    if token.text in ENGINE:
        yield (token.line, token.text, "it is a name of the engine behind the headers",
               "Use the names in docs/pk_guide.md; choose another for your own")  # fmt: skip
    elif token.text in C_NAMES - _PK_TOO and not of_pk:
        if token.text not in PLAIN_WORDS or after == "(":
            yield (token.line, token.text, "it leaves the kernel for the operating system",
                   "A kernel computes with pk functions only; names of your own must differ from "
                   "this one")  # fmt: skip
    elif _MATHS.fullmatch(token.text) and after == "(" and _declares(code, at):
        yield (token.line, token.text, "it replaces a function of the C library",
               "Choose another name for your own")  # fmt: skip


def _declares(code: Sequence[Token], at: int) -> bool:
    """Whether the name at this place, before a parenthesis, follows a type."""
    before = code[at - 1] if at else Token("mark", "", 0)
    return before.text in {">", "&"} or (before.kind == "name" and before.text not in KEYWORDS)
