"""Health answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from api.schemas.common import Schema


class HealthRead(Schema):
    """The process answers; nothing else is looked at."""

    status: Literal["ok"] = Field(description="Always `ok`.")
    version: str = Field(description="Version of pkforge.")


class CheckRead(Schema):
    """One thing the service needs."""

    name: str = Field(description="What was looked at.")
    ok: bool = Field(description="Whether it is as it must be.")
    detail: str = Field(description="What was found.")
    fix: str | None = Field(description="What to do about it; null when it is fine.")


class ReadyRead(Schema):
    """Whether the service can take and run jobs."""

    ready: bool = Field(description="Every check passed.")
    failed: list[str] = Field(description="Names of the checks that did not pass.")
    checks: list[CheckRead] = Field(description="Every check, in order.")
