#!/usr/bin/env bash
# Tell every node of ours which range of addresses the pods of each node have; the nodes do the rest (node/files/).
# Nodes from a registry bring a network daemon of their own.
set -euo pipefail
. "$(dirname "$0")/../kind/lib.sh"

ranges() { # "NODE RANGE" lines, once all nodes have a range
  kubectl get nodes --output jsonpath='{range .items[*]}{.metadata.name} {.spec.podCIDR}{"\n"}{end}'
}

all_have_ranges() {
  local found
  found=$(ranges)
  [ -n "$found" ] && ! grep -q ' $' <<<"$found"
}

main() {
  local all own node range cluster_range
  wait_for 60 all_have_ranges || die "the nodes get no addresses for pods"
  all=$(ranges)
  cluster_range=$(kubectl get --namespace kube-system configmap kubeadm-config --output jsonpath='{.data}' |
    grep -o 'podSubnet: [0-9./]*' | cut -d' ' -f2)
  while read -r node range; do
    own="$cluster_range $range"
    { echo "$own" && grep -v "^$node " <<<"$all"; } |
      docker exec --interactive "$node" sh -c 'cat >/etc/pod-network && systemctl start pod-network.service'
  done <<<"$all"
}

main
