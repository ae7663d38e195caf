"""The twin: measured points, how they are split, figures, picture, page, and a few predictions."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.twin import __main__ as twin
from benchmarks.twin import figures, fit
from benchmarks.twin.measured import (
    Measured,
    MeasuredPoint,
    Superseded,
    extract,
    read,
    split,
    write,
)
from benchmarks.twin.plot import svg
from benchmarks.twin.predict import Comparison, Prediction, candidate_of, predict
from benchmarks.twin.report import (
    BEGIN,
    END,
    Result,
    page,
    points_name,
    points_page,
    replaced,
    summary,
)
from pk_runtime.candidate import MAIN_FILE, validate
from pk_runtime.kernels import shipped_kernel, shipped_names
from pk_runtime.sheet import Sheet, load_sheet

CACHE = Path(__file__).parents[1] / ".pkforge" / "test-twin"


@pytest.fixture(scope="module")
def machines() -> list[Measured]:
    return [read(path) for path in twin.MEASURED]


@pytest.fixture(scope="module")
def measured() -> Measured:
    """The machine whose fit set the sheets were fitted to."""
    return read(twin.FITTED)


def made_up(us: float, predicted: float, size: int = 1, **knobs: int) -> Prediction:
    point = MeasuredPoint("gather", "gather", {"M": size}, knobs, us, us, us)
    return Prediction(point, predicted, "latency")


def test_every_shipped_kernel_is_measured_and_some_times_validate(machines: list[Measured]) -> None:
    current = [p for machine in machines for p in machine.current]
    assert {p.kernel for p in current} == {*shipped_names(), "gemm"}
    for point in current:
        validate(candidate_of(point))
        assert point.us_min <= point.us <= point.us_max
    assert [machine.fitted for machine in machines] == [True, False], "one is fitted to"
    for machine in machines:
        load_sheet(machine.sheet)
    validating = [p for m in machines for p in m.current if p.group not in m.fit_groups]
    assert len(validating) >= 40


def test_fit_and_validation_share_nothing(measured: Measured) -> None:
    fitted, validation = split(measured.points)
    assert measured.fit_groups == fitted
    assert not fitted & validation
    assert {p.group for p in measured.points} == fitted | validation
    assert {p.kernel for p in measured.points if p.group in validation} >= {"gather", "gemm"}


def test_superseded_points_are_left_out_and_move_no_other() -> None:
    points = tuple(made_up(us, us, m).point for m, us in enumerate((10, 99, 100, 500)))
    old = Superseded(("gather",), 100, "it was slower")
    found = Measured("h200x4", {}, points, True, (old,))
    assert [p.us for p in found.current] == [100, 500]
    assert found.fit_groups == Measured("h200x4", {}, points, True).fit_groups
    assert Measured("h200x4", {}, points).fit_groups == set()
    other = Measured("h200x4", {}, points, True, (Superseded(("scatter",), 100, "-"),))
    assert other.current == points


def test_what_is_superseded_in_the_file_shares_tensors_with_peers(measured: Measured) -> None:
    (old,) = measured.superseded
    assert set(old.kernels) == {name for name in shipped_names() if shares_tensors(name)}


def shares_tensors(name: str) -> bool:
    """Whether a shipped kernel binds the caller's tensors to a parallel_layout."""
    source = shipped_kernel(name).files[MAIN_FILE["pk"]]
    layouts = ",".join(re.findall(r"parallel_layout<\w+> ([\w, ]+);", source))
    parallel = {layout.strip() for layout in layouts.split(",")}
    return bool(parallel & set(re.findall(r'h\.(?:in|out)put\("\w+", g\.(\w+)', source)))


def test_the_split_does_not_depend_on_order_or_knobs(measured: Measured) -> None:
    assert split(measured.points[::-1]) == split(measured.points)
    names = [f"gather M={m}" for m in (1, 2, 3)]
    fitted, validation = split([made_up(1, 1, m, cols=c).point for m in (1, 2, 3) for c in (1, 2)])
    assert fitted | validation == set(names)
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
    machine = {"gpus": ["NVIDIA H100 80GB HBM3"] * 2, "world_size": 2, "driver": "1", "cuda": "2",
               "torch": "3", "nccl": "4", "power_limit_w": [700.0], "python": "-"}  # fmt: skip
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
    assert (found.sheet, found.fitted, found.machine) == ("h100x2", False, "2x H100 80GB HBM3")
    write(tmp_path / "m.json", found)
    assert read(tmp_path / "m.json") == found
    bench, out = tmp_path / "bench.json", tmp_path / "out.json"
    bench.write_text(json.dumps(record()))
    assert twin.main(["--extract", str(out), str(bench)]) == 0
    assert read(out) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 1}',
        '{"format": 2, "sheet": "h200x4", "about": {}, "points": []}',
        '{"format": 2, "sheet": "h200x4", "about": {}, "points": [{"us": 1}]}',
    ],
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
    assert twin.main(["--measured", str(twin.FITTED), "--sheet", "nowhere"]) == 2
    assert "Known sheets" in capsys.readouterr().err
    for part in (["--only", "gather"], ["--measured", str(twin.FITTED)], ["--sheet", "h200x4"]):
        with pytest.raises(SystemExit):
            twin.main(["--write", *part])


def test_fitting_takes_fit_points_that_are_not_superseded(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used: list[MeasuredPoint] = []

    def keep(name: str, sheet: Sheet, points: list[MeasuredPoint], jobs: int) -> Sheet:
        used.extend(points)
        return sheet

    monkeypatch.setattr(fit, "fit_entry", keep)
    assert fit.main(["--entries", "poll_us", "--max-us", "1e6"]) == 0
    assert used == [p for p in measured.current if p.group in measured.fit_groups]
    assert 40 < len(used) < len(measured.current)
    assert fit.main(["--only", "alltoall_direct"]) == 2
    assert "not superseded" in capsys.readouterr().err


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


def made_comparison(measured: Measured) -> Comparison:
    predictions = [Prediction(p, p.us * 1.1, "nvlink") for p in measured.current]
    return Comparison(measured, predictions, measured.sheet)


def test_picture_and_page_have_every_point_of_every_machine(machines: list[Measured]) -> None:
    result = Result([made_comparison(m) for m in machines], "2026-01-02", 3.0)
    points = sum(len(m.current) for m in machines)
    picture = ElementTree.fromstring(svg(result.comparisons))
    drawn = picture.findall("{http://www.w3.org/2000/svg}path[@class='point']")
    assert len(drawn) == points
    assert len({p.get("d", "").split("m", 1)[1] for p in drawn}) == len(machines), "shapes"
    text = summary(result)
    assert "| 10 % | 10 % | 10 % |" in text
    assert "| wanted | 4x H200 validation | 4x H200 fit | 2x H200 validation |" in text
    old = machines[0]
    assert f"{len(old.points) - len(old.current)} of its {len(old.points)} points" in text
    assert old.superseded[0].why in text
    for comparison in result.comparisons:
        text = points_page(comparison, "2026-01-02")
        assert text.count("| nvlink |") == len(comparison.measured.current)
        assert f"]({points_name(comparison)})" in page(result)
    assert replaced(f"a\n{BEGIN}\nold\n{END}\nb", "new") == f"a\n{BEGIN}\nnew\n{END}\nb"
    with pytest.raises(ValueError, match="each once"):
        replaced("no markers", "new")


def test_a_machine_alone_has_its_own_sets(machines: list[Measured]) -> None:
    fitted, other = map(made_comparison, machines)
    assert [name for name, _ in fitted.sets] == ["4x H200 validation", "4x H200 fit"]
    ((name, found),) = other.sets
    assert (name, len(found)) == ("2x H200 validation", len(machines[1].current))
    few = Comparison(machines[0], fitted.predictions[:1], "h200x4")
    assert [len(found) for _, found in few.sets] == [1]
    assert "1 of 1" not in summary(Result([few], "2026-01-02", 3.0)), "no choice, no pick"


def test_the_documents_are_those_of_the_measured_files(machines: list[Measured]) -> None:
    for machine in machines:
        comparison = made_comparison(machine)
        text = (twin.DOCS / points_name(comparison)).read_text(encoding="utf-8")
        cells = r"^\| (.+?) \| .+ \| (.+ (?:validation|fit)) \| ([\d.]+) \|"
        assert re.findall(cells, text, re.M) == [
            (p.point.group, name, f"{p.point.us:.1f}")
            for name, found in comparison.sets
            for p in found
        ]
    assert (twin.DOCS / "twin.md").is_file()
    assert (twin.DOCS / "twin.svg").is_file()
    replaced((twin.DOCS / "benchmarks.md").read_text(encoding="utf-8"), "")


@pytest.mark.slow
def test_a_few_predictions_are_near_what_was_measured(machines: list[Measured]) -> None:
    wanted = ("alltoall_ll M=8,", "gather M=32,", "gemm K=1024,", "reducescatter_pull M=32,")
    for machine in machines:
        points = [p for p in machine.current if p.group.startswith(wanted) and len(p.knobs) != 1]
        assert len(points) > 1
        seen: list[Prediction] = []
        found = predict(points[:3], load_sheet(machine.sheet), CACHE, 1, seen.append)
        assert seen == found
        for prediction in found:
            assert abs(prediction.error) < 0.42, figures.describe(prediction)
