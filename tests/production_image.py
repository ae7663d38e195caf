"""The production image by `docker build` from our Dockerfile, on a machine that has no registry.

The image that the Dockerfile starts from is made here under its very name: a minimal Debian, with
what this machine needs to reach its package sources (certificates, settings of apt and pip).
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tests.docker_engine import call

ROOT = Path(__file__).resolve().parents[1]
TAG = "pkforge:tested"
BUILD_S = 1200.0
_DEBIAN = "bookworm"
_WHEELS = "wheels"
_CERTIFICATES = Path("usr/local/share/ca-certificates")
_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_TORCH = "torch-*.whl"


def build(host: str) -> str:
    """Builds the image on the engine at `host` and gives its name; needs root and debootstrap."""
    with tempfile.TemporaryDirectory(prefix="pkforge-image-") as name:
        folder = Path(name)
        _base(host, folder / "root")
        context, arguments = _context(folder / "context")
        _run(
            ["docker", "--host", host, "build", "--network", "host", "--tag", TAG, *arguments,
             str(context)],
            # The engine has no network of its own, which the newer builder would ask for.
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
        )  # fmt: skip
    return TAG


def service(name: str) -> dict[str, object]:
    """A service of docker-compose.yml as it is written there."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    found: dict[str, object] = services[name]
    return found


def isolation_of(composed: dict[str, object]) -> list[str]:
    """The options of `docker run` for what a service of docker-compose.yml may do."""
    options = ["--init"] if composed["init"] else []
    for option, key in (("--cap-drop", "cap_drop"), ("--security-opt", "security_opt")):
        values = composed[key]
        assert isinstance(values, list)
        options += [part for value in values for part in (option, value)]
    return options


def _base(host: str, root: Path) -> None:
    """Imports a minimal Debian under the name that the Dockerfile's FROM has."""
    wanted = re.search(r"^FROM (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert wanted is not None
    _run(["debootstrap", "--variant=minbase", _DEBIAN, str(root)])
    for source in Path("/etc/apt/apt.conf.d").iterdir():
        shutil.copy(source, root / "etc/apt/apt.conf.d")
    (root / _CERTIFICATES).mkdir(parents=True)
    for source in ("/" / _CERTIFICATES).glob("*.crt"):
        shutil.copy(source, root / _CERTIFICATES)
    settings = configparser.ConfigParser(interpolation=None)
    settings["global"] = {"cert": _BUNDLE}
    if (index := _pip("index-url")).startswith("http"):
        settings["global"]["index-url"] = index
    with (root / "etc/pip.conf").open("w") as file:
        settings.write(file)
    shutil.rmtree(root / "var/cache/apt/archives")
    with subprocess.Popen(
        ["tar", "--directory", root, "--create", "."], stdout=subprocess.PIPE
    ) as archive:
        subprocess.run(
            ["docker", "--host", host, "import", "-", wanted[1]],
            stdin=archive.stdout, check=True, capture_output=True, timeout=BUILD_S,
        )  # fmt: skip
    assert archive.returncode == 0


def _context(folder: Path) -> tuple[Path, list[str]]:
    """What git would take, and torch's wheel where pip is configured with a folder of wheels."""
    listed = _run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-c", "-o", "--exclude-standard"]
    )
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for place in _pip("find-links").split():
        if wheels := list(Path(place.removeprefix("file://")).glob(_TORCH)):
            (folder / _WHEELS).mkdir()
            for wheel in wheels:
                shutil.copy(wheel, folder / _WHEELS)
            return folder, ["--build-arg", f"PIP_FIND_LINKS=/app/{_WHEELS}"]
    return folder, []


def _pip(name: str) -> str:
    """A setting of this machine's pip, from file or environment; empty if it has none."""
    listed = _run([str(ROOT / ".venv/bin/python"), "-m", "pip", "config", "list"])
    found = re.findall(rf"^[^=]*\.{name}='(.*)'$", listed, re.MULTILINE)
    return found[-1] if found else ""


def _run(argv: list[str], env: dict[str, str] | None = None) -> str:
    """Standard output of a command; RuntimeError with the end of what it said if it fails."""
    done = subprocess.run(
        argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-4000:]
        raise RuntimeError(f"{argv[0]} failed with {done.returncode}:\n{said}")
    return done.stdout


def inspected(host: str, form: str) -> str:
    """What `docker image inspect` says of the image, by a template."""
    return call(host, "image", "inspect", "--format", form, TAG)
