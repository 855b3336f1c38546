#!/usr/bin/env bash
# The unit tests on every version of Python that is promised, beside the one that .venv has: each in an environment of its
# own, .venv-VERSION, all at once, for one alone keeps no more than one core busy. Arguments go to pytest; --last-failed runs
# again what failed on a version, nothing on one that passed, and all on one that did not come to its end.
# Torch is taken only from PIP_FIND_LINKS, since its build on PyPI is some gigabytes for each version; where there is none
# for a version, the tests that need it are left out, and the last lines say so.
set -euo pipefail
cd "$(dirname "$0")/.."

PROMISED="3.11 3.12 3.13"
NEED_TORCH="tests/trainer tests/unit/bench tests/unit/workloads"
TORCH_FREE="tests/unit tests/api tests/kube_server tests/handlers tests/jobs"
NONE_RAN=5
# They measure how the kernel shares out CPU time, to whichever Python, and how the operator does.
NOT_OF_PYTHON="tests/unit/local/test_limits.py tests/handlers/test_hostile_tenants.py"

usable() { # PYTHON VERSION: it runs, and is of that version; a version manager's shim may be neither
  [ "$("$1" -c 'import sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$2" ]
}

find_python() { # VERSION
  local candidate
  for candidate in "$(command -v "python$1" || true)" \
    "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python \
    "${UV_PYTHON_INSTALL_DIR:-$HOME/.local/share/uv/python}/cpython-$1".*/bin/python3 \
    "${ASDF_DATA_DIR:-$HOME/.asdf}/installs/python/$1".*/bin/python; do
    if [ -x "$candidate" ] && usable "$candidate" "$1"; then
      echo "$candidate"
      return
    fi
  done
}

environment() { # PYTHON FOLDER
  local pip=("$2/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt)
  if [ ! -e "$2/installed" ] || [ pyproject.toml -nt "$2/installed" ] || [ constraints.txt -nt "$2/installed" ]; then
    rm -rf "$2"
    "$1" -m venv "$2"
    "${pip[@]}" --editable '.[operator,cli,test]'
    if "${pip[@]}" --no-index --no-deps --only-binary :all: torch >"$2/torch.log" 2>&1; then
      "${pip[@]}" --editable '.[operator,cli,trainer,dev]'
    fi
    touch "$2/installed"
  fi
}

become_tests() { # FOLDER [PYTEST ARGUMENT ...]: leaves in FOLDER/without what was left out, and why
  local folder=$1 tests each again=()
  shift
  if [ "${1:-}" = --last-failed ]; then
    shift
    if [ -e "$folder/ended" ]; then again=(--last-failed --last-failed-no-failures none); fi
  fi
  if [ ${#again[@]} -gt 0 ]; then touch "$folder/again"; else rm -f "$folder/again"; fi
  # shellcheck disable=SC2206
  tests=($TORCH_FREE)
  rm -f "$folder/without"
  if "$folder/bin/python" -c 'import torch' 2>/dev/null; then
    # shellcheck disable=SC2206
    tests+=($NEED_TORCH)
  else
    echo ", without what needs torch ($NEED_TORCH): PIP_FIND_LINKS has none for it" >"$folder/without"
    for each in $NEED_TORCH; do tests+=("--ignore=$each"); done
  fi
  rm -f "$folder/ended"
  for each in $NOT_OF_PYTHON; do tests+=("--ignore=$each"); done
  exec "$folder/bin/python" -m pytest -q -o "cache_dir=$folder/pytest_cache" --hypothesis-profile=few \
    "${again[@]}" "$@" "${tests[@]}" \
    -m "not processes and not packages and not e2e and not long"
}

at_hand=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)
summary=()
begun=() # versions
processes=()
for version in $PROMISED; do
  if [ "$version" = "$at_hand" ]; then
    summary+=("Python $version: in .venv, whose tests are those of make test-all")
    continue
  fi
  python=$(find_python "$version")
  if [ -z "$python" ]; then
    summary+=("NOT RUN: Python $version: there is none here, on PATH or a version manager's")
    continue
  fi
  folder=".venv-$version"
  (
    echo "Python $version ($python)"
    rm -f "$folder/ready"
    environment "$python" "$folder"
    touch "$folder/ready"
    become_tests "$folder" "$@"
  ) >"$folder.log" 2>&1 &
  begun+=("$version")
  processes+=($!)
done
# What runs in the background hears no Ctrl-C, so that this script has to end it.
trap 'kill "${processes[@]}" 2>/dev/null; exit 143' TERM INT
failed=0
for index in "${!begun[@]}"; do
  version=${begun[index]}
  folder=.venv-$version result=passed rc=0
  wait "${processes[index]}" || rc=$?
  if [ $rc = $NONE_RAN ] && [ -e "$folder/again" ]; then rc=0; fi # nothing had failed
  if [ -e "$folder/ready" ] && [ $rc -le 1 ]; then touch "$folder/ended"; fi
  if [ $rc != 0 ]; then result=FAILED failed=1; fi
  cat "$folder.log"
  summary+=("Python $version: $result$(cat "$folder/without" 2>/dev/null || true)")
done
printf '%s\n' "${summary[@]}"
exit $failed
