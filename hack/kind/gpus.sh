#!/usr/bin/env bash
# Give the GPU node two GPUs, for the scheduler only: its kubelet keeps capacities that it does not know, and forgets
# them when it starts unless a device manager has left its checkpoint.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

GPUS=2
CHECKPOINT=/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint

main() {
  local node
  node=$(kubectl get nodes --selector heterotrain.dev/machine=gpu --output jsonpath='{.items[0].metadata.name}')
  docker exec "$node" sh -c "[ -s $CHECKPOINT ] || echo '{}' >$CHECKPOINT"
  kubectl patch node "$node" --subresource status --type merge --patch \
    "{\"status\": {\"capacity\": {\"nvidia.com/gpu\": \"$GPUS\"}, \"allocatable\": {\"nvidia.com/gpu\": \"$GPUS\"}}}" \
    >/dev/null
}

main
