#!/usr/bin/env bash
# The tests that need no cluster, in three parts. Those of one process share out the cores. Gangs of real workers run two at
# a time. Those that assert how real workers are balanced run alone, for workers are balanced against whatever runs beside
# them. Each part runs whatever the ones before it have found.
# --unit: only the first part. --all: the long matrices too, hypothesis with many examples, and the unit tests on the other
# versions of Python. Other arguments go to pytest; --last-failed runs again what failed in a part, nothing of one that
# passed, and all of one that did not come to its end.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE= # thousands of processes would each compile what they import

AT_ONCE_AT_MOST=8 # each of them imports torch
GANGS_AT_ONCE=2
TESTS_FAILED=1
NONE_RAN=5

unit_only='' all=''
while true; do
  case "${1:-}" in
    --unit) unit_only=1 ;;
    --all) all=1 ;;
    *) break ;;
  esac
  shift
done
chosen=("$@")
which="not e2e"
[ -n "$all" ] || which+=" and not long"
failed=0

part() { # NAME MARKS [PYTEST ARGUMENT ...]: each part remembers what failed in it
  local name=$1 marks=$2 rc=0 cache=.pytest_cache/$1 tests=("${chosen[@]}")
  shift 2
  case " ${chosen[*]} " in
    *" --last-failed "*) if [ -e "$cache/ended" ]; then tests+=(--last-failed-no-failures none); else tests=(); fi ;;
  esac
  [ -z "$all" ] || tests+=(--hypothesis-profile=thorough)
  rm -f "$cache/ended"
  .venv/bin/python -m pytest -q --durations=10 -o "cache_dir=$cache" --ignore=tests/e2e -m "$which and $marks" "$@" "${tests[@]}" || rc=$?
  case $rc in
    0) ;;
    "$TESTS_FAILED") failed=1 ;;
    "$NONE_RAN") [ ${#chosen[@]} -gt 0 ] || exit $rc ;; # what was chosen may be in another part
    *) exit $rc ;;
  esac
  mkdir -p "$cache"
  touch "$cache/ended"
}

if [ ${#chosen[@]} = 0 ]; then rm -f .pytest_cache/{unit,gangs,alone}/ended; fi
cores=$(nproc)
part unit "not processes and not packages" \
  --numprocesses $((cores < AT_ONCE_AT_MOST ? cores : AT_ONCE_AT_MOST)) --dist worksteal
if [ -z "$unit_only" ]; then
  part gangs "(processes or packages) and not alone" --numprocesses $GANGS_AT_ONCE --dist worksteal
  part alone "processes and alone"
fi
if [ -n "$all" ]; then hack/pythons.sh "${chosen[@]}" || failed=1; fi
exit $failed
