"""Writes the database file of the current schema, with rows in every table.

Run it once with each new migration, and commit the file: `python tests/store/databases/make.py`.
Files of earlier schemas are never written again; the tests upgrade them.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from store import Settings, open_store  # noqa: E402
from tests.store import examples, test_llm_calls, test_problems  # noqa: E402


def main() -> None:
    """Write `VERSION.db` beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        with open_store(Settings(home=Path(folder)), migrate=True) as store:
            test_problems.add(store, "my_allreduce")
            claim = examples.started(store)
            test_llm_calls.reserve(store, claim, 0.5)
            test_llm_calls.settle(store, claim, 1, 0.25)
            examples.propose(store, claim.job_id, llm_call=1)
            examples.judge(store, claim.job_id, 1, candidate_us=400.0)
            examples.propose(store, claim.job_id, parent=1)
            with store.database.write() as tx:
                tx.leases.finish(claim, "succeeded", stop_reason="exhausted", best_number=1)
        with closing(sqlite3.connect(Path(folder) / "pkforge.db")) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
            (version,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        target = Path(__file__).with_name(f"{version}.db")
        target.write_bytes((Path(folder) / "pkforge.db").read_bytes())


if __name__ == "__main__":
    main()
