#!/bin/sh
# Stands between Docker and runc where the machine's root lacks CAP_SYS_RESOURCE: privileged containers ask for every
# capability, and runc refuses to give what it does not have. This takes the one out of the request and goes on.
set -eu

strip() {
  [ -f "$1" ] || return 0
  stripped=$(jq -c '
    def drop: if . == null then . else map_values(if type == "array" then . - ["CAP_SYS_RESOURCE"] else . end) end;
    if .process then .process.capabilities |= drop else .capabilities |= drop end' "$1")
  printf '%s' "$stripped" >"$1"
}

previous=
for argument in "$@"; do
  case "$previous" in
    --bundle | -b) strip "$argument/config.json" ;;
    --process | -p) strip "$argument" ;;
  esac
  case "$argument" in
    --bundle=*) strip "${argument#*=}/config.json" ;;
    --process=*) strip "${argument#*=}" ;;
  esac
  previous=$argument
done
exec runc "$@"
