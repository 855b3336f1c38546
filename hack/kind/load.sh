#!/usr/bin/env bash
# Load Docker images into the cluster's workers, those that are not there yet: load.sh IMAGE...
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# What earlier loads have left without a name, for images would fill the disk: these nodes never collect any.
forget_older() { # NODE
  docker exec "$1" sh -c '
    ctr --namespace k8s.io images list | awk "
      \$1 ~ /^(sha256:|import-)/ { nameless[\$1] = \$3; next }
      { named[\$3] = 1 }
      END { for (name in nameless) if (!(nameless[name] in named)) print name }" |
      xargs --no-run-if-empty ctr --namespace k8s.io images remove' >/dev/null
}

main() {
  local workers worker
  [ $# -gt 0 ] || die "name the images to load"
  workers=$(kubectl get nodes --selector '!node-role.kubernetes.io/control-plane' \
    --output jsonpath='{.items[*].metadata.name}') || die "no cluster answers: run 'make kind'"
  kind load docker-image --name "$CLUSTER" --nodes "${workers// /,}" "$@"
  for worker in $workers; do
    forget_older "$worker"
  done
}

main "$@"
