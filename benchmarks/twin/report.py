"""The twin's figures as Markdown: a summary for docs/benchmarks.md, everything for docs/twin.md."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.twin import figures
from benchmarks.twin.figures import Errors, Pick
from benchmarks.twin.measured import Measured
from benchmarks.twin.predict import Comparison, Prediction

BEGIN = "<!-- benchmarks.twin: begin -->"
END = "<!-- benchmarks.twin: end -->"
PLOT = "twin.svg"
TARGET_MEDIAN, TARGET_P90, TARGET_CORRELATION, TARGET_PICK = 0.12, 0.30, 0.9, 0.05


@dataclass(frozen=True)
class Result:
    """A run of the twin: what is predicted of each machine, and how long that took."""

    comparisons: Sequence[Comparison]
    date: str
    seconds: float

    @property
    def sets(self) -> list[tuple[str, list[Prediction]]]:
        """Those of every machine."""
        return [found for comparison in self.comparisons for found in comparison.sets]


def summary(result: Result) -> str:
    """What goes between the markers of docs/benchmarks.md, and begins docs/twin.md."""
    pages = ", ".join(f"[{c.measured.machine}]({points_name(c)})" for c in result.comparisons)
    sheets = ", ".join(f"`{c.sheet}` for {c.measured.machine}" for c in result.comparisons)
    return "\n".join(
        [
            f"Predicted: **simulated**, {result.date}, by `python3 -m benchmarks.twin` "
            f"({result.seconds:.0f} s), sheets {sheets}.",
            "",
            *(f"- {_about(comparison.measured)}" for comparison in result.comparisons),
            "",
            *_summary_table(result),
            "",
            f"![predicted against measured]({PLOT})",
            "",
            f"By kernel: [twin.md](twin.md). Point by point: {pages}.",
        ]
    )


def _about(measured: Measured) -> str:
    machine = measured.about["machine"]
    dates = ", ".join(sorted({date[:10] for date in measured.about["dates"]}))
    sets = (
        "Constants were fitted to its fit set alone; the two sets share no (kernel, size)."
        if measured.fitted
        else "Nothing was fitted to its times: all validate."
    )
    left_out = "".join(
        f" {sum(map(s.has, measured.points))} of its {len(measured.points)} points are superseded "
        f"and left out, those below {s.below_us:g} us of {len(s.kernels)} kernels: {s.why}."
        for s in measured.superseded
    )
    return (
        f"{measured.machine}: measured {dates}, driver {machine['driver']}, CUDA "
        f"{machine['cuda']}, torch {machine['torch']}. {sets}{left_out}"
    )


def _summary_table(result: Result) -> list[str]:
    sets = result.sets
    rows = [
        f"| | wanted | {' | '.join(name for name, _ in sets)} |",
        "| --- " * (2 + len(sets)) + "|",
    ]
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
    """docs/twin.md: the summary, by kernel and the picks."""
    lines = [
        "# The twin: predicted against measured",
        "",
        "Written by `python3 -m benchmarks.twin`; do not edit. What the model knows and what it "
        "does not: [simulator.md](simulator.md).",
        "",
        summary(result).replace("By kernel: [twin.md](twin.md). ", ""),
        "",
        "The groups (kernel, size) of a kernel that constants may be fitted to, in the order of "
        "the SHA-256 of their texts, go to the validation set and to the fit set by turns. "
        f"Measured by this protocol: {result.comparisons[0].measured.about['protocol']}.",
        "",
        *(
            f"Superseded below {s.below_us:g} us on {c.measured.machine}: {', '.join(s.kernels)}.\n"
            for c in result.comparisons
            for s in c.measured.superseded
        ),
        *_by_kernel(result),
        "",
        *_picks(result),
    ]
    return "\n".join(lines) + "\n"


def points_name(comparison: Comparison) -> str:
    """The file name of points_page, e.g. "twin_h200x4.md"."""
    return f"twin_{comparison.measured.sheet}.md"


def points_page(comparison: Comparison, date: str) -> str:
    """Every point of one machine, as a page beside docs/twin.md."""
    lines = [
        f"# The twin: every point of {comparison.measured.machine}",
        "",
        f"Written by `python3 -m benchmarks.twin`, {date}; do not edit. What the columns rest on, "
        "and the figures: [the twin](twin.md).",
        "",
        *_every_point(comparison),
    ]
    return "\n".join(lines) + "\n"


def _by_kernel(result: Result) -> list[str]:
    lines = [
        "## By kernel, validation and fit",
        "",
        "| kernel | machine | points | median error | worst | signed | Spearman |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    kernels = {
        (kernel, comparison.measured.machine): found
        for comparison in result.comparisons
        for kernel, found in figures.grouped(
            comparison.predictions, lambda p: p.point.kernel
        ).items()
    }
    for (kernel, machine), found in sorted(kernels.items()):
        e = figures.errors(found)
        lines.append(
            f"| {kernel} | {machine} | {e.points} | {_pc(e.median)} | {_pc(e.worst)} | "
            f"{100 * e.bias:+.1f} % | {_number(figures.spearman(found))} |"
        )
    return lines


def _picks(result: Result) -> list[str]:
    lines = ["## Knobs it would pick", "", "By kernel and size, where there is a choice.", ""]
    lines += [
        "| kernel, size | set | picked | best measured | loss |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, predictions in result.sets:
        for pick in figures.picks(predictions, figures.by_kernel_and_size):
            lines.append(
                f"| {pick.group} | {name} | {_knobs(pick.picked)} | {_knobs(pick.best)} | "
                f"{_pc(pick.loss)} |"
            )
    return lines


def _every_point(comparison: Comparison) -> list[str]:
    lines = [
        "| kernel, size | knobs | set | measured us | (min, max) | simulated us | error | "
        "bottleneck |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, predictions in comparison.sets:
        for p in predictions:
            lines.append(
                f"| {p.point.group} | {_knobs(p)} | {name} | {p.point.us:.1f} | "
                f"({p.point.us_min:.1f}, {p.point.us_max:.1f}) | {p.us:.1f} | "
                f"{100 * p.error:+.1f} % | {p.bottleneck} |"
            )
    return lines


def _knobs(prediction: Prediction) -> str:
    return " ".join(f"{k}={v}" for k, v in prediction.point.knobs.items()) or "defaults"


def replaced(document: str, text: str) -> str:
    """The document with `text` between the markers; ValueError if it does not have them once."""
    if document.count(BEGIN) != 1 or document.count(END) != 1:
        raise ValueError(f"the document needs the lines {BEGIN} and {END}, each once")
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"
