"""Logs of worker processes: one JSON object a line on standard error."""

from __future__ import annotations

import sys

import structlog


def configure_logs() -> None:
    """Send the logs of this process to standard error; standard output is for data."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(default=str),
        ],
        logger_factory=lambda *_: structlog.PrintLogger(
            sys.stderr
        ),  # today's, not that of the start
        cache_logger_on_first_use=False,
    )
