#!/usr/bin/env bash
# Make the test cluster, or whatever of it is missing, and print the lines that make a shell use it. Nothing is done
# twice: what is built is cached by what made it, and a cluster that answers and was made by these files is left alone.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

half_cpus() { echo "$(($(nproc) * 500))m"; }

# The nodes' image: the registry's where one answers, else our own. A machine that once had to build one is not asked
# again, for the answer may take long.
choose_image() {
  if [ -z "$(docker image ls --quiet heterotrain-node)" ] && pull_image "$REGISTRY_NODE_IMAGE"; then
    "$KIND_DIR/tools.sh" tools kubernetes
    echo "$REGISTRY_NODE_IMAGE"
  else
    "$OFFLINE_DIR/node-image.sh"
  fi
}

own_image() { [[ "$1" == heterotrain-node:* ]]; }

cluster_config() { # IMAGE
  local own_network=false
  ! own_image "$1" || own_network=true
  sed -e "s#@OWN_NETWORK@#$own_network#" -e "s#@CHECKPOINTS@#$STATE/checkpoints#" -e "s#@HALF_CPUS@#$(half_cpus)#" \
    "$KIND_DIR/cluster.yaml"
}

node_containers() { docker ps --quiet "$@" --filter "label=io.x-k8s.kind.cluster=$CLUSTER"; }

# A cluster that was stopped, with its daemon or by hand, comes back by itself once its containers run.
answers() {
  [ -n "$(node_containers --all)" ] || return 1
  node_containers --all --filter status=exited --filter status=created | xargs --no-run-if-empty docker start >/dev/null
  node_containers --filter status=paused | xargs --no-run-if-empty docker unpause >/dev/null
  kind export kubeconfig --name "$CLUSTER" --kubeconfig "$KUBECONFIG" >/dev/null 2>&1 || return 1
  wait_for 60 kubectl get --raw /readyz
}

create() { # IMAGE KEY
  kind delete cluster --name "$CLUSTER" --kubeconfig "$KUBECONFIG" 2>/dev/null
  rm -rf "$STATE"
  need_free_gib 8
  mkdir -p "$STATE/checkpoints"
  chmod 1777 "$STATE/checkpoints"
  say "creating the cluster"
  cluster_config "$1" | kind create cluster --config - --image "$1" --kubeconfig "$KUBECONFIG" >"$STATE/create.log" 2>&1 ||
    die "kind cannot create the cluster: $(tail -n 20 "$STATE/create.log")"
  echo "$2" >"$STATE/key.new"
}

# Whether every node has spoken since a time: after a restart the API still tells what was true before it.
all_speak() { # since TIME
  local renewals
  renewals=$(kubectl get leases --namespace kube-node-lease --output jsonpath='{range .items[*]}{.spec.renewTime}{"\n"}{end}')
  [ -n "$renewals" ] && [[ "$(sort <<<"$renewals" | head -n 1)" > "$1" ]]
}

finish() { # IMAGE: what kind does not do; cheap to repeat
  wait_for 60 all_speak "$(date --utc +%FT%T)" || die "not all nodes answer"
  ! own_image "$1" || "$OFFLINE_DIR/network.sh"
  "$KIND_DIR/gpus.sh"
  kubectl wait --for=condition=Ready nodes --all --timeout=120s >/dev/null || die "not all nodes get ready"
  kubectl wait --for=condition=Ready pods --all --namespace kube-system --timeout=120s >/dev/null ||
    die "not all of the cluster's own pods get ready"
}

main() {
  local image key
  take_lock
  "$KIND_DIR/docker.sh"
  image=$(choose_image)
  key=$(key_of "$image" "$(cluster_config "$image")")
  if [ "$(cat "$STATE/key" 2>/dev/null)" != "$key" ] || ! answers; then
    create "$image" "$key"
    finish "$image"
    mv "$STATE/key.new" "$STATE/key"
  else
    finish "$image"
  fi
  # Last, for the cluster needs none: what runs beside it, or in it.
  "$KIND_DIR/tools.sh" prometheus
  say "the cluster is ready; a shell uses it and its tools after:"
  echo "export KUBECONFIG=$KUBECONFIG"
  echo "export PATH=$BIN:\$PATH"
}

main
