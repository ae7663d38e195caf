"""The history of the database schema, run by `store.database.Database.migrate`.

A change of `store/models.py` comes with a new file in `versions/`; a test compares the two, and
another upgrades the database files of earlier releases.
"""
