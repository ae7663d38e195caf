"""Tables from the JSON of `python3 -m benchmarks.gpu`.

python3 -m benchmarks.gpu.table results.json                           # to the terminal
python3 -m benchmarks.gpu.table results.json --write docs/benchmarks.md  # between the markers
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BEGIN = "<!-- benchmarks.gpu: begin -->"
END = "<!-- benchmarks.gpu: end -->"
NVLINK_GB_PER_S = 450.0  # nominal, one GPU, one direction: whoever is faster did not do it all
EXACT_FROM_BYTES = 1 << 20  # below, latency decides, and a share of the link says nothing

Record = dict[str, Any]


def find(row: Record, name: str) -> Record | None:
    """A contender of a row by its name."""
    return next((c for c in row["contenders"] if c["name"] == name), None)


def counts(row: Record, contender: Record) -> bool:
    """Whether a time is one: the result was right, and its bytes can have crossed the link."""
    return (
        bool(contender["right"]) and contender["us"] >= row["nvlink_bytes"] / NVLINK_GB_PER_S / 1e3
    )


def best_of_ours(row: Record) -> Record | None:
    """Our fastest right kernel on tensors in symmetric memory."""
    mine = [c for c in row["contenders"] if c["kernel"] and counts(row, c) and not c["staged"]]
    return min(mine, key=lambda c: float(c["us"]), default=None)


def best_peer(row: Record) -> Record | None:
    """The fastest right contender that is neither ours, nor plain NCCL, nor half the operator."""
    others = [
        c
        for c in row["contenders"]
        if not c["kernel"]
        and counts(row, c)
        and c["name"] not in ("nccl eager", "nccl graph", "cublas")
    ]
    return min(others, key=lambda c: float(c["us"]), default=None)


def limit_us(row: Record, gb_per_s: float) -> float:
    """What the operator takes at least: its bytes over the measured link, or its GEMM alone."""
    gemm = find(row, "cublas")
    link = float(row["nvlink_bytes"]) / gb_per_s / 1e3
    return max(link, float(gemm["us"])) if gemm else link


def _us(contender: Record | None) -> str:
    if contender is None:
        return "-"
    us = float(contender["us"])
    return f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def _ratio(other: Record | None, mine: Record | None) -> str:
    """How many times faster ours is; in bold where it is slower."""
    if other is None or mine is None:
        return "-"
    text = f"{other['us'] / mine['us']:.2f}"
    return f"**{text}**" if other["us"] < mine["us"] else text


def summary(row: Record) -> str:
    """One line for the terminal while the run goes on."""
    mine, graph, peer = best_of_ours(row), find(row, "nccl graph"), best_peer(row)
    wrong = [c["name"] for c in row["contenders"] if not c["right"]]
    parts = [
        f"{row['op']}, {row['size']}: ours {_us(mine)} us",
        f"nccl graph {_us(graph)} ({_ratio(graph, mine).strip('*')}x)",
        f"best peer {_us(peer)}{' ' + peer['name'] if peer else ''}",
    ]
    if mine:
        parts.append(f"[{mine['name']}]")
    if row["goal_us"]:
        parts.append(f"wanted {row['goal_us']:g}")
    if wrong:
        parts.append(f"WRONG: {', '.join(wrong)}")
    if row["failed"]:
        parts.append(f"failed: {'; '.join(f'{n}: {why[:160]}' for n, why in row['failed'])}")
    return f"  {', '.join(parts)} ({row['seconds']} s)"


COLUMNS = (
    "operator", "size", "NCCL eager", "NCCL graph", "best peer", "GEMM alone", "ours", "staged",
    "ours vs NCCL", "vs peer", "bus GB/s", "of limit", "SMs", "kernel", "wanted",
)  # fmt: skip


def line(row: Record, gb_per_s: float) -> list[str]:
    """The cells of a row, as COLUMNS says."""
    mine, graph, peer = best_of_ours(row), find(row, "nccl graph"), best_peer(row)
    staged = next((c for c in row["contenders"] if c["staged"] and c["right"]), None)
    bus = share = "-"
    if mine:
        if row["nvlink_bytes"]:
            bus = f"{row['nvlink_bytes'] / mine['us'] / 1e3:.0f}"
        if row["nvlink_bytes"] >= EXACT_FROM_BYTES:
            share = f"{100 * limit_us(row, gb_per_s) / mine['us']:.0f} %"
    return [
        row["op"],
        row["size"],
        _us(find(row, "nccl eager")),
        _us(graph),
        f"{_us(peer)} {peer['name']}" if peer else "-",
        _us(find(row, "cublas")),
        _us(mine),
        _us(staged),
        _ratio(graph, mine),
        _ratio(peer, mine),
        bus,
        share,
        str(mine["sms"] or "-") if mine else "-",
        f"`{mine['name']}`" if mine else "-",
        f"{row['goal_us']:g}" if row["goal_us"] else "",
    ]


def tables(record: Record) -> str:
    """Everything between the markers, as Markdown."""
    machine, limit = record["machine"], record["limit"]
    text = [
        f"**Measured** {record['date'][:10]} with `make gpu-bench`: {machine['world_size']}x "
        f"{machine['gpus'][0]}, driver {machine['driver']}, CUDA {machine['cuda']}, "
        f"torch {machine['torch']}, NCCL {machine['nccl']}; SM clocks {_clock_range(record)} MHz. "
        f"Protocol: {record['protocol']}; {record['rounds']} rounds. Microseconds.",
        "",
        f"The limit is the larger of the bytes over {limit['gb_per_s']:g} GB/s ({limit['source']}) "
        "and the GEMM alone. `staged` counts copies into and out of symmetric memory. Ratios above "
        "1 mean that ours is faster; losses are bold.",
    ]
    for section in dict.fromkeys(row["section"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["section"] == section]
        lines = [line(row, limit["gb_per_s"]) for row in rows]
        kept = [i for i in range(len(COLUMNS)) if any(cells[i] not in ("", "-") for cells in lines)]
        text += ["", f"**{section[0].upper()}{section[1:]}**", ""]
        text += [
            "| " + " | ".join(cells[i] for i in kept) + " |"
            for cells in (list(COLUMNS), ["---"] * len(COLUMNS), *lines)
        ]
    if missing := _missing(record):
        text += ["", "Not measured:", *missing]
    return "\n".join(text)


def _missing(record: Record) -> list[str]:
    """What failed or was left out, one item each."""
    items = [
        f"- {row['op']}, {row['size']}: {name}: {_plain(why)}"
        for row in record["rows"]
        for name, why in row["failed"]
    ]
    items += [
        f"- {row['op']}, {row['size']}: {c['name']} gave a wrong result (error {c['error']:.2g})"
        for row in record["rows"]
        for c in row["contenders"]
        if not c["right"]
    ]
    items += [
        f"- {row['op']}, {row['size']}: {c['name']} took {_us(c)} us, which the link's nominal "
        f"{NVLINK_GB_PER_S:g} GB/s do not allow"
        for row in record["rows"]
        for c in row["contenders"]
        if c["right"] and not counts(row, c) and c["name"] != "cublas"
    ]
    return items + [f"- {key}: {_plain(why)}" for key, why in record["not_measured"].items()]


def _plain(text: str) -> str:
    """One line of a message that Markdown does not take for something else."""
    first = text.strip().splitlines()[0] if text.strip() else "no message"
    return first[:200].replace("|", "/").replace("<", "(").replace(">", ")")


def _clock_range(record: Record) -> str:
    """Smallest and largest SM clock that was seen during the run."""
    seen = []
    for sample in record["clocks"]["during"]:
        for gpu in sample["gpus"]:
            first = gpu.split(",")[0].strip()
            if first.isdecimal():
                seen.append(int(first))
    return f"{min(seen)} to {max(seen)}" if seen else "unknown"


def replaced(document: str, text: str) -> str:
    """The document with `text` between the markers; ValueError if it does not have them once."""
    if document.count(BEGIN) != 1 or document.count(END) != 1:
        raise ValueError(f"the document needs the lines {BEGIN} and {END}, each once")
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables, or writes them into a document; 2 if that cannot be done."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.gpu.table")
    parser.add_argument("results", type=Path, help="what benchmarks.gpu wrote")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="replace its marked part")
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    try:
        text = tables(json.loads(options.results.read_text(encoding="utf-8")))
        if options.write is None:
            print(text)
        else:
            document = options.write.read_text(encoding="utf-8")
            options.write.write_text(replaced(document, text), encoding="utf-8")
    except (OSError, ValueError, KeyError) as error:
        print(f"table: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
