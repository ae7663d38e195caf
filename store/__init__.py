"""What is stored: jobs, attempts, verdicts, events, artifacts. The only package with queries."""

from __future__ import annotations

from store.artifacts import Artifacts
from store.database import Database, Transaction
from store.settings import Settings
from store.stores import Store, open_store

__all__ = ["Artifacts", "Database", "Settings", "Store", "Transaction", "open_store"]
