#!/usr/bin/env bash
# Remove the test cluster, the Docker daemon if docker.sh started it, and all that either has left on the machine.
# What was built stays in the cache, and Debian packages stay installed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

remove_nodes() {
  local nodes
  nodes=$(docker ps --all --quiet --filter "label=io.x-k8s.kind.cluster=$CLUSTER")
  [ -z "$nodes" ] || xargs docker rm --force --volumes <<<"$nodes" >/dev/null
  # kind's network serves all clusters of kind; Docker refuses to remove one that is in use.
  docker network rm kind >/dev/null 2>&1 || true
}

our_daemon() { # the process of a daemon of ours, if it runs
  local pid
  pid=$(cat "$DAEMON/pid" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] && echo "$pid"
}

stop_daemon() {
  local pid
  if pid=$(our_daemon); then
    kill "$pid"
    wait_for 60 test ! -e "/proc/$pid" || die "the Docker daemon (process $pid) does not stop"
  fi
}

# Processes of a daemon of ours that was killed: they name its folder.
remains() {
  local pid
  for pid in $(pgrep containerd || true); do
    ! tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q "/run/heterotrain-docker/" || echo "$pid"
  done
}

none_remain() { [ -z "$(remains)" ]; }

remove_remains() {
  local mount
  remains | xargs --no-run-if-empty kill
  wait_for 20 none_remain || say "warning: processes of the Docker daemon are still there: $(remains | xargs)"
  awk '{ print $2 }' /proc/self/mounts | sort -r | while read -r mount; do
    case "$mount" in "$DOCKER_ROOT"/* | /run/heterotrain-docker/* | /run/docker/*) umount --lazy "$mount" 2>/dev/null || true ;; esac
  done
  find /sys/fs/cgroup -depth -type d -path '/sys/fs/cgroup*/docker*' -exec rmdir {} + 2>/dev/null || true
}

# Docker leaves its bridge and its chains of the packet filter behind.
remove_docker_network() {
  local link tool
  for link in $(ip -br link show type bridge 2>/dev/null | awk '$1 == "docker0" || $1 ~ /^br-[0-9a-f]{12}$/ { print $1 }'); do
    ip link delete "$link"
  done
  for tool in iptables ip6tables; do
    "$tool-save" 2>/dev/null | grep -vE 'DOCKER|docker0|br-[0-9a-f]{12}' | "$tool-restore" 2>/dev/null || true
  done
}

remove_path() { # of a folder elsewhere than in /run, only what is empty: others may use it by now
  case "$1" in
    /run/*) rm -rf --one-file-system "$1" ;;
    *) if [ -d "$1" ]; then find "$1" -depth -type d -empty -delete; else rm -f "$1"; fi ;;
  esac
}

restore_system() { # as docker.sh found it
  local what name value
  while read -r what name value; do
    case "$what" in
      sysctl) sysctl -q -w "$name=$value" ;;
      forward) iptables -P FORWARD "$name" ;;
      absent) remove_path "$name" ;;
    esac
  done <"$DAEMON/before"
}

remove_daemon() {
  stop_daemon
  remove_remains
  remove_docker_network
  restore_system
  rm -rf "$DAEMON"
}

main() {
  take_lock
  if timeout 20 docker version >/dev/null 2>&1; then
    remove_nodes
  fi
  if [ -e "$DAEMON/before" ]; then
    is_root || die "removing the Docker daemon needs root, which started it"
    remove_daemon
  fi
  rm -rf "$STATE"
  if [ -d "$CACHE/builds" ]; then
    say "kept what was built, $(du -sh "$CACHE" | cut -f1) in $CACHE; remove that folder to be rid of it"
  fi
}

main
