"""Every setting of the services. This is the only place that reads the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

ENV_PREFIX = "PKFORGE_"


class Settings(BaseSettings):
    """Settings of the API, the workers and the command line, from `PKFORGE_*` variables.

    `Settings()` reads the environment; keyword arguments win over it. Paths come out absolute.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="ignore", frozen=True)

    home: Path = Field(
        default=Path(".pkforge"),
        description="Folder of the database, the artifacts and the build cache.",
    )
    database_url: str = Field(
        default="",
        description="SQLAlchemy URL, `sqlite:///FILE` or `postgresql://...`. "
        "Empty: `pkforge.db` in `home`.",
    )
    broker_url: str | None = Field(
        default=None,
        description="Redis URL. When it is set, Celery workers run the jobs; "
        "otherwise the service runs them itself.",
    )
    host: str = Field(default="127.0.0.1", description="Address the API listens on.")
    port: int = Field(
        default=8770, ge=0, le=65535, description="Port of the API; 0 takes a free one."
    )
    url: str = Field(
        default="",
        description="Address of the service that the command line talks to. "
        "Empty: this machine's, at `port`.",
    )
    artifacts: Path = Field(
        default=Path(), description="Folder of the artifacts. Empty: `artifacts` in `home`."
    )
    build_cache: Path = Field(
        default=Path(), description="Folder of compiled candidates. Empty: `build` in `home`."
    )
    allow_no_isolation: bool = Field(
        default=False,
        description="Judge without a sandbox where none is available; every verdict says so.",
    )
    isolation: Literal["auto", "docker", "bubblewrap", "namespaces"] = Field(
        default="auto",
        description="Back end of the sandbox: `docker`, `bubblewrap` or `namespaces`; "
        "`auto` takes the strongest that holds.",
    )
    docker_host: str = Field(
        default="",
        description="Address of the Docker engine for the sandbox. Empty: "
        "`unix:///var/run/docker.sock`.",
    )
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        description="Largest request body the API takes, in bytes.",
    )
    max_job_wall_s: float = Field(
        default=24 * 3600.0,
        gt=0,
        description="Largest wall-time budget a job may ask for, in seconds.",
    )
    parallel_jobs: int = Field(
        default=1, ge=1, description="Jobs that the embedded dispatcher runs at the same time."
    )
    lease_s: float = Field(
        default=90.0, gt=0, description="Seconds after which a silent worker has lost its job."
    )
    heartbeat_s: float = Field(
        default=20.0,
        gt=0,
        description="Seconds between two renewals of a lease; under half of `lease_s`.",
    )
    control_poll_s: float = Field(
        default=1.0,
        gt=0,
        description="Seconds between two looks for a cancel request while a job runs.",
    )
    dispatch_poll_s: float = Field(
        default=0.5,
        gt=0,
        description="Seconds between two looks of the dispatcher for queued jobs.",
    )
    reap_s: float = Field(
        default=30.0, gt=0, description="Seconds between two rounds of the reaper."
    )
    resend_s: float = Field(
        default=60.0,
        gt=0,
        description="Seconds a queued job waits before its wake-up is sent again.",
    )
    drain_s: float = Field(
        default=20.0,
        gt=0,
        description="Seconds that running jobs get to hand themselves back at shutdown.",
    )
    abandon_s: float = Field(
        default=10.0,
        gt=0,
        description="Seconds that interrupted work gets to end before its process is killed.",
    )
    max_crashes: int = Field(
        default=3,
        ge=1,
        description="Workers a job may lose, without progress in between, until it fails.",
    )
    llm_api_base: str | None = Field(
        default=None, description="Base URL of an OpenAI-compatible server. Empty: the model's own."
    )
    llm_api_key: SecretStr | None = Field(
        default=None, description="Key for model calls; never reaches a sandbox."
    )
    llm_timeout_s: float = Field(
        default=300.0, gt=0, description="Seconds after which one model call is given up."
    )
    llm_max_tokens: int = Field(
        default=16_000, ge=256, description="Largest reply of a model, in tokens."
    )
    llm_context_tokens: int | None = Field(
        default=None,
        ge=1024,
        description="Longest prompt plus reply, for a model whose limit is not known.",
    )
    llm_input_usd_per_million: float | None = Field(
        default=None,
        ge=0,
        description="Price of a million tokens of a prompt. Wins over the known prices; "
        "set it together with the price of replies.",
    )
    llm_output_usd_per_million: float | None = Field(
        default=None, ge=0, description="Price of a million tokens of a reply."
    )

    @model_validator(mode="before")
    @classmethod
    def _blank_is_unset(cls, values: dict[str, object]) -> dict[str, object]:
        """`PKFORGE_BROKER_URL=` in a compose file means unset, not the empty URL."""
        return {name: value for name, value in values.items() if value != ""}

    @model_validator(mode="after")
    def _derive(self) -> Self:
        home = self.home.expanduser().absolute()
        url = self.database_url or f"sqlite:///{home / 'pkforge.db'}"
        for scheme in ("postgresql://", "postgres://"):
            if url.startswith(scheme):
                url = "postgresql+psycopg://" + url.removeprefix(scheme)
        if self.heartbeat_s * 2 > self.lease_s:
            raise ValueError(
                f"{ENV_PREFIX}HEARTBEAT_S is {self.heartbeat_s}: it must be at most half of "
                f"{ENV_PREFIX}LEASE_S ({self.lease_s}), or a slow renewal loses the job"
            )
        if (self.llm_input_usd_per_million is None) != (self.llm_output_usd_per_million is None):
            raise ValueError(
                f"set both {ENV_PREFIX}LLM_INPUT_USD_PER_MILLION and "
                f"{ENV_PREFIX}LLM_OUTPUT_USD_PER_MILLION, or neither"
            )
        derived = {
            "home": home,
            "database_url": url,
            "artifacts": _folder(self.artifacts, home / "artifacts"),
            "build_cache": _folder(self.build_cache, home / "build"),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        return self

    @property
    def service_url(self) -> str:
        """The address of the service, for its clients."""
        return self.url or f"http://127.0.0.1:{self.port}"

    @property
    def embedded(self) -> bool:
        """Whether this service runs the jobs itself (no broker is configured)."""
        return self.broker_url is None

    def prepare(self) -> None:
        """Create the folders, readable by the owner only. Raises OSError where that fails."""
        for folder in (self.home, self.artifacts, self.build_cache):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def environment(self) -> dict[str, str]:
        """The environment for a child process of the service that needs the same settings."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)
        }
        own: dict[str, str] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is None:
                continue
            text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            own[ENV_PREFIX + name.upper()] = text
        return inherited | own


def _folder(given: Path, default: Path) -> Path:
    return default if given == Path() else given.expanduser().absolute()
