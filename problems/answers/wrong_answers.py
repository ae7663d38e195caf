"""The bank of known wrong answers: what typical defects of communication would have produced.

A failing output is compared with each of them; a hit names the cause. The entries that need the
problem's code are outputs of its own reference under a communication defect (`defective_outputs`),
so custom problems have them too. The others are built from the inputs and the golden.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from problems.answers.tolerance import Rule
from problems.contract import Problem, Tensors
from problems.reference.defects import Defect, fit
from problems.reference.ranks import run

# A hit is an answer that agrees with this share of the wrong elements.
HIT = 0.98
# Fewer wrong elements than this can agree with anything by chance.
ENOUGH = 4


@dataclass(frozen=True)
class WrongAnswer:
    """A known wrong answer: its outputs by rank, and what it means if a kernel returns them.

    `rank` is the rank that the name speaks of, if any. A rank or output may be absent.
    """

    name: str
    meaning: str
    outputs: Sequence[Mapping[str, Tensor]]
    rank: int | None = None


@dataclass(frozen=True)
class Match:
    """A hit in the bank: the answer's name and meaning, and others that agree as well."""

    name: str
    meaning: str
    rank: int | None = None
    also: tuple[str, ...] = ()


def defective_outputs(problem: Problem, inputs: Sequence[Tensors]) -> dict[str, list[Tensors]]:
    """The reference's outputs under each defect: "local", "without:K" and "twice:K" per rank K.

    Raises what `ranks.run` raises.
    """
    defects = {"local": Defect("local")}
    for rank in range(len(inputs)):
        defects[f"without:{rank}"] = Defect("without", rank)
        defects[f"twice:{rank}"] = Defect("twice", rank)
    return {
        name: run(problem, [dict(each) for each in inputs], defect=defect).outputs
        for name, defect in defects.items()
    }


def bank(
    inputs: Sequence[Tensors],
    golden: Sequence[Tensors],
    reference: Sequence[Tensors],
    *,
    defective: Mapping[str, Sequence[Tensors]] | None = None,
    previous: Sequence[Mapping[str, Tensor]] | None = None,
    peer_dims: Mapping[str, int] | None = None,
) -> tuple[WrongAnswer, ...]:
    """The known wrong answers of one call, the more telling ones first.

    `defective` comes from `defective_outputs`, `previous` are the right outputs of the call before
    and `peer_dims` are the problem's.
    Entries that are right (another rank's output of an all-reduce) are dropped when matched.
    """
    world_size = len(reference)
    answers = [_zeros(reference)]
    if previous is not None:
        answers.append(WrongAnswer("prev_iter_output", _STALE, previous))
    for name in inputs[0]:
        answers.append(_own_input(name, inputs, reference))
    for name, outputs in sorted((defective or {}).items()):
        answers.append(_from_defect(name, outputs))
    for shift in range(1, world_size):
        answers.append(_other_rank(golden, reference, shift))
        answers.append(_moved_parts(golden, peer_dims or {}, shift))
    answers += [_transposed(golden), _rounded(golden, reference)]
    for pair in range(0, world_size - 1, 2) if peer_dims else ():
        answers.append(_swapped(golden, peer_dims or {}, pair))
    for factor, name in ((world_size, "scaled_by_W"), (1 / world_size, "scaled_by_1/W")):
        scaled = [{k: (v.double() * factor).to(v.dtype) for k, v in g.items()} for g in golden]
        answers.append(WrongAnswer(name, _SCALED.format(factor=f"{factor:g}"), scaled))
    return tuple(answers)


def match(
    answers: Sequence[WrongAnswer], rule: Rule, rank: int, output: str, result: Tensor, bad: Tensor
) -> Match | None:
    """The answer that explains the wrong elements of a result, if there is one."""
    if int(bad.sum()) < min(ENOUGH, bad.numel()):
        return None
    hits = list(_hits(answers, rule, rank, output, result, bad))
    if not hits:
        return None
    best = max(range(len(hits)), key=lambda i: (hits[i][0], -i))
    share, answer = hits[best]
    also = tuple(other.name for s, other in hits if s >= share and other is not answer)
    return Match(answer.name, answer.meaning, answer.rank, also)


def _hits(
    answers: Sequence[WrongAnswer], rule: Rule, rank: int, output: str, result: Tensor, bad: Tensor
) -> Iterator[tuple[float, WrongAnswer]]:
    for answer in answers:
        tensor = answer.outputs[rank].get(output) if rank < len(answer.outputs) else None
        if tensor is None or tensor.shape != rule.shape:
            continue
        tensor = tensor.to(rule.dtype)
        share = float(rule.alike(result, tensor)[bad].float().mean())
        if share >= HIT and not rule.accepts(tensor):
            yield share, answer


def _zeros(reference: Sequence[Tensors]) -> WrongAnswer:
    zeros = [{name: torch.zeros_like(t) for name, t in rank.items()} for rank in reference]
    return WrongAnswer("zeros", _ZEROS, zeros)


def _own_input(name: str, inputs: Sequence[Tensors], reference: Sequence[Tensors]) -> WrongAnswer:
    copies = [
        {output: fit(inputs[rank][name], like) for output, like in outputs.items()}
        for rank, outputs in enumerate(reference)
    ]
    return WrongAnswer(f"own_input:{name}", _OWN_INPUT.format(name=name), copies)


def _from_defect(name: str, outputs: Sequence[Tensors]) -> WrongAnswer:
    kind, _, number = name.partition(":")
    if kind == "local":
        return WrongAnswer("unreduced_partial", _LOCAL, outputs)
    rank = int(number)
    if kind == "without":
        return WrongAnswer(f"output_without_rank_{rank}", _WITHOUT.format(rank=rank), outputs, rank)
    return WrongAnswer(f"twice_rank_{rank}", _TWICE.format(rank=rank), outputs, rank)


def _other_rank(golden: Sequence[Tensors], reference: Sequence[Tensors], shift: int) -> WrongAnswer:
    world_size = len(golden)
    other = [golden[(rank + shift) % world_size] for rank in range(len(reference))]
    return WrongAnswer(f"other_rank_output:rank+{shift}", _OTHER.format(shift=shift), other)


def _moved_parts(
    golden: Sequence[Tensors], peer_dims: Mapping[str, int], shift: int
) -> WrongAnswer:
    world_size = len(golden)
    moved = [
        {
            name: rank[name].roll(shift * rank[name].shape[dim] // world_size, dim)
            for name, dim in peer_dims.items()
        }
        for rank in golden
    ]
    return WrongAnswer(f"parts_moved:+{shift}", _MOVED.format(shift=shift), moved)


def _transposed(golden: Sequence[Tensors]) -> WrongAnswer:
    turned = [
        {name: t.mT.contiguous().reshape(t.shape) for name, t in rank.items() if t.ndim > 1}
        for rank in golden
    ]
    return WrongAnswer("transposed", _TRANSPOSED, turned)


def _swapped(golden: Sequence[Tensors], peer_dims: Mapping[str, int], first: int) -> WrongAnswer:
    """Two neighbouring peers' parts in each other's place."""
    order = list(range(len(golden)))
    order[first], order[first + 1] = first + 1, first
    swapped = [
        {
            name: torch.cat([rank[name].chunk(len(golden), dim)[part] for part in order], dim)
            for name, dim in peer_dims.items()
            if rank[name].shape[dim] % len(golden) == 0
        }
        for rank in golden
    ]
    meaning = _SWAPPED.format(first=first, second=first + 1)
    return WrongAnswer(f"swapped_peers:{first},{first + 1}", meaning, swapped, first)


def _rounded(golden: Sequence[Tensors], reference: Sequence[Tensors]) -> WrongAnswer:
    """The right result in bf16, where more is asked."""
    rounded = [
        {
            name: tensor.to(torch.bfloat16).to(tensor.dtype)
            for name, tensor in rank.items()
            if reference[number][name].dtype in (torch.float32, torch.float64)
        }
        for number, rank in enumerate(golden)
    ]
    return WrongAnswer("rounded_to_bf16", _ROUNDED, rounded)


_ZEROS = (
    "They are zero: this part of the output was never written, or the result was computed from "
    "buffers that were still empty. Check that every tile of it has a writer."
)
_STALE = (
    "They are the right result of the call before: a wait was satisfied by an old signal, or a "
    "buffer was read before it was filled again. Give each call its own epoch and wait for it."
)
_OWN_INPUT = (
    "They are this rank's own input {name}: the kernel returned early, or copied locally where it "
    "should exchange with its peers."
)
_LOCAL = (
    "They are this rank's own partial result, with nothing from any peer: the reduction or the "
    "exchange is missing, or its result is written somewhere else."
)
_WITHOUT = "They are the result without rank {rank}: its contribution is missing."
_TWICE = (
    "They count the contribution of rank {rank} twice: it was added to a buffer that was not "
    "cleared, or two blocks own the same tile."
)
_OTHER = (
    "They are the right output of another rank (this rank + {shift}): a peer index or the offset "
    "of a shard is wrong."
)
_MOVED = (
    "They are the right parts in the wrong places: each is {shift} too far along, modulo "
    "the world size. The offset at which a rank's part is stored, or the peer's index, is wrong."
)
_TRANSPOSED = (
    "They are the right result transposed: rows and columns are exchanged, in a tile's coordinates "
    "or in the order of an operand."
)
_SWAPPED = (
    "They are the right result with the parts of ranks {first} and {second} in each other's place: "
    "two peers are exchanged in a list or an offset."
)
_ROUNDED = (
    "They are the right result with the precision of bf16: it is accumulated, or passes through a "
    "buffer, in bf16. Sum in fp32 and round only where the output's type asks for it."
)
_SCALED = (
    "They are {factor} times the right result: a sum where a mean is wanted or the reverse, or "
    "every contribution is counted by every rank."
)
