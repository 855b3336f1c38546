#!/usr/bin/env bash
# Build programs from the pinned Go modules in modules/, here and in kind-offline, each module once: the results lie in
# the cache under the name of what made them, and $BIN has links to the newest. Names modules, all of them by default.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

MODULES=(tools kubernetes etcd coredns pause prometheus)
VERSION_PACKAGE=k8s.io/component-base/version
HELM_PACKAGE=helm.sh/helm/v3/pkg/chartutil

# The flags that a module needs beside the common ones.
flags_of() {
  local version
  version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' "$KIND_DIR/modules/kubernetes/go.mod")
  case "$1" in
    kubernetes)
      FLAGS=(-ldflags "-s -w -X $VERSION_PACKAGE.gitVersion=$version $(version_flags "$VERSION_PACKAGE.git" "$version")")
      ;;
    # Without it helm takes a chart that is only rendered to be for Kubernetes 1.20.
    tools) FLAGS=(-ldflags "-s -w $(version_flags "$HELM_PACKAGE.k8sVersion" "$version")") ;;
    # Pods are all that it shall find, and the clients of all the clouds make it three times as large.
    prometheus) FLAGS=(-ldflags '-s -w' -tags 'netgo remove_all_sd enable_kubernetes_sd') ;;
    *) FLAGS=(-ldflags '-s -w') ;;
  esac
}

version_flags() { # PREFIX, of vMAJOR.MINOR.PATCH: what programs say of themselves, or take a cluster for
  local major=${2#v} minor
  minor=${major#*.}
  printf -- '-X %sMajor=%s -X %sMinor=%s' "$1" "${major%%.*}" "$1" "${minor%%.*}"
}

source_of() { # MODULE
  local folder
  for folder in "$KIND_DIR" "$OFFLINE_DIR"; do
    if [ -d "$folder/modules/$1" ]; then
      echo "$folder/modules/$1"
      return
    fi
  done
  die "there is no module $1"
}

build() {
  local module=$1 folder=$2 started=$SECONDS target=tool
  [ "$module" != pause ] || target=.
  command -v go >/dev/null || die "needs Go (https://go.dev/dl/) to build $module"
  need_free_gib 12
  say "building $module from Go modules"
  rm -rf "$folder.new"
  mkdir -p "$folder.new"
  (cd "$(source_of "$module")" && CGO_ENABLED=0 GOOS=linux go build -mod=readonly -buildvcs=false -trimpath \
    "${FLAGS[@]}" -o "$folder.new/" "$target") || die "cannot build $module"
  # Go names a program after its package, and etcd's is called server.
  [ ! -e "$folder.new/server" ] || mv "$folder.new/server" "$folder.new/etcd"
  mv "$folder.new" "$folder"
  say "built $module in $((SECONDS - started)) s"
}

forget_older() { # builds of a module other than this one
  local other
  for other in "$CACHE/builds/$1"-*; do
    [ "$other" = "$2" ] || rm -rf "$other"
  done
}

provide() {
  local module=$1 folder program source
  source=$(source_of "$module")
  flags_of "$module"
  folder=$CACHE/builds/$module-$(key_of "$source" "$(uname -m)" "${FLAGS[*]}")
  if [ ! -d "$folder" ]; then
    build "$module" "$folder"
    forget_older "$module" "$folder"
  fi
  for program in "$folder"/*; do
    ln -sfn "../builds/${folder##*/}/${program##*/}" "$BIN/${program##*/}"
  done
}

main() {
  local module
  take_lock
  mkdir -p "$BIN" "$CACHE/builds"
  [ $# -gt 0 ] || set -- "${MODULES[@]}"
  for module in "$@"; do
    provide "$module"
  done
}

main "$@"
