#!/usr/bin/env bash
# Have the image that both Dockerfiles start from. Where no registry answers, make a stand-in of the same name from
# Debian's packages: the same Python on the same Debian.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

stand_in() {
  "$OFFLINE_DIR/base.sh"
  # A stand-in cannot be what a digest promises.
  [[ "$BASE" != *@* ]] || die "no registry answers, and nothing else is $BASE"
  say "no registry answers: making a stand-in for $BASE"
  "${BUILD[@]}" --quiet --tag "$BASE" - >/dev/null <<EOT
FROM $BASE_IMAGE
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
EOT
}

"$KIND_DIR/docker.sh"
has_image "$BASE" || pull_image "$BASE" 300 || stand_in
