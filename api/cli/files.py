"""Files that users name on the command line."""

from __future__ import annotations

from pathlib import Path

from api.cli.exits import CliError, ExitCode

# The service takes no larger problem file; checked before a wrong name has gigabytes read.
LARGEST_PROBLEM_BYTES = 262_144


def read_bytes(path: Path, largest: int) -> bytes:
    """The file's content; `CliError` when it is missing, no file, or over `largest` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except FileNotFoundError:
        raise CliError(ExitCode.NOT_FOUND, f"there is no file {path}") from None
    except OSError as error:
        raise CliError(ExitCode.USAGE, f"{path} cannot be read: {error.strerror}") from None
    if len(data) > largest:
        raise CliError(ExitCode.USAGE, f"{path} is larger than {largest} bytes")
    return data


def read_text(path: Path, largest: int) -> str:
    """The file's text; `CliError` also when it is not UTF-8."""
    try:
        return read_bytes(path, largest).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CliError(
            ExitCode.USAGE, f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from None


def write_new(path: Path, data: bytes, *, force: bool) -> None:
    """Write `data` to `path`; an existing file is kept unless `force`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb" if force else "xb") as file:
            file.write(data)
    except FileExistsError:
        raise CliError(
            ExitCode.USAGE, f"{path} exists; give --force to replace it or another --output"
        ) from None
    except OSError as error:
        raise CliError(ExitCode.USAGE, f"{path} cannot be written: {error.strerror}") from None
