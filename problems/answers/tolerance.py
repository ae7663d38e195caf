"""When a result is exact enough: the tolerance classes, per output tensor.

The golden is the fp64 result of the same input bits. A bf16 kernel is judged against the golden
and relative to the error of the reference, so one that rounds less than PyTorch and NCCL passes.

| class | results | accepted if |
|---|---|---|
| T0 | copies, integers | bit-exact |
| T1 | bf16, fp16, fp8 | max error <= max(2 x the reference's, 16 x the reference's rms error, 4 u rms) and rms error <= 1.5 x the reference's + u/2 rms |
| T2 | fp32 | each error <= 1e-4 of the value + 1e-5 rms |
| T3 | fp64 | each error <= 1e-10 of the value + 1e-12 rms |

rms is that of the golden, u the unit roundoff of the dtype (2^-8 for bf16, 2^-11 for fp16). NaN
and infinity are right only where the golden has the same. The 16 is measured: where a tensor is
small, the largest error of the reference is a matter of chance, and sums in another order, as
honest, reached 2.9 times as much; none was beyond 13.2 times the rms error (docs/problems.md).
"""  # noqa: E501 - a table

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from problems.contract import Tolerance
from problems.errors import InvalidProblem

MAX_FACTOR, MAX_SPREAD, MAX_FLOOR = 2.0, 16.0, 4.0
RMS_FACTOR, RMS_FLOOR = 1.5, 0.5
RELATIVE = {"T2": (1e-4, 1e-5), "T3": (1e-10, 1e-12)}
UNIT_ROUNDOFF = {
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Errors:
    """One tensor against its rule; `bad` marks the elements beyond the limit.

    `ok` can be False without a bad element: then the rms error is over its limit, which means
    more rounding than the reference has.
    """

    ok: bool
    bad: Tensor
    max_error: float
    max_limit: float
    rms_error: float | None = None
    rms_limit: float | None = None


class Rule:
    """What one output tensor of one rank must be.

    `golden` is the exact result, `reference` the tensor that PyTorch and NCCL return; shape and
    dtype of the result are the reference's. `set_by` says which part of the rule is the limit.
    """

    def __init__(self, tolerance: Tolerance, golden: Tensor, reference: Tensor) -> None:
        if golden.shape != reference.shape:
            raise InvalidProblem(
                f"The golden has shape {list(golden.shape)}, the reference {list(reference.shape)}."
            )
        self.tolerance = tolerance
        self.shape = reference.shape
        self.dtype = reference.dtype
        self.set_by = "bits"
        self.golden = golden.to(reference.dtype) if tolerance == "T0" else _exact(golden)
        if tolerance == "T0":
            self.limit: Tensor | float = 0.0
            self.rms_limit: float | None = None
            return
        finite = self.golden.isfinite()
        self._finite = None if bool(finite.all()) else finite
        self._rms = rms = _rms(self._of_finite(self.golden))
        if tolerance == "T1":
            unit = UNIT_ROUNDOFF.get(reference.dtype, 2.0**-8)
            error = self._of_finite(_exact(reference) - self.golden)
            largest = _largest(error.abs_())
            if not math.isfinite(largest):
                error = error[error.isfinite()]
                largest = _largest(error)
            parts = {
                "largest error": MAX_FACTOR * largest,
                "rms error": MAX_SPREAD * _rms(error),
                "roundoff": MAX_FLOOR * unit * rms,
            }
            self.set_by = max(parts, key=parts.__getitem__)
            self.limit = max(parts.values())
            self.rms_limit = RMS_FACTOR * _rms(error) + RMS_FLOOR * unit * rms
        else:
            self.limit = _relative_limit(tolerance, self.golden, rms)
            self.rms_limit = None
            self.set_by = "value"

    def accepts(self, result: Tensor) -> bool:
        """Whether a result of the right shape and dtype is right."""
        if self.tolerance == "T0":
            return not bool(_bits_differ(result, self.golden).any())
        return self.errors(result).ok

    def errors(self, result: Tensor) -> Errors:
        """Judge a result of the right shape and dtype."""
        if self.tolerance == "T0":
            bad = _bits_differ(result, self.golden)
            ok = not bool(bad.any())
            return Errors(ok, bad, 0.0 if ok else _largest_difference(result, self.golden), 0.0)
        value = _exact(result)
        error = (value - self.golden).abs_()
        # Written so that NaN is bad.
        bad = ~(error <= self.limit)
        if self._finite is not None:
            bad = torch.where(self._finite, bad, ~_same(value, self.golden))
            error = error[self._finite]
        rms_error = _rms(error) if self.rms_limit is not None else None
        rms_ok = self.rms_limit is None or (rms_error is not None and rms_error <= self.rms_limit)
        limit = self.limit if isinstance(self.limit, float) else _largest(self.limit)
        ok = rms_ok and not bool(bad.any())
        return Errors(ok, self._merged(bad), _largest(error), limit, rms_error, self.rms_limit)

    def shares(self, result: Tensor) -> tuple[float, float]:
        """The largest error and the rms error of a result, as shares of their limits.

        (0, 0) for a right one of class T0; the second is 0 where there is no limit on the rms.
        """
        if self.tolerance == "T0":
            return (0.0 if self.accepts(result) else math.inf), 0.0
        error = (self._of_finite(_exact(result) - self.golden)).abs_()
        limit = self.limit if isinstance(self.limit, float) else self._of_finite(self.limit)
        worst = _largest(torch.where(error == 0, 0.0, error / limit).nan_to_num(math.inf))
        if self.rms_limit is None or _rms(error) == 0:
            return worst, 0.0
        return worst, _rms(error) / self.rms_limit if self.rms_limit > 0 else math.inf

    def alike(self, result: Tensor, other: Tensor) -> Tensor:
        """Mask of the elements in which a result is another one, but for rounding.

        The other may be of any size, as that of a call with inputs of another scale is.
        """
        if self.tolerance == "T0":
            both_nan = _isnan(result) & _isnan(other)
            return ~_bits_differ(result, other) | both_nan
        left, right = _exact(result), _exact(other)
        near = (left - right).abs() <= self._limit_around(right)
        return ~self._merged(~near & ~_same(left, right))

    def never_finite(self, result: Tensor) -> Tensor:
        """Mask of the elements that are NaN or infinite where the golden is finite."""
        if not (result.dtype.is_floating_point or result.dtype.is_complex):
            return torch.zeros(self.shape, dtype=torch.bool)
        return ~_exact_finite(result) & _exact_finite(self._shaped(self.golden))

    def expected(self) -> Tensor:
        """The golden in the result's shape."""
        return self._shaped(self.golden)

    def _limit_around(self, values: Tensor) -> Tensor | float:
        """What the limit would be if these were the golden's values."""
        rms = _rms(values[values.isfinite()])
        if not isinstance(self.limit, float):
            return _relative_limit(self.tolerance, values, rms)
        return self.limit * rms / self._rms if self._rms > 0 else self.limit

    def _of_finite(self, values: Tensor) -> Tensor:
        """The values where the golden is finite."""
        return values if self._finite is None else values[self._finite]

    def _shaped(self, tensor: Tensor) -> Tensor:
        return torch.view_as_complex(tensor) if tensor.ndim > len(self.shape) else tensor

    def _merged(self, mask: Tensor) -> Tensor:
        """A mask of complex parts as one of elements."""
        return mask.any(-1) if mask.ndim > len(self.shape) else mask


def _exact(tensor: Tensor) -> Tensor:
    """The tensor in fp64; complex numbers as pairs in a last dimension."""
    if tensor.dtype.is_complex:
        return torch.view_as_real(tensor.to(torch.complex128))
    return tensor.double()


def _relative_limit(tolerance: Tolerance, values: Tensor, rms: float) -> Tensor:
    relative, absolute = RELATIVE[tolerance]
    return values.abs() * relative + absolute * rms


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _same(left: Tensor, right: Tensor) -> Tensor:
    return (left == right) | (left.isnan() & right.isnan())


def _isnan(tensor: Tensor) -> Tensor:
    return _exact(tensor).isnan() if tensor.dtype.is_floating_point else torch.tensor(False)


def _exact_finite(tensor: Tensor) -> Tensor:
    finite = _exact(tensor).isfinite()
    return finite.all(-1) if tensor.dtype.is_complex else finite


def _bits_differ(left: Tensor, right: Tensor) -> Tensor:
    """Elementwise comparison of the bytes, so that -0.0 is not 0.0 and NaN equals itself."""
    differ = _bits(left) != _bits(right)
    return differ.any(-1) if differ.ndim > left.ndim else differ


def _bits(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers; complex numbers as pairs in a last dimension."""
    dense = tensor.detach().contiguous()
    if dense.dtype.is_complex:
        dense = torch.view_as_real(dense)
    if dense.dtype == torch.bool:
        return dense.to(torch.uint8)
    return dense.view(_INTEGERS[dense.element_size()])


def _largest_difference(left: Tensor, right: Tensor) -> float:
    difference = (_exact(left) - _exact(right)).abs_()
    return _largest(torch.where(difference.isfinite(), difference, 0.0))
