"""Problems by name, whether the catalogue holds them or a user added them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from api.context import ServiceContext
from api.errors import ApiError, FieldError
from api.schemas.problems import CalibrationRead, NoiseRead, ProblemRead, ShapeRead
from pk_runtime.target import Target, TargetError, parse_target
from problems.calibration import Calibration, calibration_of
from problems.contract import Problem
from problems.description import Description, dtype_name
from problems.errors import UnknownProblem
from problems.lint.report import LintReport
from problems.registry import catalogue, get
from problems.scales import span, span_of
from sandbox.gpu.machine import unavailable
from store.database import Transaction
from store.models import Problem as StoredProblem


@dataclass(frozen=True)
class KnownProblem:
    """A problem and, when a user added it, the id of its row."""

    read: ProblemRead
    problem_id: str | None = None

    @property
    def slug(self) -> str:
        """Its name."""
        return self.read.slug

    def require_shape(self, name: str, pointer: str) -> None:
        """Raise `unknown_shape` at `pointer` unless the problem has a shape `name`."""
        names = [shape.name for shape in self.read.shapes]
        if name not in names:
            raise ApiError(
                "unknown_shape",
                f"Problem {self.slug} has no shape {name!r}; it has {', '.join(names)}.",
                errors=[FieldError("not a shape of the problem", pointer=pointer)],
            )


def known_problems(tx: Transaction) -> list[KnownProblem]:
    """Every problem: the catalogue's in order, then the added ones, oldest first."""
    shipped = [_shipped(problem) for problem in catalogue()]
    return shipped + [added_problem(row) for row in tx.problems.list()]


def find_problem(tx: Transaction, name: str) -> KnownProblem | None:
    """The problem with this slug, number or id."""
    try:
        return _shipped(get(name))
    except UnknownProblem:
        row = tx.problems.find(name)
        return None if row is None else added_problem(row)


def unknown_detail(tx: Transaction, name: str) -> str:
    """Why `name` is no problem, with near matches."""
    try:
        get(name)
    except UnknownProblem as error:
        added = ", ".join(row.slug for row in tx.problems.list()[:20])
        return str(error) + (f" Added here: {added}." if added else "")
    return f"There is no problem {name!r}."


def asked_problem(service: ServiceContext, name: str) -> KnownProblem:
    """The problem a request body names; `unknown_problem` at `#/problem`."""
    with service.store.database.read() as tx:
        problem = find_problem(tx, name)
        if problem is None:
            where = [FieldError("names no problem", pointer="#/problem")]
            raise ApiError("unknown_problem", unknown_detail(tx, name), errors=where)
    return problem


def asked_target(service: ServiceContext, name: str) -> Target:
    """The target a request body names; `unknown_target` or `target_not_available`."""
    try:
        target = parse_target(name)
    except TargetError as error:
        where = [FieldError("names no target", pointer="#/target")]
        text = str(error)
        raise ApiError("unknown_target", text[:1].upper() + text[1:], errors=where) from None
    # With a broker the jobs run on other machines, which look for themselves.
    reason = unavailable(target) if service.settings.embedded else None
    if reason is not None:
        raise ApiError(
            "target_not_available",
            f"This service runs its jobs on this machine alone, which is not {target}: {reason}. "
            f"Use sim:{target.sheet.name}.",
        )
    return target


def added_problem(row: StoredProblem) -> KnownProblem:
    """A problem that a user added."""
    description = Description.from_json(row.description)
    found = Calibration.worst([LintReport.from_json(row.lint)])
    first = description.shapes[0]
    scales = span(description.scales, first.inputs, first.outputs)
    return KnownProblem(_read(description, "uploaded", scales, found), row.id)


def _shipped(problem: Problem) -> KnownProblem:
    scales = span_of(problem, problem.shapes[0].dims, 2)
    return KnownProblem(_read(problem, "catalogue", scales, calibration_of(problem.slug)))


def _calibration(found: Calibration) -> CalibrationRead:
    return CalibrationRead(
        gap=found.gap if math.isfinite(found.gap) else None,
        signal=found.signal if math.isfinite(found.signal) else None,
        noise=[NoiseRead(variant=n, max=v.max, rms=v.rms) for n, v in found.noise.items()],
    )


def _read(
    problem: Problem | Description,
    origin: Literal["catalogue", "uploaded"],
    scales: tuple[int, int],
    found: Calibration | None,
) -> ProblemRead:
    return ProblemRead(
        slug=problem.slug,
        number=problem.number,
        title=problem.title,
        category=problem.category,
        origin=origin,
        tolerance=problem.tolerance,
        statement=problem.statement,
        dtype=dtype_name(problem.dtype),
        inputs=list(problem.input_names),
        outputs=list(problem.output_names),
        mutates=sorted(problem.mutates),
        shapes=[
            ShapeRead(name=shape.name, kind=shape.kind, dims=dict(shape.dims))
            for shape in problem.shapes
        ],
        scales=scales,
        calibration=None if found is None else _calibration(found),
    )
