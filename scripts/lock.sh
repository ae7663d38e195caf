#!/usr/bin/env bash
# Writes requirements/*.lock anew from pyproject.toml: exact versions with hashes, for every platform, none younger than
# a week (a stolen release is usually withdrawn sooner), and neither torch nor an index address inside.
# Unchanged versions are kept; `scripts/lock.sh --upgrade` takes newer ones, `--upgrade-package NAME` one of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The body limit of single routes came with fastapi 0.165, which is younger; remove this when a week has passed over it.
exceptions=(--exclude-newer-package 'fastapi=2 days')

header="# Made by \`make lock\` from pyproject.toml; do not edit."

compile() { # NAME.lock, what to lock ...
  local output=requirements/$1
  shift
  .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --exclude-newer '1 week' "${exceptions[@]}" \
    --no-header --no-annotate --no-emit-index-url --override requirements/without-torch.txt \
    --output-file "$output" "$@" >/dev/null
  sed -i "1i $header" "$output"
}

compile bootstrap.lock requirements/bootstrap.in "$@"
compile dev.lock pyproject.toml requirements/torch-needs.in --extra server --group dev "$@"
# The same versions in both: what serves is what was tested.
compile server.lock pyproject.toml requirements/torch-needs.in --extra server --group build \
  --constraints requirements/dev.lock "$@"
