"""Real PostgreSQL and Redis servers for the tests, on free ports, gone when the tests are."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import redis

START_S = 30.0
STOP_S = 10.0
_NOBODY = ("--reuid", "nobody", "--regid", "nogroup", "--clear-groups")
_INITDB_OPTIONS = ("-U", "pkforge", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
_TEMPLATE = "migrated"


@dataclass
class Postgres:
    """A running server; `template` is a database that new ones are copied from."""

    port: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def url(self, database: str) -> str:
        """The URL of one of its databases."""
        return f"postgresql+psycopg://pkforge@127.0.0.1:{self.port}/{database}"

    def prepare_template(self, migrate: Callable[[str], None]) -> None:
        """Create the database that `create_database` copies, and migrate it."""
        self._execute(f"CREATE DATABASE {_TEMPLATE}")
        migrate(self.url(_TEMPLATE))

    def create_database(self, *, migrated: bool) -> str:
        """The URL of a new database, with the current schema or empty."""
        name = f"test_{next(self._numbers)}"
        template = _TEMPLATE if migrated else "template0"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def _execute(self, statement: str) -> None:
        with psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=pkforge dbname=postgres", autocommit=True
        ) as connection:
            connection.execute(statement.encode())


@contextlib.contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Start a PostgreSQL server of its own; RuntimeError naming the package if it is missing."""
    binaries = _postgres_binaries()
    with _folder_for_server() as folder:
        user = _NOBODY if os.geteuid() == 0 else ()
        data = folder / "data"
        subprocess.run(
            ["setpriv", *user, binaries / "initdb", "-D", data, *_INITDB_OPTIONS],
            check=True,
            cwd=folder,
            capture_output=True,
            timeout=START_S,
        )
        port = free_port()
        options = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"]
        arguments = [item for option in options for item in ("-c", option)]
        command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), *arguments]

        def ready() -> None:
            psycopg.connect(
                f"host=127.0.0.1 port={port} user=pkforge dbname=postgres connect_timeout=2"
            ).close()

        # SIGQUIT: at once, as nobody needs the data any more.
        with _server([*user, "--pdeathsig", "QUIT", *command], signal.SIGQUIT, folder, ready):
            yield Postgres(port)


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """Start a Redis server of its own and give its URL; RuntimeError if it is not installed."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise RuntimeError(_missing("redis-server"))
    with _folder_for_server() as folder:
        port = free_port()
        url = f"redis://127.0.0.1:{port}/0"
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]

        def ready() -> None:
            with redis.Redis.from_url(url) as client:
                client.ping()

        with _server(["--pdeathsig", "TERM", *command], signal.SIGTERM, folder, ready):
            yield url


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _server(
    command: list[str], stop: signal.Signals, folder: Path, ready: Callable[[], None]
) -> Iterator[None]:
    """Run a server (arguments of setpriv) in `folder` until the block or this process ends."""
    log = folder / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            ["setpriv", *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            _await_ready(process, ready, log)
            yield
        finally:
            process.send_signal(stop)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_ready(process: subprocess.Popen[bytes], ready: Callable[[], None], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            ready()
            return
        except (psycopg.OperationalError, redis.ConnectionError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a server did not start:\n{log.read_text()}") from error
        time.sleep(0.05)


@contextlib.contextmanager
def _folder_for_server() -> Iterator[Path]:
    """A folder that the server's user owns and can reach, unlike pytest's private ones."""
    folder = Path(tempfile.mkdtemp(prefix="pkforge-test-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody", "nogroup")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgres_binaries() -> Path:
    """The newest installed server's programs; Debian keeps them out of PATH."""
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3])
    )
    on_path = shutil.which("postgres")
    if installed:
        return installed[-1].parent
    if on_path is not None:
        return Path(on_path).resolve().parent
    raise RuntimeError(_missing("postgresql"))


def _missing(package: str) -> str:
    return f"the tests need the Debian package {package!r}: run `apt-get install {package}`"
