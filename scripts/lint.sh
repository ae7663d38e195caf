#!/usr/bin/env bash
# Every static check, to the end, so that one run shows all there is to fix. Exit code 1 if any of them failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=()
check() { # what it is, command ...
  local name=$1
  shift
  echo "== $name"
  "$@" || failed+=("$name")
}

scripts_parse() {
  local script ok=0
  while read -r script; do
    bash -n "$script" || ok=1
  done < <(git ls-files .ci 'scripts/*.sh')
  return $ok
}

check "ruff check" .venv/bin/ruff check --quiet .
check "ruff format" .venv/bin/ruff format --check --quiet .
check "mypy" .venv/bin/mypy
check "layers" .venv/bin/lint-imports --no-logo
check "shell scripts" scripts_parse

if [[ ${#failed[@]} -gt 0 ]]; then
  printf 'lint: failed: %s\n' "$(IFS=,; echo "${failed[*]}" | sed 's/,/, /g')"
  exit 1
fi
echo "lint: all checks passed"
