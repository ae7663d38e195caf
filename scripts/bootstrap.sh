#!/usr/bin/env bash
# Makes this checkout runnable on a bare Debian 12 machine, as root or as a user with sudo:
#
#   scripts/bootstrap.sh server    what `make demo` and `make serve` need
#   scripts/bootstrap.sh dev       that, and what `make test` and `make lint` need
#
# System packages are installed only when something is missing. Python packages go into .venv, with the versions and
# hashes of requirements/*.lock; a stamp in .venv makes the next run instant. Anything half-made is made again.
set -euo pipefail
umask 022 # the sandbox may run as another user, who must be able to read .venv
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONPATH PYTHONHOME

profile=${1:-server}
python=${PYTHON:-/usr/bin/python3} # why this one: see the Makefile
venv=.venv

say() { printf 'pkforge: %s\n' "$*" >&2; }
die() {
  say "$@"
  exit 1
}

case $profile in
  server | dev) ;;
  *) die "unknown profile '$profile'; use 'server' or 'dev'" ;;
esac

# --- system packages ---------------------------------------------------------------------------------------------------

has() { command -v "$1" >/dev/null 2>&1; }
has_file() { compgen -G "$1" >/dev/null; }
has_venv() { "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

missing_packages() {
  has g++ || echo g++
  has bwrap || echo bubblewrap
  has_venv || echo python3 python3-venv
  has_file '/etc/ssl/certs/*.pem' || echo ca-certificates
  [[ $profile == dev ]] || return 0
  has git || echo git
  has make || echo make
  has_file '/usr/lib/postgresql/*/bin/initdb' || echo postgresql
  has redis-server || echo redis-server
  has chromium || echo chromium
  [[ -x /usr/sbin/dockerd || -x /usr/bin/dockerd ]] || echo docker.io
  [[ -x /usr/sbin/debootstrap ]] || echo debootstrap
  has_file '/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf' || echo fonts-dejavu-core
}

as_root() {
  if [[ $EUID -eq 0 ]]; then
    "$@"
  elif [[ -t 0 ]]; then
    sudo "$@"
  else
    sudo -n "$@" # nobody is there to type a password
  fi
}

install_system_packages() {
  local missing
  read -ra missing <<<"$(missing_packages | tr '\n' ' ')"
  [[ ${#missing[@]} -gt 0 ]] || return 0
  has apt-get || die "this machine lacks: ${missing[*]} (Debian's names). Install them with its own package manager."
  [[ $EUID -eq 0 ]] || has sudo ||
    die "this machine lacks: ${missing[*]}. Run as root or with sudo: apt-get install ${missing[*]}"
  say "installing from Debian: ${missing[*]}"
  local by_hand="see above. By hand, as root: apt-get update && apt-get install ${missing[*]}"
  as_root apt-get -qq update || die "'apt-get update' failed; $by_hand"
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}" \
    </dev/null >/dev/null || die "'apt-get install' failed; $by_hand"
  has_venv || die "$python is missing, older than 3.11 or has no venv module; name a better one: make PYTHON=/usr/bin/python3.12 ..."
}

# --- Python packages ---------------------------------------------------------------------------------------------------

# The stamp of what this profile would install; the path is in it because scripts in .venv carry it in their first line.
fingerprint() {
  {
    pwd
    "$python" --version
    cat scripts/bootstrap.sh pyproject.toml requirements/{bootstrap,server,dev}.lock requirements/torch.txt
  } | sha256sum | cut -d' ' -f1
}

installed() {
  local stamp found=$1
  [[ -x $venv/bin/python && -x $venv/bin/pkforge ]] || return 1
  for stamp in "$profile" dev; do
    [[ $(cat "$venv/.installed-$stamp" 2>/dev/null) != "$found" ]] || return 0
  done
  return 1
}

# What pip is configured with (file or environment), so that uv, which does not read it, uses the same sources.
pip_setting() { "$venv/bin/python" -m pip config list | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p"; }

follow_pip_configuration() {
  local value
  value=$(pip_setting cert | head -n1)
  [[ -z $value ]] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$value}
  value=$(pip_setting index-url | head -n1)
  [[ -z $value ]] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$value}
  value=$(pip_setting extra-index-url | head -n1)
  # Every package is pinned by hash, so taking the best match from any of the indexes is safe.
  [[ -z $value ]] || export UV_INDEX=${UV_INDEX:-$value} UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}
  export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} UV_NO_PROGRESS=1 UV_SYSTEM_CERTS=1
}

uv_pip() { "$venv/bin/uv" pip "$1" --quiet --python "$venv/bin/python" "${@:2}"; }

has_gpu() { [[ -e /dev/nvidiactl ]] && has nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }

# torch comes from the first of these that has it: the folders pip is configured with, torch's CPU index, and, only on
# a machine with a GPU, the index for its driver. The CUDA build (gigabytes) never reaches a machine without a GPU.
install_torch() {
  local torch folder backend=cpu
  torch=$(grep '^torch==' requirements/torch.txt)
  "$venv/bin/python" -c 'import sys, importlib.metadata as m; sys.exit(m.version("torch").split("+")[0] != sys.argv[1])' \
    "${torch#*==}" 2>/dev/null && return
  for folder in $(pip_setting find-links); do
    folder=${folder#file://}
    has_file "$folder/torch-*.whl" || continue
    uv_pip install --no-index --find-links "$folder" "$torch" && return
    say "no fitting $torch in $folder, trying torch's own index"
  done
  ! has_gpu || backend=auto
  uv_pip install --torch-backend="$backend" "$torch" ||
    die "cannot install $torch ($backend build). If torch's package index is out of reach from here, put its wheel in a" \
      "folder and name that to pip: PIP_FIND_LINKS=FOLDER make ..."
}

make_venv() {
  rm -f "$venv"/.installed-*
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 || [[ $(cat "$venv/.path" 2>/dev/null) != "$PWD" ]]; then
    say "creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv" || die "cannot create $PWD/$venv: is it writable for $(id -un)?"
    pwd >"$venv/.path"
  fi
  follow_pip_configuration
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.lock
  say "installing Python packages ($profile)"
  uv_pip install --require-hashes --compile-bytecode -r "requirements/$profile.lock"
  install_torch
  uv_pip install --no-deps --no-build-isolation -e .
  uv_pip check || die "the packages in $venv disagree; see above. If torch needs more now, add it to requirements/torch-needs.in"
}

install_system_packages
want=$(fingerprint)
if ! installed "$want"; then
  exec 9<requirements/torch.txt
  flock 9 # two `make` at once: the second waits, then finds everything done
  if ! installed "$want"; then
    started=$SECONDS
    make_venv
    echo "$want" >"$venv/.installed-$profile"
    say "ready after $((SECONDS - started)) s"
  fi
fi
