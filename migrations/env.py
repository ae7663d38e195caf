"""Entry point of alembic: runs migrations on the connection that the caller opened."""

from __future__ import annotations

from alembic import context

from store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
