#!/usr/bin/env bash
# Make sure that a Docker daemon answers. Where none does, and this is root on Debian, install one and start it beside
# everything else: its images live in the cache, and down.sh finds in $DAEMON all that it needs to undo this.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

PACKAGES=(docker.io iptables iproute2 procps ca-certificates jq)
# All that the daemon, and kind with it, make outside the folders that are named to them.
SYSTEM_PATHS=(/etc/docker/key.json /etc/docker /opt/containerd /lib/modules /run/docker /run/docker.sock /run/containerd
  /run/heterotrain-docker)
# A node uses about 17 instances, and most systems allow 128 to each user.
INOTIFY_INSTANCES=1024
CAP_SYS_RESOURCE=24

answers() { timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

lacks_sys_resource() { # of a process
  local effective
  effective=$(awk '/^CapEff/ { print $2 }' "/proc/$1/status")
  [ $(((0x$effective >> CAP_SYS_RESOURCE) & 1)) -eq 0 ]
}

# Note once what the system looked like, so that down.sh can put it back.
remember_system() {
  [ ! -e "$DAEMON/before" ] || return 0
  local path
  {
    for path in "${SYSTEM_PATHS[@]}"; do
      [ -e "$path" ] || echo "absent $path"
    done
    echo "sysctl net.ipv4.ip_forward $(sysctl -n net.ipv4.ip_forward)"
    echo "sysctl fs.inotify.max_user_instances $(sysctl -n fs.inotify.max_user_instances)"
    echo "forward $(iptables -S FORWARD | awk '$1 == "-P" { print $3 }')"
  } >"$DAEMON/before.new"
  mv "$DAEMON/before.new" "$DAEMON/before"
}

write_config() {
  local runtime='{}'
  if lacks_sys_resource self; then
    install -m 755 "$KIND_DIR/runc.sh" "$DAEMON/runc"
    runtime=$(jq -n --arg path "$DAEMON/runc" \
      '{"default-runtime": "runc-without-sys-resource", runtimes: {"runc-without-sys-resource": {path: $path}}}')
  fi
  jq -n --arg root "$DOCKER_ROOT" --arg pid "$DAEMON/pid" --argjson runtime "$runtime" \
    '{"data-root": $root, "exec-root": "/run/heterotrain-docker", pidfile: $pid} + $runtime' >"$DAEMON/daemon.json"
}

start_daemon() {
  mkdir -p "$DAEMON" "$DOCKER_ROOT"
  remember_system
  write_config
  # A number left by a crash may belong to another process by now, and dockerd would refuse to start.
  if [ -f "$DAEMON/pid" ] && [ "$(cat "/proc/$(cat "$DAEMON/pid")/comm" 2>/dev/null)" != dockerd ]; then
    rm -f "$DAEMON/pid"
  fi
  say "starting a Docker daemon (log: $DAEMON/log)"
  setsid dockerd --config-file "$DAEMON/daemon.json" >>"$DAEMON/log" 2>&1 </dev/null 9>&- &
  wait_for 60 answers || die "the Docker daemon does not start: $(tail -n 5 "$DAEMON/log")"
}

check_foreign_daemon() {
  local pid
  [ ! -e "$DAEMON/pid" ] || return 0
  pid=$(pgrep --oldest --exact dockerd || true)
  if [ -n "$pid" ] && is_root && lacks_sys_resource "$pid"; then
    die "the running Docker daemon cannot run privileged containers, for it lacks CAP_SYS_RESOURCE; stop it" \
      "(process $pid), and the next run starts one that can"
  fi
}

raise_inotify() {
  [ "$(sysctl -n fs.inotify.max_user_instances)" -lt "$INOTIFY_INSTANCES" ] || return 0
  sysctl -q -w "fs.inotify.max_user_instances=$INOTIFY_INSTANCES" 2>/dev/null ||
    say "warning: fs.inotify.max_user_instances is low; raise it to $INOTIFY_INSTANCES if nodes fail to start"
}

main() {
  take_lock
  if answers; then
    check_foreign_daemon
  else
    if ! is_root || ! command -v apt-get >/dev/null; then
      die "no Docker daemon answers: start one, or run this as root on Debian to have one installed and started"
    fi
    "$KIND_DIR/packages.sh" "${PACKAGES[@]}"
    # With systemd the package has started one.
    answers || start_daemon
  fi
  raise_inotify
}

main
