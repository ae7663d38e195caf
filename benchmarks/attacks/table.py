"""The suite's result as tables: caught, missed and false alarms by entry of the catalogue."""

from collections.abc import Sequence

from benchmarks.attacks.catalogue import CATALOGUE
from benchmarks.attacks.judging import Outcome


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many attacks were caught, missed and left to a GPU, and honest candidates likewise."""
    attacks = [o for o in outcomes if o.entry.kind == "attack"]
    honest = [o for o in outcomes if o.entry.kind == "honest"]
    return {
        "attacks": len(attacks),
        "caught": sum(o.judged and o.ok for o in attacks),
        "missed": sum(o.judged and not o.ok for o in attacks),
        "attacks for a GPU": sum(not o.judged for o in attacks),
        "honest": len(honest),
        "right": sum(o.judged and o.ok for o in honest),
        "false alarms": sum(o.judged and not o.ok for o in honest),
        "honest for a GPU": sum(not o.judged for o in honest),
    }


def summary(outcomes: Sequence[Outcome]) -> str:
    """The counts as one line."""
    return ", ".join(f"{value} {name}" for name, value in counts(outcomes).items())


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Two tables: attacks by entry of the catalogue, honest candidates by language."""
    lines = ["| entry | attack | candidates | caught | missed | GPU only |", "|---" * 6 + "|"]
    attacks = [o for o in outcomes if o.entry.kind == "attack"]
    for number, words in CATALOGUE.items():
        found = [o for o in attacks if number in o.entry.entries]
        caught = sum(o.judged and o.ok for o in found)
        missed = sum(o.judged and not o.ok for o in found)
        later = sum(not o.judged for o in found)
        cells = (str(cell or "") for cell in (len(found), caught, missed, later))
        lines.append(f"| {number} | {words} | {' | '.join(cells)} |")
    total = counts(outcomes)
    lines.append(
        f"| | **all**, each counted once | **{total['attacks']}** | **{total['caught']}** | "
        f"**{total['missed']}** | **{total['attacks for a GPU']}** |"
    )
    lines += ["", "| honest | candidates | right | false alarms | GPU only |", "|---" * 5 + "|"]
    honest = [o for o in outcomes if o.entry.kind == "honest"]
    for sort in dict.fromkeys(o.entry.sort for o in honest):
        found = [o for o in honest if o.entry.sort == sort]
        right = sum(o.judged and o.ok for o in found)
        alarms = sum(o.judged and not o.ok for o in found)
        numbers = (len(found), right, alarms, sum(not o.judged for o in found))
        lines.append(f"| {sort} | {' | '.join(str(number or '') for number in numbers)} |")
    lines.append(
        f"| **all** | **{total['honest']}** | **{total['right']}** | "
        f"**{total['false alarms']}** | **{total['honest for a GPU']}** |"
    )
    return "\n".join(lines)


def every_candidate(outcomes: Sequence[Outcome]) -> str:
    """One row per attack: what it tries, and the verdict it got."""
    lines = ["| language | entry | tries | verdict |", "|---|---|---|---|"]
    for o in outcomes:
        if o.entry.kind == "attack":
            got = f"`{o.status}`" if o.judged else "GPU only"
            wrong = "" if o.ok else f" (wanted `{o.entry.status}`)"
            lines.append(
                f"| {o.entry.sort} | {' '.join(o.entry.entries)} | {o.entry.tries} | {got}{wrong} |"
            )
    return "\n".join(lines)
