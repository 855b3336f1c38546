#!/usr/bin/env bash
# The tests that need no cluster, in two parts. Those of the first share out the cores; the second start gangs of workers
# or install packages, one after the other, for real workers are balanced against whatever runs beside them. The second run
# whatever the first have found. --unit: only the first. Other arguments go to pytest; --last-failed runs again what failed
# in a part, nothing of one that passed, and all of one that did not come to its end.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE= # thousands of processes would each compile what they import

AT_ONCE_AT_MOST=8 # each of them imports torch
TESTS_FAILED=1
NONE_RAN=5

unit_only=
if [ "${1:-}" = --unit ]; then
  unit_only=1
  shift
fi
chosen=("$@")
failed=0

part() { # NAME MARKS [PYTEST ARGUMENT ...]: each part remembers what failed in it
  local name=$1 marks=$2 rc=0 cache=.pytest_cache/$1 tests=("${chosen[@]}")
  shift 2
  case " ${chosen[*]} " in
    *" --last-failed "*) if [ -e "$cache/ended" ]; then tests+=(--last-failed-no-failures none); else tests=(); fi ;;
  esac
  rm -f "$cache/ended"
  .venv/bin/python -m pytest -q --durations=10 -o "cache_dir=$cache" --ignore=tests/e2e -m "$marks" "$@" "${tests[@]}" || rc=$?
  case $rc in
    0) ;;
    "$TESTS_FAILED") failed=1 ;;
    "$NONE_RAN") [ ${#tests[@]} -gt 0 ] || exit $rc ;; # what was chosen may be in the other part
    *) exit $rc ;;
  esac
  mkdir -p "$cache"
  touch "$cache/ended"
}

if [ ${#chosen[@]} = 0 ]; then rm -f .pytest_cache/{unit,gangs}/ended; fi
cores=$(nproc)
part unit "not processes and not packages and not e2e" \
  --numprocesses $((cores < AT_ONCE_AT_MOST ? cores : AT_ONCE_AT_MOST)) --dist worksteal
[ -n "$unit_only" ] || part gangs "(processes or packages) and not e2e"
exit $failed
