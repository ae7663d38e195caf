"""What a raw `cuda` candidate may not contain: its own kernels may do what CUDA can, its host part
binds arguments and starts them, and nothing else.

Memory, streams, graphs and multicast are the launcher's: an allocation or a synchronisation in
launch() would hide time from the clock or break a graph, and NVLink multicast is never used. As in
`rules`, whoever gets past this filter is still in a sandbox.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from sandbox.rules.parts import (
    OPERATING_SYSTEM,
    Place,
    Rule,
    attributes,
    called,
    directives,
    matches,
    qualifier,
    shared_variables,
    stateless,
    words,
)
from sandbox.rules.tokens import Token

HEADERS = words(
    "pk/raw.h cuda_bf16.h cuda_fp16.h cuda_fp8.h cooperative_groups.h cuda_pipeline.h mma.h "
    "cuda/atomic cuda/barrier cuda/ptx cstdint cstddef type_traits utility limits array stdint.h"
)
INCLUDE = re.compile(r'#[ \t]*include[ \t]*(?:<([^<>]+)>|"([^"]+)")[ \t]*(//[^\n]*)?')
# Of the CUDA libraries only names that neither allocate, nor wait, nor keep anything.
CUDA_ALLOWED = words("cudaStream_t cudaError_t cudaSuccess cudaGetLastError cudaPeekAtLastError")
_CUDA = re.compile(r"(cuda|cu|nv|nccl|nvshmem)[A-Z]\w*|(cublas|cudnn|cutlass|nccl|nvml|nvrtc)\w*")
_BELOW = re.compile(r"__cuda\w*|__builtin_\w*|__attribute__|__asm__|__asm|__declspec|_Pragma")
# In the text of asm, in pieces or whole.
_MULTICAST = re.compile(r"multimem\w*")
_NO_MULTICAST = ("NVLink multicast is never used", "Store to each peer, or load from each peer")
_SYSTEM_CALL = re.compile(r"\b(syscall|sysenter|svc|int\s+\$?0x80)\b")
STD_ALLOWED = words(
    "size_t ptrdiff_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t "
    "is_same_v is_same conditional_t enable_if_t remove_cv_t remove_const_t remove_reference_t "
    "remove_cvref_t decay_t integral_constant bool_constant true_type false_type "
    "integer_sequence make_integer_sequence index_sequence make_index_sequence numeric_limits "
    "array min max swap move forward byte"
)

_ALLOWED_ON_DEVICE = words("memcpy memset memmove clock printf")
RULES = (
    Rule(
        OPERATING_SYSTEM - _ALLOWED_ON_DEVICE,
        "it leaves the kernel for the operating system",
        "Start kernels in launch(), bind arguments in setup(), and do nothing else on the host",
        called,
    ),
    Rule(
        words("pk_setup pk_prepare pk_launch pk_description pk_program main"),
        "PK_RAW makes it",
        "End the file with PK_RAW(name)",
    ),
    Rule(
        words("sm90 detail"),
        "it names the runtime's insides",
        "Use the names of pk::raw that docs/raw_cuda.md lists",
        qualifier,
    ),
    Rule(
        words("thread_local constinit __managed__ __constant__"),
        "it keeps state between launches or ranks",
        "Use h.scratch and h.signals, which the launcher zeroes once",
    ),
)


def violations(code: Sequence[Token], own_files: Collection[str]) -> Iterator[Place]:
    """Everything forbidden in one file of a candidate that consists of `own_files`."""

    def included(line: str) -> bool:
        match = INCLUDE.fullmatch(line)
        return match is not None and (match[1] in HEADERS or match[2] in own_files)

    instead = (
        "Include <pk/raw.h>, CUDA's device headers or your own files, by their names; use "
        "constexpr values and templates instead of macros"
    )
    yield from directives(code, included, instead)
    plain = [token for token in code if token.kind not in {"directive", "obscure"}]
    for at, token in enumerate(plain):
        if token.kind == "name":
            yield from _names(plain, at)
        elif token.kind == "text" and (at == 0 or plain[at - 1].kind != "text"):
            yield from _texts(plain, at)
        elif token.kind == "mark":
            yield from attributes(plain, at)
            yield from _launches(plain, at)
    yield from shared_variables(plain)


def _names(code: Sequence[Token], at: int) -> Iterator[Place]:
    token = code[at]
    yield from matches(RULES, code, at)
    if _CUDA.fullmatch(token.text) and token.text not in CUDA_ALLOWED:
        yield (token.line, token.text, "memory, streams, graphs and waiting are the launcher's",
               "Start kernels with raw::start or <<<grid, threads, bytes, at.stream>>>; ask for "
               "memory in setup()")  # fmt: skip
    if _MULTICAST.fullmatch(token.text):
        yield (token.line, token.text, *_NO_MULTICAST)
    if _BELOW.fullmatch(token.text):
        yield (token.line, token.text, "it changes how code is built or called",
               "Leave it out; asm volatile is there for PTX")  # fmt: skip
    following = [other.text for other in code[at + 1 : at + 3]]
    if token.text == "std" and not (following[:1] == ["::"] and following[-1] in STD_ALLOWED):
        name = "std::" + following[-1] if following[:1] == ["::"] else "std"
        yield (token.line, name, "the host part binds arguments and starts kernels, nothing else",
               "Use plain arithmetic and CUDA's device functions")  # fmt: skip
    using = at > 0 and code[at - 1].text == "using"
    if token.text == "namespace" and following[:1] in (["pk"], ["raw"]) and not using:
        yield (token.line, f"namespace {following[0]}", "it adds to the runtime's own names",
               "Define your names outside")  # fmt: skip
    if token.text == "extern" and following[:1] != ["__shared__"]:
        yield (token.line, "extern", "it reaches for what other files define",
               "Only extern __shared__ is for you")  # fmt: skip
    if token.text == "static" and not stateless(code, at):
        yield (token.line, "static", "a static variable is shared by all ranks and launches",
               "Use constexpr, __shared__, h.scratch or a local variable")  # fmt: skip


def _launches(code: Sequence[Token], at: int) -> Iterator[Place]:
    """`<<<...>>>` without the launcher's stream: nobody would wait for that kernel."""
    marks = [token.text for token in code[at : at + 3]]
    if marks != ["<"] * 3 or (at and code[at - 1].text == "<"):
        return
    arguments = [token.text for token in code[at : at + 100]]
    ends = [i for i in range(len(arguments) - 2) if arguments[i : i + 3] == [">"] * 3]
    inside = arguments[: ends[0]] if ends else arguments
    if "stream" not in inside:
        yield (code[at].line, "<<<>>>", "it names no stream, so that nobody waits for it",
               "Write <<<grid, threads, bytes, at.stream>>>")  # fmt: skip


def _texts(code: Sequence[Token], at: int) -> Iterator[Place]:
    """String literals that stand beside each other are one."""
    parts = []
    for token in code[at:]:
        if token.kind != "text":
            break
        parts.append(token.text.strip('"'))
    text = "".join(parts)
    if _MULTICAST.search(text):
        yield (code[at].line, "multimem", *_NO_MULTICAST)
    if "griddepcontrol" in text:
        yield (code[at].line, "griddepcontrol", "it lets later work begin before this is done",
               "Leave the order of launches to the stream")  # fmt: skip
    if found := _SYSTEM_CALL.search(text):
        yield (code[at].line, found[0], "it leaves the kernel for the operating system",
               "asm is there for PTX")  # fmt: skip
