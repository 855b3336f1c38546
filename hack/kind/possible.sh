#!/usr/bin/env bash
# Whether this machine can have the test cluster: silent and successful if it can, else one line that says why not.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

LEAST_MEMORY_GIB=12
LEAST_FREE_GIB=25 # of the first time: builds, images, and three nodes that hold them

no() {
  echo "$*"
  exit 1
}

writable_cgroup() {
  local folder
  for folder in /sys/fs/cgroup/cpu /sys/fs/cgroup; do
    if mkdir "$folder/heterotrain-probe" 2>/dev/null; then
      rmdir "$folder/heterotrain-probe"
      return 0
    fi
  done
  return 1
}

memory_gib() { awk '/^MemTotal:/ { print int($2 / 1048576) }' /proc/meminfo; }

free_gib() {
  mkdir -p "$CACHE"
  df --output=avail --block-size=1G "$CACHE" | tail -n 1 | tr -d ' '
}

[ "$(uname)" = Linux ] || no "it is no Linux machine"
command -v go >/dev/null || no "Go is not installed"
if ! docker version >/dev/null 2>&1; then
  [ "$(id -u)" = 0 ] || no "no Docker daemon answers, and only root could start one"
  command -v apt-get >/dev/null || no "no Docker daemon answers, and Debian's packages, which have one, are not at hand"
  unshare --mount true 2>/dev/null || no "root may not mount here, so no Docker daemon could run"
  writable_cgroup || no "cgroups may not be written here, so no Docker daemon could run"
fi
[ "$(memory_gib)" -ge $LEAST_MEMORY_GIB ] || no "it has $(memory_gib) GiB of memory, and $LEAST_MEMORY_GIB are needed"
[ -f "$STATE/key" ] || [ "$(free_gib)" -ge $LEAST_FREE_GIB ] ||
  no "$(free_gib) GiB are free at $CACHE, and $LEAST_FREE_GIB are needed"
