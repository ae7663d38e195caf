"""Problems that users added, and the rows of artifacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from store.errors import NotFoundError, ProblemExistsError
from store.ids import new_id
from store.models import Artifact, Problem


class ProblemRepository:
    """Problems added by users, within one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add(
        self,
        *,
        slug: str,
        title: str,
        category: str,
        source_sha256: str,
        description: Mapping[str, Any],
        lint: Mapping[str, Any],
    ) -> Problem:
        """Store an admitted problem whose file is a recorded artifact.

        Raises ProblemExistsError if the slug is taken; the transaction goes on.
        """
        problem = Problem(
            id=new_id("prb"),
            slug=slug,
            title=title,
            category=category,
            source_sha256=source_sha256,
            description=dict(description),
            lint=dict(lint),
            created_at=datetime.now(UTC),
        )
        try:
            with self._session.begin_nested():
                self._session.add(problem)
        except IntegrityError as error:
            raise ProblemExistsError(
                f"there is already a problem {slug!r}: choose another slug in the file"
            ) from error
        return problem

    def find(self, slug: str) -> Problem | None:
        """The problem with this slug or id, if a user added one."""
        return self._session.scalar(
            select(Problem).where((Problem.slug == slug) | (Problem.id == slug))
        )

    def get(self, slug: str) -> Problem:
        """The problem with this slug or id; NotFoundError."""
        problem = self.find(slug)
        if problem is None:
            raise NotFoundError("problem", slug)
        return problem

    def list(self) -> Sequence[Problem]:
        """All problems that users added, oldest first."""
        return self._session.scalars(select(Problem).order_by(Problem.id)).all()


class ArtifactRepository:
    """The rows of artifacts, within one transaction; the bytes are in `store.artifacts`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def record(self, sha256: str, *, kind: str, size: int) -> None:
        """Make a stored artifact known, so that rows may refer to it; again is a no-op."""
        if self._session.get(Artifact, sha256) is not None:
            return
        row = Artifact(sha256=sha256, kind=kind, size=size, created_at=datetime.now(UTC))
        try:
            with self._session.begin_nested():
                self._session.add(row)
        except IntegrityError:
            # Another job stored the same bytes between the look and the insert.
            return

    def find(self, sha256: str) -> Artifact | None:
        """The row of an artifact, if it is known."""
        return self._session.get(Artifact, sha256)
