"""The first schema: problems, jobs, attempts, verdicts, model calls, events, artifacts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    _artifact()
    _problem()
    _job()
    _attempt()
    _job_event()
    _llm_call()
    _verdict()
    _timing()


def _artifact() -> None:
    op.create_table(
        "artifact",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_artifact")),
    )


def _problem() -> None:
    op.create_table(
        "problem",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("source_sha256", sa.String(length=64), nullable=False),
        sa.Column("description", JSON, nullable=False),
        sa.Column("lint", JSON, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["source_sha256"], ["artifact.sha256"], name=op.f("fk_problem_source_sha256_artifact")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_problem")),
        sa.UniqueConstraint("slug", name=op.f("uq_problem_slug")),
    )


def _job() -> None:
    op.create_table(
        "job",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("problem_id", sa.String(length=40)),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text()),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("finished_at", TIME),
        sa.Column("stop_reason", sa.String(length=32)),
        sa.Column("error", JSON),
        sa.Column("best_number", sa.Integer()),
        sa.Column("bundle_sha256", sa.String(length=64)),
        sa.Column("cancel_requested_at", TIME),
        sa.Column("woken_at", TIME, nullable=False),
        sa.Column("lease_owner", sa.Text()),
        sa.Column("lease_until", TIME),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("ran_s", sa.Double(), nullable=False),
        sa.CheckConstraint("kind IN ('optimization', 'evaluation')", name=op.f("ck_job_kind")),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_job_state"),
        ),
        sa.ForeignKeyConstraint(
            ["bundle_sha256"], ["artifact.sha256"], name=op.f("fk_job_bundle_sha256_artifact")
        ),
        sa.ForeignKeyConstraint(
            ["problem_id"], ["problem.id"], name=op.f("fk_job_problem_id_problem")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
    )
    op.create_index("ix_job_kind_id", "job", ["kind", "id"])
    op.create_index("ix_job_state_id", "job", ["state", "id"])


def _attempt() -> None:
    op.create_table(
        "attempt",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Integer()),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("hypothesis", sa.Text(), nullable=False),
        sa.Column("language", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("source_sha256", sa.String(length=64), nullable=False),
        sa.Column("knobs", JSON, nullable=False),
        sa.Column("predicted_us", sa.Double()),
        sa.Column("llm_call", sa.Integer()),
        sa.Column("usd", sa.Double()),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("judged_at", TIME),
        sa.Column("status", sa.String(length=32)),
        sa.Column("kind", sa.String(length=16)),
        sa.Column("objective_us", sa.Double()),
        sa.Column("speedup", sa.Double()),
        sa.Column("bottleneck", sa.Text()),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_attempt_job_id_job")),
        sa.ForeignKeyConstraint(
            ["source_sha256"], ["artifact.sha256"], name=op.f("fk_attempt_source_sha256_artifact")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
        sa.UniqueConstraint("job_id", "number", name=op.f("uq_attempt_job_id_number")),
    )


def _job_event() -> None:
    op.create_table(
        "job_event",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=48), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("payload", JSON, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_job_event_job_id_job")),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_job_event")),
    )


def _llm_call() -> None:
    op.create_table(
        "llm_call",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("reserved_usd", sa.Double(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("usd", sa.Double()),
        sa.Column("cost_source", sa.String(length=16), nullable=False),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("latency_s", sa.Double(), nullable=False),
        sa.Column("reply", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("unusable", sa.Text()),
        sa.Column("body", JSON),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("settled_at", TIME),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_llm_call_job_id_job")),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_llm_call")),
    )


def _verdict() -> None:
    op.create_table(
        "verdict",
        sa.Column("attempt_id", sa.String(length=40), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("stage", sa.String(length=32), nullable=False),
        sa.Column("depth", sa.String(length=16), nullable=False),
        sa.Column("body", JSON, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_verdict_attempt_id_attempt")
        ),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_verdict")),
    )


def _timing() -> None:
    op.create_table(
        "timing",
        sa.Column("attempt_id", sa.String(length=40), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("candidate_us", sa.Double(), nullable=False),
        sa.Column("baseline_us", sa.Double()),
        sa.Column("speedup", sa.Double()),
        sa.Column("roofline_us", sa.Double()),
        sa.Column("roofline_fraction", sa.Double()),
        sa.Column("bottleneck", sa.Text()),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["verdict.attempt_id"], name=op.f("fk_timing_attempt_id_verdict")
        ),
        sa.PrimaryKeyConstraint("attempt_id", "position", name=op.f("pk_timing")),
    )
