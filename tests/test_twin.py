"""The twin: measured points, how they are split, figures, picture, page, and a few predictions."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.twin import __main__ as twin
from benchmarks.twin import figures
from benchmarks.twin.measured import Measured, MeasuredPoint, extract, read, split, write
from benchmarks.twin.plot import svg
from benchmarks.twin.predict import Prediction, candidate_of, predict
from benchmarks.twin.report import BEGIN, END, Result, page, replaced, summary
from pk_runtime.candidate import validate
from pk_runtime.kernels import shipped_names
from pk_runtime.sheet import load_sheet

CACHE = Path(__file__).parents[1] / ".pkforge" / "test-twin"


@pytest.fixture(scope="module")
def measured() -> Measured:
    return read(twin.MEASURED)


def made_up(us: float, predicted: float, size: int = 1, **knobs: int) -> Prediction:
    point = MeasuredPoint("gather", "gather", {"M": size}, knobs, us, us, us)
    return Prediction(point, predicted, "latency")


def test_every_shipped_kernel_is_measured_and_validated(measured: Measured) -> None:
    fit, validation = split(measured.points)
    assert not fit & validation
    assert {p.group for p in measured.points} == fit | validation
    validated = [p for p in measured.points if p.group in validation]
    assert len(validated) >= 40
    assert {p.kernel for p in validated} == {*shipped_names(), "gemm"}
    for point in measured.points:
        validate(candidate_of(point))
        assert point.us_min <= point.us <= point.us_max


def test_the_split_does_not_depend_on_order_or_knobs(measured: Measured) -> None:
    assert split(measured.points[::-1]) == split(measured.points)
    names = [f"gather M={m}" for m in (1, 2, 3)]
    fit, validation = split([made_up(1, 1, m, cols=c).point for m in (1, 2, 3) for c in (1, 2)])
    assert fit | validation == set(names)
    assert len(validation) == 2


def test_errors_and_order() -> None:
    points = [made_up(10, 11, cols=1), made_up(20, 18, cols=2), made_up(20.1, 30, cols=3)]
    found = figures.errors(points)
    assert found.points == 3
    assert found.median == pytest.approx(0.1)
    assert found.worst == pytest.approx(0.4925, abs=1e-3)
    assert found.worst_at == "gather M=1, cols=3"
    assert figures.spearman(points) == pytest.approx(1.0)
    assert figures.order(points) == figures.Order(2, 2), "20 and 20.1 are equal"
    assert figures.order([made_up(10, 12, cols=1), made_up(20, 11, cols=2)]).correlation == -1
    assert figures.order([made_up(10, 12), made_up(20, 11, 2)]).pairs == 0, "two sizes"
    assert figures.spearman([made_up(10, 5), made_up(20, 5)]) is None


def test_a_pick_costs_what_it_measured() -> None:
    choices = [made_up(10, 12, cols=1), made_up(11, 9, cols=2), made_up(50, 50, size=2)]
    (pick,) = figures.picks(choices, figures.by_kernel_and_size)
    assert (pick.picked.point.us, pick.best.point.us) == (11, 10)
    assert pick.loss == pytest.approx(0.1)


def record() -> dict[str, Any]:
    """One of `benchmarks.gpu`, with a contender of each kind."""

    def contender(name: str, kernel: str | None, **other: object) -> dict[str, Any]:
        times = {"us": 5.0, "us_min": 4.0, "us_max": 6.0}
        return {"name": name, "kernel": kernel, "knobs": {"cols": 64}, "right": True,
                "staged": False, **times, **other}  # fmt: skip

    contenders = [
        contender("nccl", None),
        contender("gather", "gather"),
        contender("gather", "gather", staged=True),
        contender("gather", "gather", right=False),
    ]
    rows = [{"problem": "gather", "dims": {"M": 8, "N": 128}, "contenders": contenders}]
    machine = {"gpus": ["G", "G"], "world_size": 2, "driver": "1", "cuda": "2", "torch": "3",
               "nccl": "4", "power_limit_w": [700.0], "python": "left out"}  # fmt: skip
    clocks = {"during": [{"gpus": ["1980, 1", "1700, 1", "N/A, 1"]}]}
    return {"date": "2026-01-02T03:04:05+00:00", "machine": machine, "protocol": "by turns",
            "rounds": 3, "clocks": clocks, "rows": rows}  # fmt: skip


def test_only_our_right_times_in_place_are_extracted(tmp_path: Path) -> None:
    found = extract([record()])
    (point,) = found.points
    assert (point.kernel, point.us, point.knobs, point.world_size) == (
        "gather",
        5.0,
        {"cols": 64},
        2,
    )
    assert found.about["sm_clocks_mhz"] == [1700, 1980]
    assert "python" not in found.about["machine"]
    write(tmp_path / "m.json", found)
    assert read(tmp_path / "m.json") == found
    bench, out = tmp_path / "bench.json", tmp_path / "out.json"
    bench.write_text(json.dumps(record()))
    assert twin.main(["--extract", str(out), str(bench)]) == 0
    assert read(out) == found


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 2}', '{"format": 1, "about": {}, "points": []}']
)
def test_what_is_no_measured_file_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    assert twin.main(["--measured", str(path)]) == 2
    assert "wrong.json is not a measured file" in capsys.readouterr().err


def test_wrong_commands_say_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert twin.main(["--only", "no such kernel"]) == 2
    assert "no measured point has no such kernel" in capsys.readouterr().err
    assert twin.main(["--sheet", "nowhere"]) == 2
    assert "Known sheets" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        twin.main(["--write", "--only", "gather"])


def test_measuring_runs_the_gpu_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu import __main__ as bench

    asked: list[list[str]] = []

    def benchmark(argv: list[str]) -> int:
        asked.append(argv)
        Path(argv[1]).write_text(json.dumps(record()))
        return 0

    monkeypatch.setattr(bench, "main", benchmark)
    assert twin.main(["--measure", str(tmp_path / "new.json")]) == 0
    assert bench.parse(asked[0]).seconds < 8 * 60
    assert len(read(tmp_path / "new.json").points) == 1
    monkeypatch.setattr(bench, "main", lambda argv: 2)
    assert twin.main(["--measure", str(tmp_path / "none.json")]) == 2
    assert not (tmp_path / "none.json").exists()


def test_picture_and_page_have_every_point(measured: Measured) -> None:
    predictions = [Prediction(p, p.us * 1.1, "nvlink") for p in measured.points]
    result = Result(measured, predictions, "h200x4", "2026-01-02", 3.0)
    picture = svg(predictions, split(measured.points)[0], "<title>")
    circles = ElementTree.fromstring(picture).findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == len(predictions) + 4
    assert "| 10 % | 10 % |" in summary(result)
    assert page(result).count("| nvlink |") == len(predictions)
    assert replaced(f"a\n{BEGIN}\nold\n{END}\nb", "new") == f"a\n{BEGIN}\nnew\n{END}\nb"
    with pytest.raises(ValueError, match="each once"):
        replaced("no markers", "new")


def test_the_documents_are_those_of_the_measured_file(measured: Measured) -> None:
    text = (twin.DOCS / "twin.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| .+ \| (validation|fit) \| ([\d.]+) \|", text, re.MULTILINE)
    assert [(group, us) for group, _, us in rows] == [
        (p.group, f"{p.us:.1f}") for p in measured.points
    ]
    assert (twin.DOCS / "twin.svg").is_file()
    replaced((twin.DOCS / "benchmarks.md").read_text(encoding="utf-8"), "")


@pytest.mark.slow
def test_a_few_predictions_are_near_what_was_measured(measured: Measured) -> None:
    wanted = ("alltoall_ll M=8,", "gather M=32,", "gemm K=1024,", "reducescatter_pull M=32,")
    points = [p for p in measured.points if p.group.startswith(wanted) and len(p.knobs) != 1]
    seen: list[Prediction] = []
    found = predict(points[:5], load_sheet("h200x4"), CACHE, 1, seen.append)
    assert seen == found
    for prediction in found:
        assert abs(prediction.error) < 0.42, figures.describe(prediction)
