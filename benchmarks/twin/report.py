"""The twin's figures as Markdown: a summary for docs/benchmarks.md, everything for docs/twin.md."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.twin import figures
from benchmarks.twin.figures import Errors, Pick
from benchmarks.twin.measured import Measured, split
from benchmarks.twin.predict import Prediction

BEGIN = "<!-- benchmarks.twin: begin -->"
END = "<!-- benchmarks.twin: end -->"
PLOT = "twin.svg"
TARGET_MEDIAN, TARGET_P90, TARGET_CORRELATION, TARGET_PICK = 0.12, 0.30, 0.9, 0.05


@dataclass(frozen=True)
class Result:
    """A run of the twin: what was measured, what is predicted, how long that took."""

    measured: Measured
    predictions: Sequence[Prediction]
    sheet: str
    date: str
    seconds: float

    @property
    def validation(self) -> list[Prediction]:
        """The predictions of points that nothing was fitted to."""
        names = split(self.measured.points)[1]
        return [p for p in self.predictions if p.point.group in names]

    @property
    def fit(self) -> list[Prediction]:
        """The others."""
        names = split(self.measured.points)[0]
        return [p for p in self.predictions if p.point.group in names]


def summary(result: Result) -> str:
    """What goes between the markers of docs/benchmarks.md."""
    machine = result.measured.about["machine"]
    return "\n".join(
        [
            f"Predicted: **simulated**, {result.date}, sheet `{result.sheet}`, by `python3 -m "
            f"benchmarks.twin` ({result.seconds:.0f} s). Measured: {_dates(result)}, "
            f"{machine['world_size']}x {machine['gpus'][0]}, driver {machine['driver']}, CUDA "
            f"{machine['cuda']}, torch {machine['torch']}, the run behind the tables above. "
            "Constants were fitted to the fit set alone; the two sets share no (kernel, size).",
            "",
            *_summary_table(result),
            "",
            f"![predicted against measured]({PLOT})",
            "",
            "By kernel and point by point: [twin.md](twin.md).",
        ]
    )


def _dates(result: Result) -> str:
    return ", ".join(sorted({date[:10] for date in result.measured.about["dates"]}))


def _summary_table(result: Result) -> list[str]:
    sets = (("validation", result.validation), ("fit", result.fit))
    rows = ["| | wanted | validation | fit |", "| --- | --- | --- | --- |"]
    found = [figures.errors(predictions) for _, predictions in sets]
    chosen = [figures.picks(predictions, figures.by_kernel_and_size) for _, predictions in sets]
    ways = [figures.picks(predictions, figures.by_problem_and_size) for _, predictions in sets]
    orders = [figures.order(predictions) for _, predictions in sets]

    def row(name: str, wanted: str, cells: Sequence[str]) -> None:
        rows.append(f"| {name} | {wanted} | {' | '.join(cells)} |")

    row("points (kernel, size, knobs)", ">= 40", [str(e.points) for e in found])
    row("median absolute error", f"<= {_pc(TARGET_MEDIAN)}", [_pc(e.median) for e in found])
    row("90th percentile", f"<= {_pc(TARGET_P90)}", [_pc(e.p90) for e in found])
    row("worst", "", [_worst(e) for e in found])
    row("median signed error", "", [f"{100 * e.bias:+.1f} %" for e in found])
    row(
        "Spearman over all points",
        f">= {TARGET_CORRELATION}",
        [_number(figures.spearman(predictions)) for _, predictions in sets],
    )
    row(
        "Spearman by kernel over its sizes and knobs, lowest",
        f">= {TARGET_CORRELATION}",
        [_lowest(predictions) for _, predictions in sets],
    )
    row(
        f"pairs of knob settings more than {_pc(figures.NOISE)} apart, in the right order",
        "",
        [f"{o.right} of {o.pairs} (tau {_number(o.correlation)})" for o in orders],
    )
    row(
        "knobs picked for a kernel and size: within 5 % of the best measured",
        "all",
        [_within(p) for p in chosen],
    )
    row(
        "kernel and knobs picked for an operator and size: within 5 % of the best",
        "",
        [_within(p) for p in ways],
    )
    return rows


def _pc(share: float) -> str:
    return f"{100 * share:.3g} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _worst(found: Errors) -> str:
    return f"{_pc(found.worst)} ({found.worst_at})"


def _lowest(predictions: Sequence[Prediction]) -> str:
    found = {
        kernel: figures.spearman(group)
        for kernel, group in figures.grouped(predictions, lambda p: p.point.kernel).items()
        if len(group) > 2
    }
    known = {kernel: value for kernel, value in found.items() if value is not None}
    if not known:
        return "-"
    lowest = min(known, key=lambda kernel: known[kernel])
    return f"{known[lowest]:.3f} ({lowest})"


def _within(chosen: Sequence[Pick]) -> str:
    good = sum(pick.loss <= TARGET_PICK for pick in chosen)
    worst = max(chosen, key=lambda pick: pick.loss, default=None)
    text = f"{good} of {len(chosen)}"
    return text if worst is None else f"{text}, worst {_pc(worst.loss)} ({worst.group})"


def page(result: Result) -> str:
    """docs/twin.md: the summary, by kernel, the picks and every point."""
    validation = {p.point.group for p in result.validation}
    lines = [
        "# The twin: predicted against measured",
        "",
        "Written by `python3 -m benchmarks.twin`; do not edit. What the model knows and what it "
        "does not: [simulator.md](simulator.md).",
        "",
        summary(result).replace("\nBy kernel and point by point: [twin.md](twin.md).", ""),
        "The groups (kernel, size) of a kernel, in the order of the SHA-256 of their texts, go to "
        "the validation set and to the fit set by turns. Measured by this protocol: "
        f"{result.measured.about['protocol']}.",
        "",
        "## By kernel, both sets",
        "",
        "| kernel | points | median error | worst | signed | Spearman |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kernel, found in sorted(
        figures.grouped(result.predictions, lambda p: p.point.kernel).items()
    ):
        e = figures.errors(found)
        lines.append(
            f"| {kernel} | {e.points} | {_pc(e.median)} | {_pc(e.worst)} | {100 * e.bias:+.1f} % | "
            f"{_number(figures.spearman(found))} |"
        )
    lines += ["", "## Knobs it would pick", "", "By kernel and size, where there is a choice.", ""]
    lines += [
        "| kernel, size | set | picked | best measured | loss |",
        "| --- | --- | --- | --- | --- |",
    ]
    for pick in figures.picks(result.predictions, figures.by_kernel_and_size):
        kind = "validation" if pick.group in validation else "fit"
        lines.append(
            f"| {pick.group} | {kind} | {_knobs(pick.picked)} | {_knobs(pick.best)} | "
            f"{_pc(pick.loss)} |"
        )
    lines += ["", "## Every point", ""]
    lines += [
        "| kernel, size | knobs | set | measured us | (min, max) | simulated us | error | "
        "bottleneck |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for p in result.predictions:
        kind = "validation" if p.point.group in validation else "fit"
        lines.append(
            f"| {p.point.group} | {_knobs(p)} | {kind} | {p.point.us:.1f} | ({p.point.us_min:.1f}, "
            f"{p.point.us_max:.1f}) | {p.us:.1f} | {100 * p.error:+.1f} % | {p.bottleneck} |"
        )
    return "\n".join(lines) + "\n"


def _knobs(prediction: Prediction) -> str:
    return " ".join(f"{k}={v}" for k, v in prediction.point.knobs.items()) or "defaults"


def replaced(document: str, text: str) -> str:
    """The document with `text` between the markers; ValueError if it does not have them once."""
    if document.count(BEGIN) != 1 or document.count(END) != 1:
        raise ValueError(f"the document needs the lines {BEGIN} and {END}, each once")
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"
