#!/usr/bin/env bash
# Make the Docker image heterotrain-debian:bookworm with debootstrap, for machines that reach no image registry. It is
# the base of the cluster's nodes, and stands in for other images that are built on Debian 12.
set -euo pipefail
. "$(dirname "$0")/../kind/lib.sh"

SUITE=bookworm
KEY_LABEL=heterotrain.dev/key

# Where this machine takes its own packages of the suite from, as lines of a sources.list.
apt_sources() {
  # shellcheck disable=SC2016 # apt's variables
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
    grep -E " $SUITE(-updates|-security)? main\$" || true
}

make_root() {
  local root=$1 sources mirror
  sources=$(apt_sources)
  mirror=$(awk -v suite="$SUITE" '$3 == suite { print $2; exit }' <<<"$sources")
  # An empty mirror makes debootstrap take Debian's own.
  debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 ||
    die "debootstrap failed: $(tail -n 5 "$root.log")"
  [ -z "$sources" ] || printf '%s\n' "$sources" >"$root/etc/apt/sources.list"
  # The machine may trust authorities that the fresh system does not know.
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
}

main() {
  local key work
  key=$(key_of "$SUITE" "$(declare -f apt_sources make_root)" /etc/ssl/certs/ca-certificates.crt)
  take_lock
  "$KIND_DIR/docker.sh"
  [ "$(docker image inspect --format "{{index .Config.Labels \"$KEY_LABEL\"}}" "$BASE_IMAGE" 2>/dev/null)" != "$key" ] ||
    return 0
  is_root || die "building $BASE_IMAGE needs root, for debootstrap"
  "$KIND_DIR/packages.sh" debootstrap
  say "making $BASE_IMAGE (about a minute)"
  work=$(mktemp -d "$CACHE/base.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  make_root "$work/root"
  tar --create --numeric-owner --directory "$work/root" . |
    docker import --change "LABEL $KEY_LABEL=$key" --change 'CMD ["/bin/bash"]' - "$BASE_IMAGE" >/dev/null
}

main
