#!/usr/bin/env bash
# Build the image of the cluster's nodes where none can be pulled, and print its name. What the cluster would pull is
# made too: each control plane component is one static program, so its image is one layer.
set -euo pipefail
. "$(dirname "$0")/../kind/lib.sh"

PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl etcd coredns pause)
IMAGE_PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

image_name() {
  local program builds=()
  for program in "${PROGRAMS[@]}"; do
    builds+=("$(basename "$(dirname "$(readlink "$BIN/$program")")")")
  done
  echo "heterotrain-node:$(key_of "$OFFLINE_DIR/node" "$(declare -f copy_kind_files make_component)" "${builds[@]}" \
    "$(grep 'sigs.k8s.io/kind ' "$KIND_DIR/modules/tools/go.mod")" "$(docker image inspect --format '{{.Id}}' "$BASE_IMAGE")")"
}

# kind's own files for a node; a module keeps no file modes.
copy_kind_files() {
  local source to=$1
  source=$(cd "$KIND_DIR/modules/tools" && go mod download sigs.k8s.io/kind &&
    go list -mod=readonly -m -f '{{.Dir}}' sigs.k8s.io/kind)/images/base/files
  cp -R --no-preserve=mode,ownership "$source" "$to"
  chmod 755 "$to"/usr/local/bin/* "$to"/kind/bin/*
}

# Which images kubeadm will ask for: "NAME PROGRAM" lines.
components() {
  local image
  "$BIN/kubeadm" config images list --kubernetes-version "$1" 2>/dev/null | while read -r image; do
    echo "$image $(sed 's#.*/##; s#:.*##' <<<"$image")"
  done
}

make_component() { # NAME PROGRAM WORK: import an image that is little more than the program
  local name=$1 program=$2 root=$3/$2
  local folder=usr/local/bin
  mkdir -p "$root/tmp"
  chmod 1777 "$root/tmp"
  case "$program" in
    kube-proxy) docker run --rm --entrypoint /kube-proxy-files.sh "$TAG-base" | tar --extract --directory "$root" ;;
    # These two are started by these paths.
    pause | coredns) folder=. ;;
  esac
  mkdir -p "$root/$folder"
  cp "$BIN/$program" "$root/$folder/$program"
  tar --create --numeric-owner --owner 0 --group 0 --directory "$root" . | docker import \
    --change "ENV PATH=$IMAGE_PATH" --change "ENTRYPOINT [\"/$folder/$program\"]" - "$name" >/dev/null
  rm -rf "$root"
}

make_components() { # VERSION WORK: all of them in one archive
  local name program names=()
  while read -r name program; do
    make_component "$name" "$program" "$2"
    names+=("$name")
  done < <(components "$1")
  docker save --output "$2/context/images.tar" "${names[@]}"
  docker image rm "${names[@]}" >/dev/null
}

build() { # with the legacy builder, for that is all that Debian's Docker has
  local variable proxy=()
  for variable in {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY; do
    [ -z "${!variable:-}" ] || proxy+=(--build-arg "$variable")
  done
  DOCKER_BUILDKIT=0 docker build --network host "${proxy[@]}" "$@" >"$CACHE/node.log" 2>&1 ||
    die "docker build failed: $(tail -n 20 "$CACHE/node.log")"
  rm -f "$CACHE/node.log"
}

forget_older() { # what earlier versions have left, except one that a cluster still runs on
  docker image ls --format '{{.Repository}}:{{.Tag}}' heterotrain-node | grep -vFx "$TAG" |
    xargs --no-run-if-empty docker image rm >/dev/null 2>&1 || true
  docker image prune --force --filter label=heterotrain.dev/part=node >/dev/null
}

main() {
  local work version pause_image
  take_lock
  "$KIND_DIR/tools.sh" kubernetes etcd coredns pause tools
  "$OFFLINE_DIR/base.sh"
  TAG=$(image_name)
  if ! has_image "$TAG"; then
    say "building the node image (about a minute)"
    work=$(mktemp -d "$CACHE/node.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    mkdir -p "$work/context/bin"
    version=v$("$BIN/kubelet" --version | sed 's/.*v//')
    pause_image=$(components "$version" | awk '$2 == "pause" { print $1 }')
    cp -R "$OFFLINE_DIR/node/." "$work/context/"
    cp "$OFFLINE_DIR/node/kube-proxy-files.sh" "$work/context/files/"
    sed -i "s#@PAUSE_IMAGE@#$pause_image#" "$work/context/files/etc/containerd/config.toml"
    copy_kind_files "$work/context/kind"
    echo "$version" >"$work/context/version"
    build --target base --tag "$TAG-base" "$work/context"
    make_components "$version" "$work"
    cp "$BIN"/{kubelet,kubeadm,kubectl} "$work/context/bin/"
    build --tag "$TAG" "$work/context"
    forget_older
  fi
  echo "$TAG"
}

main
