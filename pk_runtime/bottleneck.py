"""Which resource bounds a simulated run, from the engine's figures.

The busiest resource, if it is saturated; else rules in a fixed order, first hit wins. Every figure
behind the choice is kept, so that a person can disagree with it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pk_runtime.sheet import Sheet

SATURATED = 0.85
WAITING = 0.20
COMPUTING = ("loader", "consumer")
ROLES = (*COMPUTING, "storer", "communicator")


@dataclass(frozen=True)
class Bottleneck:
    """The name, one sentence of evidence, and shares of the slowest rank's time (0 to 1)."""

    name: str
    why: str
    utilization: dict[str, float]
    exposed_us: dict[str, float]
    l2_hit_rate: float

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the same fields."""
        return asdict(self)

    @staticmethod
    def from_json(data: object) -> "Bottleneck":
        """Reads what `to_json` wrote; ValueError if it is out of form."""
        match data:
            case {
                "name": str(name),
                "why": str(why),
                "utilization": dict(usage),
                "exposed_us": dict(exposed),
                "l2_hit_rate": int() | float() as hit_rate,
            }:
                return Bottleneck(name, why, _figures(usage), _figures(exposed), float(hit_rate))
        raise ValueError("a bottleneck needs name, why, utilization, exposed_us and l2_hit_rate")


def _figures(table: Mapping[Any, Any]) -> dict[str, float]:
    if not all(isinstance(value, int | float) for value in table.values()):
        raise ValueError("the figures of a bottleneck must be numbers")
    return {str(name): float(value) for name, value in table.items()}


def explain(report: Mapping[str, Any], sheet: Sheet) -> Bottleneck:
    """Names the bottleneck of a timing report (see `rank_usage` in sim/report.cc).

    Utilization is busy time over the whole time: tensor cores over the compute SMs, links and
    memories as single servers. Exposed times are microseconds: `tail` is what follows the last
    multiplication; `signals`, `mailboxes` and `loads` (of slabs) are the waits of the role that
    waited longest, averaged over the blocks that run it. Beside multiplications only loaders and
    consumers count there: communicators are there to wait.
    Raises KeyError, TypeError or ValueError on a malformed report.
    """
    total = float(report["time_us"])
    comm_sms = int(report["comm_sms"])
    compute = sheet.chip.sms - comm_sms
    slowest = max(report["ranks"], key=lambda rank: float(rank["finished_us"]))
    usage = {
        name: float(slowest[f"{name}_busy_us"]) / total
        for name in ("hbm", "l2", "link_out", "link_in")
    }
    usage["tensor"] = float(slowest["tensor_busy_us"]) / compute / total
    blocks = {"communicator": comm_sms or sheet.chip.sms}  # with none of their own: in all of them
    waits = {
        str(k): float(v) / blocks.get(str(k).split(".")[0], compute)
        for k, v in dict(slowest["waited_us"]).items()
    }
    multiplies = float(slowest["flops"]) > 0
    roles = COMPUTING if multiplies else ROLES
    longest = {
        name: max((waits.get(f"{role}.{reason}", 0.0), role) for role in roles)
        for name, reason in (("signals", "signal"), ("mailboxes", "mailbox"), ("loads", "load"))
    }
    exposed = {
        "tail": total - float(slowest["last_mma_us"]) if multiplies else 0.0,
        **{what: us for what, (us, _) in longest.items()},
        "operands": waits.get("consumer.ring_data", 0.0),
        "output": waits.get("consumer.ring_slot", 0.0),
        "entry": max((v for k, v in waits.items() if k.endswith("peers_to_enter")), default=0.0),
    }
    touched = float(slowest["l2_hits"]) + float(slowest["l2_misses"])
    hit_rate = float(slowest["l2_hits"]) / touched if touched else 0.0
    who = {what: role for what, (_, role) in longest.items()}
    name, why = _choose(total, usage, exposed, who, multiplies, hit_rate)
    return Bottleneck(
        name,
        why,
        {k: round(v, 4) for k, v in usage.items()},
        {k: round(v, 3) for k, v in exposed.items()},
        round(hit_rate, 4),
    )


def _choose(
    total: float,
    usage: Mapping[str, float],
    exposed: Mapping[str, float],
    who: Mapping[str, str],
    multiplies: bool,
    hit_rate: float,
) -> tuple[str, str]:
    link = max(usage["link_out"], usage["link_in"])
    resources = {"tensor": usage["tensor"], "nvlink": link, "hbm": usage["hbm"], "l2": usage["l2"]}
    busiest = max(resources, key=lambda name: resources[name])
    if resources[busiest] >= SATURATED:
        return busiest, f"{busiest} is busy {resources[busiest]:.0%} of the time"
    if multiplies and exposed["tail"] > WAITING * total:
        return (
            "exposed_communication",
            f"{exposed['tail']:.1f} of {total:.1f} us follow the last multiplication; "
            f"links are busy {link:.0%}",
        )
    for what in ("signals", "mailboxes"):
        if exposed[what] > WAITING * total:
            return (
                "waiting_for_peers",
                f"{who[what]}s wait {exposed[what]:.1f} of {total:.1f} us for {what}; "
                f"links are busy {link:.0%}",
            )
    if exposed["output"] > WAITING * total:
        return (
            "output_path",
            f"consumers wait {exposed['output']:.1f} of {total:.1f} us to hand over results",
        )
    if multiplies and exposed["operands"] > WAITING * total:
        return (
            "operand_supply",
            f"consumers wait {exposed['operands']:.1f} of {total:.1f} us for operands; "
            f"L2 hit rate {hit_rate:.0%}",
        )
    if resources[busiest] < 0.5:
        slabs = exposed["loads"] > WAITING * total
        return (
            "latency",
            f"no resource is busy more than {resources[busiest]:.0%} ({busiest}): "
            "latencies and tails"
            + (f"; {who['loads']}s wait {exposed['loads']:.1f} us for slabs" if slabs else ""),
        )
    return busiest, f"{busiest} is the busiest resource, {resources[busiest]:.0%} of the time"
