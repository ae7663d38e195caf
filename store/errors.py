"""What can go wrong in the store. One tree, so that an edge can map each error to its answer."""

from __future__ import annotations


class StoreError(Exception):
    """Base of every error below; the message says what, where and what to do next."""


class NotFoundError(StoreError):
    """Nothing is stored under this id."""

    def __init__(self, kind: str, key: object) -> None:
        super().__init__(f"there is no {kind} {key!r}")
        self.kind = kind
        self.key = key


class AlreadyCancelledError(StoreError):
    """The job's cancellation was requested before."""


class AlreadyFinishedError(StoreError):
    """The job has ended; its outcome stays as it is."""


class ProblemExistsError(StoreError):
    """Another problem has this slug."""


class LeaseLostError(StoreError):
    """The writer no longer owns the job: another worker may run it now. Nothing was written."""


class BudgetExceededError(StoreError):
    """The reservation would take the job past its budget. Nothing was written."""

    def __init__(self, *, committed: float, asked: float, limit: float) -> None:
        super().__init__(
            f"${committed:.4f} of ${limit:.2f} is spent or reserved; "
            f"${asked:.4f} more does not fit. Raise the job's `budget.usd` to go on"
        )
        self.committed = committed
        self.asked = asked
        self.limit = limit


class AttemptStateError(StoreError):
    """An attempt was proposed while another is unjudged, or judged twice."""


class ArtifactError(StoreError):
    """An artifact is missing on disk or its content does not have its hash."""


class SchemaError(StoreError):
    """The database's schema is not the one this version works with."""


class DatabaseUnavailableError(StoreError):
    """The database does not answer, is full, or stays locked. Trying again later may help."""
