# shellcheck shell=bash disable=SC2034
# What all scripts of this folder and of kind-offline share: where things are, how to complain, and how a cached build gets its name.

KIND_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
OFFLINE_DIR=${KIND_DIR%/*}/kind-offline
CACHE=${HETEROTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/heterotrain}
BIN=$CACHE/bin            # links to the newest build of every tool
STATE=$CACHE/kind         # all that belongs to the running cluster; `make kind-down` removes it
DAEMON=$CACHE/dockerd     # all that belongs to a Docker daemon of ours; `make kind-down` removes it
DOCKER_ROOT=$CACHE/docker # the images of that daemon; a cache, like the builds
CLUSTER=heterotrain
BASE_IMAGE=heterotrain-debian:bookworm
# The image of this Kubernetes version that the notes of the pinned kind release name.
REGISTRY_NODE_IMAGE=${KIND_NODE_IMAGE:-kindest/node:v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d}
export PATH="$BIN:$PATH"
export KUBECONFIG="$STATE/kubeconfig"

say() { printf 'kind: %s\n' "$*" >&2; }

die() {
  printf 'kind: error: %s\n' "$*" >&2
  exit 1
}

is_root() { [ "$(id -u)" -eq 0 ]; }

# One at a time: two runs at once would build the same things into the same places. Scripts that were started by
# another one run under its lock.
take_lock() {
  [ -z "${HETEROTRAIN_KIND_LOCKED:-}" ] || return 0
  mkdir -p "$CACHE"
  exec 9>"$CACHE/lock"
  flock --nonblock 9 || { say "waiting for another run to finish"; flock 9; }
  export HETEROTRAIN_KIND_LOCKED=1
}

# Name a result after what made it: twelve digits of a hash over files (and folders of them) and plain strings.
key_of() {
  local source
  for source in "$@"; do
    if [ -d "$source" ]; then
      (cd "$source" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
    elif [ -f "$source" ]; then
      sha256sum <"$source"
    else
      printf '%s\n' "$source"
    fi
  done | sha256sum | cut -c1-12
}

need_free_gib() {
  local free_kib
  mkdir -p "$CACHE"
  free_kib=$(df --output=avail --block-size=1K "$CACHE" | tail -n 1)
  [ "$free_kib" -ge $(($1 * 1024 * 1024)) ] ||
    die "$CACHE needs $1 GiB of free disk, $((free_kib / 1024 / 1024)) are left; name another folder in HETEROTRAIN_CACHE"
}

# The path of a Go program, which is built once for each version.
go_program() { # PACKAGE@VERSION
  local folder=$CACHE/builds/${1##*/} name=${1%@*}
  if [ ! -x "$folder/${name##*/}" ]; then
    command -v go >/dev/null || die "needs Go (https://go.dev/dl/) to build ${name##*/}"
    say "building ${1##*/} from Go modules"
    CGO_ENABLED=0 GOBIN=$folder GOFLAGS=-mod=mod go install -trimpath -ldflags '-s -w' "$1" >&2 || return
  fi
  echo "$folder/${name##*/}"
}

has_image() { docker image inspect "$1" >/dev/null 2>&1; }

# Ask the registry for an image, in bounded time: where none can be reached the daemon may take long to say so.
pull_image() { has_image "$1" || timeout "${2:-900}" docker pull --quiet "$1" >/dev/null 2>&1; }

# Wait until a command succeeds, for so many seconds.
wait_for() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.5
  done
}
