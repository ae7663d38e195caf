"""House rules as checks: who may import what, how long a file may be, what must be documented.

A line that breaks a rule on purpose says so: `# house: RULE, why this place is right`.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from store.settings import ENV_PREFIX, Settings

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pk_runtime", "problems", "sandbox", "store", "agent", "workers", "api", "migrations")
MAX_FILE_LINES = 420
MAX_FUNCTION_LINES = 70


def tracked(*patterns: str) -> list[Path]:
    """Files in git, and new ones that it would take, by git's patterns (`*` also matches `/`)."""
    listing = subprocess.run(
        [
            "git",
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "-c",
            "-o",
            "--exclude-standard",
            *patterns,
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def modules() -> list[Path]:
    """Every Python file of the product's packages."""
    return tracked(*(f"{package}/*.py" for package in PACKAGES))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def excused(lines: list[str], number: int, rule: str) -> bool:
    """Whether the line, or the one above it, names the rule it breaks and gives a reason."""
    nearby = lines[max(0, number - 2) : number]
    return any(re.search(rf"# house: {rule}, \S", line) for line in nearby)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import and every `module.attribute` that a module mentions."""
    yield from imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, f"{node.value.id}.{node.attr}"


# rule: (the names it is about, where they are allowed)
PLACES = {
    "processes": (
        r"(subprocess|multiprocessing|pty)\b.*"
        r"|os\.(system|popen|fork|forkpty|posix_spawnp?|exec[lv]\w*|spawn[lv]\w*)"
        r"|asyncio\.(create_subprocess_\w+|subprocess\b.*)",
        ("pk_runtime/execution.py", "sandbox/"),
    ),
    # litellm has switches only there; the hostile suite looks for secrets in it.
    "environment": (
        r"os\.(environb?|getenvb?|putenv|unsetenv)\b.*",
        ("store/settings.py", "agent/llm/litellm_client.py", "sandbox/isolation/hostile.py"),
    ),
    "llm-client": (r"(litellm|openai)\b.*", ("agent/llm/",)),
    "database": (r"(sqlalchemy|alembic|sqlite3|psycopg)\b.*", ("store/", "migrations/")),
    "queue": (r"(celery|kombu|redis)\b.*", ("workers/",)),
    # Whoever unpacks must bound what comes out: the first does, for archives of anybody. The second
    # unpacks what it has just made, the third only packs.
    "archives": (
        r"(zipfile|tarfile|zlib|gzip|bz2|lzma|zstandard|brotli)\b.*"
        r"|shutil\.(unpack_archive|register_unpack_format)",
        ("pk_runtime/bundle.py", "pk_runtime/gpu/smoke.py", "sandbox/isolation/engine.py"),
    ),
    # These run what they read. The judge sends code of its own to its sandbox, and reads none back.
    "unpickling": (
        r"(pickle|shelve|dill|cloudpickle|joblib|marshal)\b.*|(torch|numpy|np)\.load\b.*",
        ("sandbox/isolation/launcher.py",),
    ),
}


@pytest.mark.parametrize("rule", PLACES)
def test_each_power_has_its_place(rule: str) -> None:
    pattern, places = PLACES[rule]
    found = set()
    for path in modules():
        name = name_of(path)
        if name.startswith(places):
            continue
        text = path.read_text()
        lines = text.splitlines()
        for number, used in uses(ast.parse(text)):
            if re.fullmatch(pattern, used) and not excused(lines, number, rule):
                found.add(f"{name}:{number}: {used}")
    allowed = ", ".join(places)
    assert not found, f"only {allowed} may use these ({rule}):\n" + "\n".join(sorted(found))


def test_the_places_rule_sees_what_it_forbids() -> None:
    source = """
import os, torch, zipfile
from subprocess import run
def f():
    import litellm.utils
    return os.environ["A"], torch.load("x")
"""
    seen = {used for _, used in uses(ast.parse(source))}
    hits = {
        rule
        for rule, (pattern, _) in PLACES.items()
        if any(re.fullmatch(pattern, used) for used in seen)
    }
    assert hits == {"processes", "environment", "llm-client", "archives", "unpickling"}


@pytest.mark.parametrize(
    ("package", "below"),
    [("pk_runtime", ()), ("problems", ("pk_runtime",)), ("sandbox", ("pk_runtime", "problems"))],
)
def test_a_gpu_node_needs_only_numpy_and_torch(package: str, below: tuple[str, ...]) -> None:
    allowed = {"numpy", "torch", package, *below} | sys.stdlib_module_names
    found = []
    for path in tracked(f"{package}/*.py"):
        lines = path.read_text().splitlines()
        found += [
            f"{name_of(path)}:{number}: {imported}"
            for number, imported in imports(ast.parse("\n".join(lines)))
            if imported.split(".")[0] not in allowed and not excused(lines, number, "gpu-node")
        ]
    assert not found, "\n".join(found)


def test_files_stay_short_enough_to_read() -> None:
    kinds = ("py", "h", "hpp", "cuh", "cu", "cc", "cpp", "sh", "js", "html", "md")
    source = tracked(*(f"*.{kind}" for kind in kinds))
    long = [
        f"{name_of(path)}: {count} lines"
        for path in source
        if (count := len(path.read_text().splitlines())) > MAX_FILE_LINES
    ]
    assert not long, f"split these, more than {MAX_FILE_LINES} lines:\n" + "\n".join(long)


def test_functions_stay_short_enough_to_read() -> None:
    long = []
    for path in [*modules(), *tracked("tests/*.py", "scripts/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                if count > MAX_FUNCTION_LINES:
                    long.append(f"{name_of(path)}:{node.lineno}: {node.name} has {count} lines")
    assert not long, f"split these, more than {MAX_FUNCTION_LINES} lines:\n" + "\n".join(long)


def test_nothing_names_the_machine_it_was_written_on() -> None:
    folder = re.compile(
        r"(?<![\w.~})*$-])/(?:root|home(?!/me/)|Users|work|farm|mnt|opt(?!/cuda))/\w"
    )
    host = re.compile(r"\b(?:pythonhosted|pypi|deb\.debian|registry\.npmjs)\.org\b")
    found = []
    for path in tracked():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{name_of(path)}:{number}: {line.strip()[:120]}"
            for number, line in enumerate(lines, 1)
            if (folder.search(line) or host.search(line)) and not excused(lines, number, "machine")
        ]
    assert not found, "\n".join(found)


def test_tests_are_named_after_what_they_test() -> None:
    """tests/<package>/ only for a package of the product; pytest collects every test file."""
    shared = {"conftest.py", "__init__.py"}
    for path in tracked("tests/*.py"):
        parts = path.relative_to(ROOT / "tests").parts
        if len(parts) > 1:
            assert parts[0] in (*PACKAGES, "simulator", "emulator", "gpu", "web", "acceptance"), (
                f"{name_of(path)}: no such package"
            )
        defines_tests = re.search(r"^(async )?def test_", path.read_text(), re.MULTILINE)
        if defines_tests and path.name not in shared:
            assert path.name.startswith("test_"), f"{name_of(path)}: pytest does not collect it"


# --- dependencies


def locked(name: str) -> dict[str, set[str]]:
    """{package: versions} of a lock file; several where platforms or Pythons differ."""
    versions: dict[str, set[str]] = {}
    entry = re.compile(r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
    for match in entry.finditer(lock_text(name)):
        versions.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return versions


def lock_text(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.lock").read_text()


@pytest.mark.parametrize("name", ["bootstrap", "server", "dev"])
def test_lock_files_are_portable(name: str) -> None:
    text = lock_text(name)
    for entry in re.split(r"\n(?=[\w])", text)[1:]:
        assert "--hash=sha256:" in entry, f"no hash: {entry[:60]}"
    assert "://" not in text, "an address in a lock file"
    assert not re.search(r"^(-|.* @ )", text, re.MULTILINE), "an option or a direct reference"
    parts = ("cuda-nvcc", "cuda-crt", "cuda-runtime", "cuda-cccl", "nvvm") if name == "dev" else ()
    compiler = {f"nvidia-{part}" for part in parts}
    gpu = [n for n in locked(name) if re.match(r"torch$|nvidia-|cuda-", n) and n not in compiler]
    assert not gpu, f"bootstrap.sh chooses torch's build by machine; the lock must not: {gpu}"


@pytest.mark.parametrize(
    ("name", "groups"), [("server", ("build",)), ("dev", ("build", "dev", "cuda-compiler"))]
)
def test_lock_files_satisfy_pyproject(name: str, groups: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = list(project["project"]["dependencies"])
    for extra in project["project"]["optional-dependencies"].values():
        listed += extra
    for group in groups:
        listed += [item for item in project["dependency-groups"][group] if isinstance(item, str)]
    versions = locked(name)
    for requirement in map(Requirement, listed):
        package = canonicalize_name(requirement.name)
        if package in ("pkforge", "torch"):
            continue
        assert package in versions, f"{package} is not in requirements/{name}.lock: run `make lock`"
        for version in versions[package]:
            message = f"{package}=={version} is not {requirement}: run `make lock`"
            assert requirement.specifier.contains(version), message


def test_server_lock_is_part_of_dev_lock() -> None:
    dev = locked("dev")
    other = [name for name, versions in locked("server").items() if dev.get(name) != versions]
    assert not other, f"not the versions that were tested, run `make lock`: {other}"


# --- documents


def test_every_make_target_is_documented() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):[^#\n]*## \S", makefile, re.MULTILINE)
    assert {"help", "demo", "test", "lint", "serve", "format", "clean"} <= set(targets)
    text = (ROOT / "README.md").read_text() + (ROOT / "docs" / "development.md").read_text()
    missing = [target for target in targets if f"make {target}" not in text]
    assert not missing, f"neither README.md nor docs/development.md mentions make {missing}"


def test_every_setting_is_documented_as_it_is() -> None:
    rows = []
    for name, field in Settings.model_fields.items():
        default = "" if str(field.default) in ("", ".", "None") else f"`{field.default}`"
        rows.append(f"| `{ENV_PREFIX}{name.upper()}` | {default} | {field.description} |")
    found = re.findall(rf"^\| `{ENV_PREFIX}.*", (ROOT / "docs" / "running.md").read_text(), re.M)
    assert found == rows, "the table of docs/running.md should be:\n" + "\n".join(rows)


def test_the_containers_use_settings_that_exist() -> None:
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    for name in ("docker-compose.yml", "Dockerfile", "README.md", "docs/running.md"):
        used = set(re.findall(rf"{ENV_PREFIX}[A-Z_]+[A-Z]", (ROOT / name).read_text()))
        assert used <= known, f"{name} sets what nobody reads: {sorted(used - known)}"


def test_the_readme_shows_the_kernel_that_is_shipped() -> None:
    shown = re.findall(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    shipped = (ROOT / "pk_runtime" / "kernels" / "gemm_reducescatter.cu").read_text()
    assert shown, "README.md shows no kernel"
    for block in shown:
        for part in block.split("\n...\n"):
            assert part.strip("\n") in shipped, f"not in gemm_reducescatter.cu:\n{part}"


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in tracked("*.md"):
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
            if "://" not in link and not (path.parent / link).exists():
                broken.append(f"{name_of(path)}: {link}")
    assert not broken, "\n".join(broken)


def test_the_index_names_every_document() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    missing = [
        name
        for path in tracked("docs/*.md")
        if (name := path.relative_to(ROOT / "docs").as_posix()) != "index.md"
        and f"({name})" not in index
    ]
    assert not missing, f"docs/index.md does not link {missing}"


def test_decisions_are_numbered_and_complete() -> None:
    records = sorted(path for path in tracked("docs/decisions/*.md") if path.name != "template.md")
    expected = [f"{number:04}" for number in range(1, len(records) + 1)]
    assert [path.name[:4] for path in records] == expected
    for path in records:
        for heading in ("Context", "Decision", "Consequences", "Alternatives", "Check"):
            assert f"\n## {heading}\n" in path.read_text(), f"{name_of(path)} lacks '## {heading}'"
