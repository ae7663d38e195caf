"""The mutations: one edit of one file each, and the suite that should be the first to notice."""

from dataclasses import dataclass
from typing import Literal

Suite = Literal["comparison", "reports", "rules", "objects", "problems", "judge"]
SUITES: tuple[Suite, ...] = ("comparison", "reports", "rules", "objects", "problems", "judge")


@dataclass(frozen=True)
class Edit:
    """`old` becomes `new` in `file`: what is broken, in words, and where that should show first."""

    broken: str
    suite: Suite
    file: str
    old: str
    new: str


def _edits(suite: Suite, file: str, *changes: tuple[str, str, str]) -> tuple[Edit, ...]:
    return tuple(Edit(broken, suite, file, old, new) for broken, old, new in changes)


_COMPARE = _edits(
    "comparison", "problems/answers/compare.py",
    ("the comparison is always satisfied", "Comparison(not findings, ", "Comparison(True, "),
    ("dtype is not compared", "if value.dtype != rule.dtype:", "if False:"),
    ("shape is not compared", "if value.shape != rule.shape:", "if False:"),
    ("an absent output is skipped", 'return [Finding("missing", name, rank, "there is no such',
     'return [] and [Finding("missing", name, rank, "there is no such'),
    ("other kinds of objects are let through", "if type(value) is not Tensor or ", "if "),
    ("outputs of unknown names are ignored", "for name in sorted(str(n) for n in outputs",
     "for name in sorted(str(n) for n in ()"),
    ("the number of ranks is not compared", "or len(results) != ranks:", "or False:"),
    ("only rank 0 is compared", "for rank, rules in enumerate(self._rules):\n                for",
     "for rank, rules in enumerate(self._rules[:1]):\n                for"),
    ("changed inputs are not noticed", "_digest(now[name]) != before[name]", "False"),
)  # fmt: skip
_TOLERANCE = _edits(
    "comparison", "problems/answers/tolerance.py",
    ("NaN is within the limit", "bad = ~(error <= self.limit)", "bad = error > self.limit"),
    ("infinity is within the limit", "error = (value - self.golden).abs_()",
     "error = (value - self.golden).abs_().nan_to_num_(0.0, 0.0, 0.0)"),
    ("one right element is enough", "ok = rms_ok and not bool(bad.any())",
     "ok = rms_ok and not bool(bad.all())"),
    ("the limit is 100 times as wide", "self.limit = max(parts",
     "self.limit = 100 * max(parts"),
    ("the rms error is not looked at", "rms_ok = self.rms_limit is None or", "rms_ok = True or"),
    ("the rms limit is 100 times as wide", "self.rms_limit = RMS_FACTOR",
     "self.rms_limit = 100 * RMS_FACTOR"),
    ("the limit is 10 times as narrow", "self.limit = max(parts",
     "self.limit = 0.1 * max(parts"),
    ("values are compared instead of bits", "differ = _bits(left) != _bits(right)",
     "differ = _exact(left) != _exact(right)"),
    ("the reference is taken for the golden", "else _exact(golden)", "else _exact(reference)"),
    ("fp32 results have the limit of bf16 ones", '"T2": (1e-4, 1e-5)', '"T2": (1e-2, 1e-2)'),
)  # fmt: skip
_SCALES = _edits(
    "comparison", "problems/scales.py",
    ("scales are always 1", "return low + drawn % (high - low + 1)", "return 0"),
    ("scales are never below 1", "return low + drawn % (high - low", "return drawn % (high"),
) + _edits(
    "comparison", "problems/hosting.py",
    ("inputs are not scaled", "  scales.scaled(", "  (lambda inputs, k: inputs)("),
)  # fmt: skip
_ANSWERS = _edits(
    "comparison",
    "problems/answers/wrong_answers.py",
    ("known wrong answers are never found", "if share >= HIT and", "if share > 2 and"),
    ("anything is a known wrong answer", "if share >= HIT and", "if share >= 0 and"),
)
_REPORTS = _edits(
    "reports", "pk_runtime/simulator.py",
    ("the exit code is not looked at", "if completed.exit_code == 0 and outcome in",
     "if outcome in"),
    ("a time may be zero or negative", "or time_us <= 0:", "or False:"),
    ("a time may be NaN", "not math.isfinite(time_us) or", ""),
    ("a run that was stopped may report", 'if completed.exceeded == "wall":', "if False:"),
) + _edits(
    "reports", "pk_runtime/run_folder.py",
    ("links are followed", "os.O_RDONLY | os.O_NOFOLLOW |", "os.O_RDONLY |"),
    ("outputs may be longer", "or size > limit:", "or False:"),
) + _edits(
    "reports", "sandbox/stages/demand.py",
    ("figures may be infinite", "usable and math.isfinite(value)", "usable"),
)  # fmt: skip
_RULES = _edits(
    "rules", "sandbox/rules/scan.py",
    ("pointers, casts and arrays are allowed", "yield from memory(plain)", "yield from ()"),
    ("the C library and the engine may be named", "yield from known_names(code, at)", "pass"),
    ("variables may be shared", "yield from shared_variables(plain)", "yield from ()"),
    ("forbidden words are allowed", "yield from matches(RULES, code, at)", "pass"),
    ("reserved names are allowed", "if _RESERVED.search(token.text):", "if False:"),
    ("the standard library is allowed", 'if token.text == "std" and not', "if False and not"),
    ("statics are allowed", 'if token.text == "static" and not', "if False and not"),
    ("the preprocessor is allowed", "yield from directives(code,", "directives(code,"),
    ("attributes are allowed", "yield from attributes(code, at)", "pass"),
    ("the runtime may be extended", 'if token.text == "namespace" and', "if False and"),
) + _edits(
    "rules", "sandbox/rules/tokens.py",
    ("obscure text is skipped", "if kind in _OBSCURE:", "if False:"),
    ("comments may hide line splices", 'elif kind == "comment" and re', "elif False and re"),
) + _edits(
    "rules", "sandbox/rules/raw.py",
    ("raw kernels may use any stream", "yield from _launches(plain, at)", "pass"),
    ("raw code may call CUDA", "if _CUDA.fullmatch(token.text) and", "if False and"),
    ("raw code may contain any assembly", "yield from _texts(plain, at)", "pass"),
    ("raw code may keep state", "yield from shared_variables(plain)", "yield from ()"),
) + _edits(
    "rules", "sandbox/rules/triton.py",
    ("Triton files may import anything", "yield from _imports(node, own)", "pass"),
    ("Triton files may reach inside", "yield from _attribute(node)", "pass"),
    ("Triton files may keep state", "yield from _state(tree)", "pass"),
    ("Triton files may change what they get", "yield from _assignment(node)", "pass"),
    ("Triton streams need not be joined", "yield from _streams(tree)", "pass"),
)  # fmt: skip
_OBJECTS = _edits(
    "objects", "sandbox/rules/objects.py",
    ("an object may refer to anything", "if symbol.name and not _may_use(", "if False and not ("),
    ("all of the engine may be called", "in _declared() and name[end", "and name[end"),
    ("objects may define any C name", "if name not in _OWN[gpu] and not name",
     "if False and not name"),
    ("objects may take the place of pk or std", "if not shared or not (gpu",
     "if False and not (gpu"),
    ("objects may bring their own operator new", "elif _OPERATORS.match(name):", "elif False:"),
    ("objects may define the engine's functions", "elif not gpu and _of_the_engine(name):",
     "elif False:"),
    ("any section is known", "if not known:", "if False:"),
    ("data may be run", "elif section.executable and (", "elif False and ("),
    ("objects may run before main", "if name != _REGISTERS:", "if False:"),
    ("names may be chosen at the start", "if symbol.chosen_at_start:", "if False:"),
    ("objects may keep state per thread", "elif symbol.thread_local:", "elif False:"),
    ("objects may keep state", "elif not gpu and _kept(", "elif False and _kept("),
    ("constants of any name", "and name not in C_NAMES\n", "\n"),
) + _edits(
    "objects", "sandbox/rules/elf.py",
    ("the last symbol is not read", "_SYMBOL.iter_unpack(data):",
     "list(_SYMBOL.iter_unpack(data))[:-1]:"),
) + _edits(
    "judge", "sandbox/stages/build.py",
    ("objects are not looked at", "    _accept(built.with_name(OBJECT), candidate, gpu)\n", ""),
)  # fmt: skip
_PROBLEMS = _edits(
    "problems", "problems/lint/controls.py",
    ("trivial candidates may pass",
     "                not self.checker.accepts(results),\n                f\"The trivial",
     "                True,\n                f\"The trivial"),
    ("a missing rank may pass",
     "not self.checker.accepts(results),\n            f\"The result without",
     "True,\n            f\"The result without"),
    ("reference and golden may disagree", "verdict.ok and near,", "True,"),
    ("inputs need not follow the seed", "input_digests(again) == input_digests(self.inputs),",
     "True,"),
    ("the reference may change inputs", "            not changed,\n", "            True,\n"),
    ("the signal may drown in the limit", "signal >= MIN_SIGNAL,", "True,"),
    ("noise above 1 is accepted by the lint", "noise.max <= 1 and noise.rms <= 1,", "True,"),
    ("the lint looks at one scale only", "if chosen and not tally.findings:", "if False:"),
    ("the golden may be NaN", "bool(exact.isfinite().all()) if", "True if"),
    ("outputs may have another form",
     "tuple(tensor.shape) == spec.shape and tensor.dtype == spec.dtype,", "True,"),
) + _edits(
    "problems", "problems/lint/validation.py",
    ("costs may be anything", "yield from wrong", "yield from ()"),
    ("there may be any number of shapes", "or len(names) > MAX_SHAPES", ""),
) + _edits(
    "problems", "problems/loading.py",
    ("names of the catalogue may be taken",
     "found_breaches = breaches(problem) or _clashes(problem)",
     "found_breaches = breaches(problem)"),
) + _edits(
    "problems", "problems/answers/exact.py",
    ("the golden may be in low precision", "tensor.dtype not in wide:", "False:"),
)  # fmt: skip
_JUDGE = _edits(
    "judge", "sandbox/stages/bench.py",
    ("times below the roofline are believed", "if run.time_us < roof.us * _SLACK:", "if False:"),
    ("work may be left out", "if done < needed * _SLACK:", "if False:"),
    ("a timing run may do something else",
     "self._must_do_the_same(shape, description.world_size, run)", "pass"),
    ("ranks may rest at large shapes", "missing = grows_less(", "missing = None and grows_less("),
) + _edits(
    "judge", "sandbox/stages/check.py",
    ("only the eager schedule is tried", "            strategy=strategy,\n",
     "            strategy=[EAGER],\n"),
    ("only the first launch is compared",
     "enumerate(launches):\n                comparison = self.checkers",
     "enumerate(launches[:1]):\n                comparison = self.checkers"),
    ("inputs do not change between launches", "shape.name, world, n) for n in range(launches)]",
     "shape.name, world, 0) for n in range(launches)]"),
    ("the outcome of a run is not looked at",
     'if found.outcome != "finished":\n            self._ended(',
     "if False:\n            self._ended("),
) + _edits(
    "judge", "sandbox/stages/plan.py",
    ("only one shape is checked", "made = Plan(tuple(shapes), worlds, 3",
     "made = Plan(tuple(shapes[:1]), worlds, 3"),
    ("only one world size is checked", "worlds = tuple(sorted({min(2, world_size), world_size}))",
     "worlds = (world_size,)"),
) + _edits(
    "judge", "sandbox/judge.py",
    ("nothing is scanned", "    if violations:\n        first", "    if False:\n        first"),
    ("hidden shapes are not drawn", "host = host.with_hidden(", "host.with_hidden("),
    ("the seed is always the same", "secrets.randbits(63) if seed is None else seed", "7"),
    ("faults of the judge are blamed on candidates", '"infra_error", stage, _infra(error))',
     '"wrong_output", stage, _infra(error))'),
) + _edits(
    "judge", "problems/hidden.py",
    ("hidden shapes are always the same", "random.Random(seed)", "random.Random(1)"),
)  # fmt: skip

EDITS = (
    *_COMPARE, *_TOLERANCE, *_SCALES, *_ANSWERS, *_REPORTS, *_RULES, *_OBJECTS, *_PROBLEMS, *_JUDGE,
)  # fmt: skip
