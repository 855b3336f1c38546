#!/usr/bin/env bash
# The tests that need no cluster, in three parts. Those of one process share out the cores. Gangs of real workers, which wait
# for most of their time, run four at a time. Those that assert how real workers are balanced run alone, for workers are
# balanced against whatever runs beside them. Each part runs whatever the ones before it have found.
# --unit: only the first part. --all: the long matrices too, hypothesis with many examples, and the unit tests on the other
# versions of Python. --e2e: instead of all these the tests on a cluster, several at a time: those that share an operator,
# and then those that have one each, for they disturb it; and at last, alone, those that balance or disturb the whole
# cluster. Other arguments go to pytest; --last-failed runs again what failed in a part, nothing of one that passed, and all
# of one that did not come to its end.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE= # thousands of processes would each compile what they import

AT_ONCE_AT_MOST=8 # each of them imports torch
GANGS_AT_ONCE=4
ON_CLUSTER_AT_ONCE=2 # they wait for most of their time, but each trains on three workers or so
TESTS_FAILED=1
NONE_RAN=5

unit_only='' all='' e2e='' last_failed=''
chosen=()
for argument in "$@"; do
  case "$argument" in
    --unit) unit_only=1 ;;
    --all) all=1 ;;
    --e2e) e2e=1 ;;
    --last-failed) last_failed=1 ;;
    *) chosen+=("$argument") ;;
  esac
done
which="not e2e"
[ -n "$all" ] || which+=" and not long"
failed=0

part() { # NAME [PYTEST ARGUMENT ...]: each part remembers what failed in it, and whether it came to its end
  local name=$1 rc=0 cache=.pytest_cache/$1 again=()
  shift
  if [ -n "$last_failed" ] && [ -e "$cache/ended" ]; then again=(--last-failed --last-failed-no-failures none); fi
  if [ -n "$all" ]; then again+=(--hypothesis-profile=thorough); fi
  rm -f "$cache/ended"
  .venv/bin/python -m pytest -o "cache_dir=$cache" "$@" "${again[@]}" "${chosen[@]}" || rc=$?
  case $rc in
    0) ;;
    "$TESTS_FAILED") failed=1 ;;
    "$NONE_RAN") [ -n "$last_failed" ] || [ ${#chosen[@]} -gt 0 ] || exit $rc ;; # they may be in another part
    *) exit $rc ;;
  esac
  if [ ${#chosen[@]} = 0 ]; then
    mkdir -p "$cache"
    touch "$cache/ended"
  fi
}

local_part() { # NAME MARKS [PYTEST ARGUMENT ...]
  local name=$1 marks=$2
  shift 2
  part "$name" -q --durations=10 --ignore=tests/e2e -m "$which and $marks" "$@"
}

marked() { # MARK: the files with such tests, unless others were asked for, for it takes some time to read all
  [ ${#chosen[@]} -gt 0 ] || grep -rl "mark\.$1\b" --include='test_*.py' --exclude-dir=e2e tests
}

if [ -n "$e2e" ]; then
  if [ -z "$last_failed" ]; then rm -f .pytest_cache/{e2e,e2e-operators,e2e-alone}/ended; fi
  e2e_part() { part "$1" -v --durations=0 --durations-min=1 -m "$2" "${@:3}" tests/e2e tests/kube_server/test_api_server.py; }
  e2e_part e2e "not disruptive and not alone" --numprocesses $ON_CLUSTER_AT_ONCE --dist loadscope
  e2e_part e2e-operators "disruptive and not alone" --numprocesses $ON_CLUSTER_AT_ONCE --dist loadscope
  e2e_part e2e-alone "alone"
  exit $failed
fi
if [ -z "$last_failed" ]; then rm -f .pytest_cache/{unit,gangs,alone}/ended; fi
cores=$(nproc)
local_part unit "not processes and not packages" \
  --numprocesses $((cores < AT_ONCE_AT_MOST ? cores : AT_ONCE_AT_MOST)) --dist worksteal
if [ -z "$unit_only" ]; then
  local_part gangs "(processes or packages) and not alone" --numprocesses $GANGS_AT_ONCE --maxschedchunk 1
  # shellcheck disable=SC2046
  local_part alone "processes and alone" $(marked alone)
fi
if [ -n "$all" ]; then hack/pythons.sh ${last_failed:+--last-failed} "${chosen[@]}" || failed=1; fi
exit $failed
