#!/usr/bin/env bash
# Load Docker images into the cluster's workers, those that are not there yet: load.sh IMAGE...
set -euo pipefail
. "$(dirname "$0")/lib.sh"

main() {
  local workers
  [ $# -gt 0 ] || die "name the images to load"
  workers=$(kubectl get nodes --selector '!node-role.kubernetes.io/control-plane' \
    --output jsonpath='{.items[*].metadata.name}') || die "no cluster answers: run 'make kind'"
  kind load docker-image --name "$CLUSTER" --nodes "${workers// /,}" "$@"
}

main "$@"
