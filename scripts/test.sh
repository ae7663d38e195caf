#!/usr/bin/env bash
# Every test: first the fast ones in parallel (a file stays on one worker, so a server it starts is started once), then
# the slow ones, two files at a time. Both always run; the last line is the sum. Arguments go to pytest: -k NAME, a path.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# nvcc from .venv, for a machine without a CUDA toolkit; one that is installed comes first.
for folder in "$PWD"/.venv/lib/python3*/site-packages/nvidia/cu13/bin; do
  PATH=$PATH:$folder
done

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
status=0

pass() { # name, pytest arguments ...
  local name=$1 rc=0
  shift
  printf '\n== %s tests\n' "$name"
  .venv/bin/python -m pytest "$@" 2>&1 | tee "$logs/$name" || rc=$?
  # 5 is "no tests": right when arguments chose tests of the other kind only, an error when everything should have run.
  [[ $rc -eq 0 || ( $rc -eq 5 && -n $selection ) ]] || status=1
}

# The sum over both runs of what pytest's closing lines count, e.g. as "passed".
count() {
  cat "$logs"/* | sed -nE '/^=+ .* in [0-9.]+s/p' | { grep -oE "[0-9]+ ($1)" || true; } |
    awk '{n += $1} END {print n + 0}'
}

selection="$*"
pass fast -m "not slow" --numprocesses auto --maxprocesses 4 --dist loadfile "$@"
pass slow -m slow --durations 15 --numprocesses 2 --dist loadfile "$@"

passed=$(count passed)
failed=$(count 'failed|error|errors')
[[ $((passed + failed)) -gt 0 ]] || status=1
printf '\ntests: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$(count skipped)"
exit $status
