"""The tables. Columns hold what is queried or shown in lists; whole documents are JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    CheckConstraint,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

JOB_KINDS = ("optimization", "evaluation")
JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled")
FINAL_STATES = ("succeeded", "failed", "cancelled")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time; SQLite, which knows no zones, stores it without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC; a naive time is a programming error."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without zone cannot be stored: {value!r}")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Back to an aware UTC time."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class CleanText(TypeDecorator[str]):
    """Text from outside: PostgreSQL refuses NUL and lone surrogates, so they become U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace what cannot be stored."""
        if value is None:
            return None
        return value.replace("\0", "�").encode("utf-8", "replace").decode("utf-8")


class Base(DeclarativeBase):
    """Base of all tables; constraints have names, so that migrations can change them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime(),
        dict[str, Any]: JSON(none_as_null=True),
    }


def _one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


class Artifact(Base):
    """Bytes on disk, named by their hash. `kind`: `source`, `problem` or `bundle`."""

    __tablename__ = "artifact"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    size: Mapped[int]
    created_at: Mapped[datetime]


class Problem(Base):
    """A problem that a user added. The catalogue's own problems live in the code."""

    __tablename__ = "problem"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    slug: Mapped[str] = mapped_column(CleanText, unique=True)
    title: Mapped[str] = mapped_column(CleanText)
    category: Mapped[str] = mapped_column(CleanText)
    source_sha256: Mapped[str] = mapped_column(ForeignKey("artifact.sha256"))
    description: Mapped[dict[str, Any]]
    lint: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Job(Base):
    """An optimization (`job_...`) or the evaluation of one candidate (`evl_...`).

    `fence` grows with every claim; a write that carries an older one is refused. `runs` counts
    claims, `crashes` the workers lost since the last judged attempt, `last_seq` the events,
    `ran_s` the seconds it has been running. `best_number` is the attempt that is its result.
    """

    __tablename__ = "job"
    __table_args__ = (
        _one_of("kind", JOB_KINDS),
        _one_of("state", JOB_STATES),
        Index(None, "state", "id"),
        Index(None, "kind", "id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    problem: Mapped[str] = mapped_column(CleanText)
    problem_id: Mapped[str | None] = mapped_column(ForeignKey("problem.id"))
    target: Mapped[str] = mapped_column(CleanText)
    policy: Mapped[str | None] = mapped_column(CleanText)
    spec: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    stop_reason: Mapped[str | None] = mapped_column(String(32))
    error: Mapped[dict[str, Any] | None]
    best_number: Mapped[int | None]
    bundle_sha256: Mapped[str | None] = mapped_column(ForeignKey("artifact.sha256"))
    cancel_requested_at: Mapped[datetime | None]
    woken_at: Mapped[datetime]
    lease_owner: Mapped[str | None] = mapped_column(Text)
    lease_until: Mapped[datetime | None]
    fence: Mapped[int] = mapped_column(default=0)
    runs: Mapped[int] = mapped_column(default=0)
    crashes: Mapped[int] = mapped_column(default=0)
    last_seq: Mapped[int] = mapped_column(default=0)
    ran_s: Mapped[float] = mapped_column(default=0.0)

    @property
    def finished(self) -> bool:
        """Whether the job has ended, whatever the outcome."""
        return self.state in FINAL_STATES


class Attempt(Base):
    """One step of a job, stored before it is judged; `status` is empty until then.

    `objective_us` and `speedup` are what attempts are compared by, of `kind` `simulated` or
    `measured`; `llm_call` is the number of the model call whose reply it is.
    """

    __tablename__ = "attempt"
    __table_args__ = (UniqueConstraint("job_id", "number"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("job.id"))
    number: Mapped[int]
    parent: Mapped[int | None]
    phase: Mapped[str] = mapped_column(String(16))
    hypothesis: Mapped[str] = mapped_column(CleanText)
    language: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(String(64))
    source_sha256: Mapped[str] = mapped_column(ForeignKey("artifact.sha256"))
    knobs: Mapped[dict[str, Any]]
    predicted_us: Mapped[float | None]
    llm_call: Mapped[int | None]
    usd: Mapped[float | None]
    tokens_in: Mapped[int] = mapped_column(default=0)
    tokens_out: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime]
    judged_at: Mapped[datetime | None]
    status: Mapped[str | None] = mapped_column(String(32))
    kind: Mapped[str | None] = mapped_column(String(16))
    objective_us: Mapped[float | None]
    speedup: Mapped[float | None]
    bottleneck: Mapped[str | None] = mapped_column(CleanText)


class Verdict(Base):
    """What the judge said of an attempt; `body` is the whole verdict as the judge wrote it."""

    __tablename__ = "verdict"

    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempt.id"), primary_key=True)
    status: Mapped[str] = mapped_column(String(32))
    stage: Mapped[str] = mapped_column(String(32))
    depth: Mapped[str] = mapped_column(String(16))
    body: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Timing(Base):
    """One timed shape of a verdict, in microseconds; `kind` is `simulated` or `measured`."""

    __tablename__ = "timing"

    attempt_id: Mapped[str] = mapped_column(ForeignKey("verdict.attempt_id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    shape: Mapped[str] = mapped_column(CleanText)
    kind: Mapped[str] = mapped_column(String(16))
    candidate_us: Mapped[float]
    baseline_us: Mapped[float | None]
    speedup: Mapped[float | None]
    roofline_us: Mapped[float | None]
    roofline_fraction: Mapped[float | None]
    bottleneck: Mapped[str | None] = mapped_column(CleanText)


class LlmCall(Base):
    """A model call: reserved before it is made, settled with its reply before that is acted on.

    One that stayed unsettled was cut off by a crash: it may have been charged, so `reserved_usd`
    counts. A settled call counts `usd` (unknown prices count nothing).
    """

    __tablename__ = "llm_call"

    job_id: Mapped[str] = mapped_column(ForeignKey("job.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(CleanText)
    reserved_usd: Mapped[float]
    settled: Mapped[bool] = mapped_column(default=False)
    usd: Mapped[float | None]
    cost_source: Mapped[str] = mapped_column(String(16), default="unknown")
    tokens_in: Mapped[int] = mapped_column(default=0)
    tokens_out: Mapped[int] = mapped_column(default=0)
    latency_s: Mapped[float] = mapped_column(default=0.0)
    reply: Mapped[str | None] = mapped_column(CleanText)
    error: Mapped[str | None] = mapped_column(CleanText)
    unusable: Mapped[str | None] = mapped_column(CleanText)
    body: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime]
    settled_at: Mapped[datetime | None]


class JobEvent(Base):
    """What happened to a job, append-only; `seq` counts from 1 without gaps within a job."""

    __tablename__ = "job_event"

    job_id: Mapped[str] = mapped_column(ForeignKey("job.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    type: Mapped[str] = mapped_column(String(48))
    at: Mapped[datetime]
    payload: Mapped[dict[str, Any]]
