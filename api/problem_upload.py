"""Admitting a stranger's problem file: described and linted in a sandbox, then stored."""

from __future__ import annotations

from api.context import ServiceContext
from api.errors import ApiError
from api.known_problems import added_problem
from api.schemas.problems import ProblemCreate, ProblemRead
from pk_runtime.execution import ExecutionError
from problems.description import Description
from problems.errors import ProblemError, UnknownProblem
from problems.lint.report import LintReport
from problems.registry import get
from sandbox.isolation import IsolationUnavailable, choose
from sandbox.judge import Judge
from sandbox.problem_host import CustomProblem
from store.errors import ProblemExistsError


def admit(service: ServiceContext, body: ProblemCreate) -> ProblemRead:
    """Look at the file in a sandbox and store the problem.

    Raises `problem_rejected` with the findings, `problem_exists`, `isolation_unavailable`, or
    `infrastructure`. Blocks for seconds.
    """
    description, report = _examine(service, body.source)
    if not report.ok:
        findings = report.to_json()["findings"]
        detail = f"The lint of {description.slug!r} found {len(findings)} things to change."
        raise ApiError("problem_rejected", detail, findings=findings)
    require_free(description.slug)
    source = body.source.encode()
    sha256 = service.store.artifacts.put(source)
    try:
        with service.store.database.write() as tx:
            tx.artifacts.record(sha256, kind="problem", size=len(source))
            row = tx.problems.add(
                slug=description.slug,
                title=description.title,
                category=description.category,
                source_sha256=sha256,
                description=description.to_json(),
                lint=report.to_json(),
            )
    except ProblemExistsError as error:
        raise ApiError("problem_exists", f"{error}.") from None
    return added_problem(row).read


def _examine(service: ServiceContext, source: str) -> tuple[Description, LintReport]:
    try:
        executor = choose(
            allow_none=service.settings.allow_no_isolation,
            choice=service.settings.isolation,
            docker_host=service.settings.docker_host,
        )
        judge = Judge(cache=service.settings.build_cache, executor=executor)
        host = judge.host(CustomProblem(source))
        return host.describe(), host.lint()
    except IsolationUnavailable as error:
        raise ApiError("isolation_unavailable", str(error)) from None
    except ProblemError as error:
        finding = {"check": "load", "message": str(error), "shape": None, "world_size": None}
        detail = f"The file cannot be used: {error}"
        raise ApiError("problem_rejected", detail, findings=[finding]) from None
    except ExecutionError as error:
        raise ApiError("infrastructure", f"The sandbox failed: {error}") from None


def require_free(slug: str) -> None:
    """Raise `problem_exists` for a name of the catalogue; the database guards the added ones."""
    try:
        get(slug)
    except UnknownProblem:
        return
    raise ApiError("problem_exists", f"The catalogue has a problem {slug!r}; choose another slug.")
