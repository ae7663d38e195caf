"""The built-in tuner: local steps and optuna's TPE over kernels and their declared knobs.

No model, no network.
"""

from __future__ import annotations

import random

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from agent.loop import Context
from agent.policies.openings import required_openings
from agent.policies.space import Point, Space
from agent.ranking import leaders
from agent.records import AttemptRecord, Proposal
from agent.spec import JobSpec

STARTUP = 8  # points near the best before TPE has enough to model the space
TURNS, LOCAL_TURNS = 3, 2  # then two of three proposals stay near the best, one is TPE's
ASK_TRIES = 32  # asks that may return an explored point before one is drawn at random
ROAM_AT, RESTART_AT = 1, 2  # flat windows

optuna.logging.set_verbosity(optuna.logging.WARNING)  # or every new study is announced on stderr


class Tuner:
    """Proposes each opening as it is, then points of the knob space until all are explored.

    Shipped defaults are good, so it first changes one knob of the best point at a time, going on
    in a direction that paid; then TPE takes turns with that. After one flat window TPE roams
    alone, after two the points near the second best are next. A proposal is a pure function of the
    seed and the history: the study is built anew each time and the history replayed into it.
    """

    name = "tuner"

    def __init__(self, spec: JobSpec) -> None:
        """Take the openings of a job; raise SpecError if there are none."""
        self._space = Space(required_openings(spec))
        self._kernels = tuple(range(len(self._space.kernels)))
        self._seed = spec.policy_seed

    def propose(self, context: Context) -> Proposal | None:
        """Return the next point to judge, None when the whole space is explored."""
        explored = self._explored(context)
        for opening in map(self._space.default, self._kernels):
            if opening not in explored:
                return self._opening(opening)
        rng = random.Random(f"{self._seed}:{len(context.attempts)}")
        point = self._choose(context, explored, rng)
        return None if point is None else self._variation(context, point)

    def _explored(self, context: Context) -> dict[Point, AttemptRecord]:
        """Return the attempt that says most about each point.

        That is its quick verdict, so that all times are of one depth, unless a full one refuted it.
        A point that only met infra_error counts as explored too, without a result.
        """
        explored: dict[Point, AttemptRecord] = {}
        for attempt in context.attempts:
            if (point := self._space.locate(attempt.candidate)) is None:
                continue
            if attempt.status == "infra_error":
                explored.setdefault(point, attempt)
            elif attempt.phase == "search" or not attempt.correct:
                explored[point] = attempt
        return explored

    def _choose(
        self, context: Context, explored: dict[Point, AttemptRecord], rng: random.Random
    ) -> Point | None:
        if len(explored) >= self._space.size:
            return None
        restart = context.plateau >= RESTART_AT
        near = len(explored) < STARTUP or len(explored) % TURNS < LOCAL_TURNS
        if restart or (near and context.plateau < ROAM_AT):
            point = self._near_leader(context, explored, elite=1 if restart else 0)
            if point is not None:
                return point
        study = self._replay(explored, rng.randrange(1 << 31))
        for _ in range(ASK_TRIES):
            if (point := self._ask(study)) not in explored:
                return point
        return self._space.next_unexplored(rng.randrange(self._space.size), explored.keys())

    def _near_leader(
        self, context: Context, explored: dict[Point, AttemptRecord], elite: int
    ) -> Point | None:
        """Return an unexplored point that differs in one knob from one of the best."""
        located = {a.number: self._space.locate(a.candidate) for a in context.attempts}
        for leader in leaders(context.attempts)[elite:]:
            here, origin = located[leader.number], located.get(leader.parent or 0)
            if here is None:
                continue
            same = origin is not None and origin.kernel == here.kernel
            for point in self._space.neighbours(here, origin if same else None):
                if point not in explored:
                    return point
        return None

    def _replay(self, explored: dict[Point, AttemptRecord], seed: int) -> optuna.Study:
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
        study = optuna.create_study(sampler=sampler, direction="minimize")
        for point, attempt in explored.items():
            if attempt.status == "infra_error":
                continue
            distributions = self._distributions(point.kernel)
            study.add_trial(
                create_trial(
                    state=TrialState.COMPLETE if attempt.correct else TrialState.PRUNED,
                    value=attempt.objective_us if attempt.correct else None,
                    params=self._params(point, distributions),
                    distributions=distributions,
                    constraints={"incorrect": 0.0 if attempt.correct else 1.0},
                )
            )
        return study

    def _ask(self, study: optuna.Study) -> Point:
        trial = study.ask()
        kernel = 0
        if len(self._kernels) > 1:
            kernel = trial.suggest_categorical("kernel", self._kernels)
        values = []
        for knob in self._space.knobs[kernel]:
            last = len(knob.values) - 1
            index = trial.suggest_int(f"{kernel}.{knob.name}", 0, last) if last else 0
            values.append(sorted(knob.values)[index])
        return Point(kernel, tuple(values))

    def _distributions(self, kernel: int) -> dict[str, BaseDistribution]:
        found: dict[str, BaseDistribution] = {}
        if len(self._kernels) > 1:
            found["kernel"] = CategoricalDistribution(self._kernels)
        for knob in self._space.knobs[kernel]:
            if len(knob.values) > 1:
                found[f"{kernel}.{knob.name}"] = IntDistribution(0, len(knob.values) - 1)
        return found

    def _params(self, point: Point, distributions: dict[str, BaseDistribution]) -> dict[str, int]:
        params = {"kernel": point.kernel} if "kernel" in distributions else {}
        for knob, value in zip(self._space.knobs[point.kernel], point.values, strict=True):
            if (name := f"{point.kernel}.{knob.name}") in distributions:
                params[name] = sorted(knob.values).index(value)
        return params

    def _opening(self, point: Point) -> Proposal:
        names = [knob.name for knob in self._space.knobs[point.kernel]]
        values = ", ".join(f"{n}={v}" for n, v in zip(names, point.values, strict=True))
        return Proposal(
            candidate=self._space.candidate(point),
            hypothesis=f"Kernel {point.kernel + 1} as it is ({values or 'no knobs'}): the start.",
        )

    def _variation(self, context: Context, point: Point) -> Proposal:
        """Derive a point from the best attempt of its kernel and say what changed against it."""
        same_kernel = [
            (attempt, origin)
            for attempt in (*leaders(context.attempts), *context.attempts)
            if (origin := self._space.locate(attempt.candidate)) and origin.kernel == point.kernel
        ]
        parent, origin = same_kernel[0]  # the openings come first, so there is one
        state = f"bound by {parent.bottleneck}" if parent.correct else f"judged {parent.status}"
        changes = self._space.changes(origin, point)
        return Proposal(
            candidate=self._space.candidate(point),
            hypothesis=f"{changes} against attempt {parent.number}, which is {state}.",
            parent=parent.number,
        )
