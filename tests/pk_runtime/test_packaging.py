"""The wheel holds everything that pk_runtime reads at run time."""

import zipfile
from pathlib import Path

import pytest

from pk_runtime.sheet import sheet_names

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {".h", ".cc", ".cu", ".toml", ".py"}


@pytest.mark.slow
def test_the_wheel_holds_headers_engine_kernels_and_sheets(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", exc_type=ImportError)
    (built,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(built) as archive:
        packed = {name for name in archive.namelist() if name.startswith("pk_runtime/")}
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "pk_runtime").rglob("*")
        if path.suffix in NEEDED
    }
    assert there <= packed
    sheets = {f"pk_runtime/sheets/{name}.toml" for name in sheet_names()}
    assert {"pk_runtime/include/pk/pk.h"} | sheets <= packed
