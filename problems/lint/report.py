"""What the task lint found of a problem: the report, as an object and as JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from problems.errors import WireError
from problems.fields import Fields
from problems.lint.noise import Noise

MAX_FINDINGS = 500
MAX_RATIO = 1e30  # what a report may hold; a reference without any error gives more
MAX_MESSAGE = 4000
MAX_VARIANTS = 16


@dataclass(frozen=True)
class LintFinding:
    """Why a problem is refused: the check that failed, where, and what to change."""

    check: str
    message: str
    shape: str | None = None
    world_size: int | None = None


@dataclass(frozen=True)
class LintReport:
    """The lint's result: `checks` were made, `findings` failed.

    `gap` is the least ratio of a missing rank's error to the reference's own (infinite for exact
    problems), `signal` the least ratio of the outputs' rms to the tolerance, `noise` the most that
    each honest variant errs (none for exact problems).
    """

    ok: bool
    checks: int
    findings: tuple[LintFinding, ...]
    gap: float
    signal: float
    noise: Mapping[str, Noise] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON; an infinite ratio is null."""
        return {
            "ok": self.ok,
            "checks": self.checks,
            "findings": [asdict(finding) for finding in self.findings],
            "gap": min(self.gap, MAX_RATIO) if math.isfinite(self.gap) else None,
            "signal": min(self.signal, MAX_RATIO) if math.isfinite(self.signal) else None,
            "noise": {
                name: {"max": min(noise.max, MAX_RATIO), "rms": min(noise.rms, MAX_RATIO)}
                for name, noise in self.noise.items()
            },
        }

    @classmethod
    def from_json(cls, data: object) -> "LintReport":
        """Read what `to_json` wrote. Raises WireError, which names the field that is wrong."""
        fields = Fields(data, "lint report")
        findings = [Fields(item, "findings") for item in fields.items("findings", MAX_FINDINGS)]
        return cls(
            ok=fields.value("ok", bool) and not findings,
            checks=fields.integer("checks"),
            findings=tuple(
                LintFinding(
                    check=finding.text("check", 200),
                    message=finding.text("message", MAX_MESSAGE),
                    shape=finding.optional("shape", finding.name),
                    world_size=finding.optional("world_size", finding.integer),
                )
                for finding in findings
            ),
            gap=fields.optional("gap", fields.cost) or math.inf,
            signal=fields.optional("signal", fields.cost) or math.inf,
            noise=fields.optional("noise", lambda key: _noise(fields.table(key))) or {},
        )


def _noise(fields: Fields) -> dict[str, Noise]:
    if len(fields.data) > MAX_VARIANTS:
        raise WireError(f"{fields.where} has more than {MAX_VARIANTS} entries.")
    heard = {str(name)[:40]: fields.table(name) for name in fields.data}
    return {name: Noise(noise.cost("max"), noise.cost("rms")) for name, noise in heard.items()}


class Tally:
    """Counts checks and keeps each distinct finding once per shape and world size."""

    def __init__(self) -> None:
        self.checks = 0
        self.findings: dict[tuple[str, str | None, int | None], LintFinding] = {}
        self.gap = math.inf
        self.signal = math.inf
        self.noise: dict[str, Noise] = {}
        self._shape: str | None = None
        self._world_size: int | None = None
        self._advice = ""

    def at(self, shape: str, world_size: int, advice: str = "") -> None:
        """Where the next checks are made, and what to add to the words of those that fail."""
        self._shape, self._world_size, self._advice = shape, world_size, advice

    def hear(self, variant: str, noise: Noise) -> None:
        """Keep the most that a variant errs."""
        self.noise[variant] = self.noise.get(variant, noise).most(noise)

    def check(self, name: str, ok: bool, message: str) -> None:
        """Count a check; what it means if it does not hold."""
        self.checks += 1
        if not ok:
            self.fail(name, message)

    def fail(self, name: str, message: str) -> None:
        """Keep a finding."""
        key = (name if name != "contract" else message, self._shape, self._world_size)
        if len(self.findings) < MAX_FINDINGS:
            text = message.strip()[: MAX_MESSAGE - len(self._advice)] + self._advice
            finding = LintFinding(name, text, self._shape, self._world_size)
            self.findings.setdefault(key, finding)

    def report(self) -> LintReport:
        """What was found."""
        found = tuple(self.findings.values())
        return LintReport(not found, self.checks, found, self.gap, self.signal, self.noise)
