#!/usr/bin/env bash
# A real Prometheus in the test cluster, for what is tested of metrics: prometheus.sh start|stop|delete|url.
# `stop` leaves everything but the pod, and `start` after it brings a new one, without the old one's data. Pods reach it
# at the URL; from outside: kubectl get --raw "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/api/v1/...".
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

HERE=$KIND_DIR/prometheus
RULES=$KIND_DIR/../../helm/heterotrain/files/rules.yaml
NAMESPACE=monitoring

image() { echo "heterotrain-prometheus:$(key_of "$(readlink "$BIN/prometheus")" "$HERE/Dockerfile")"; }

# The context travels as a tar file, for the binary lies outside this folder.
build() { # IMAGE
  has_image "$1" ||
    tar --create --dereference --directory "$BIN" prometheus --directory "$HERE" Dockerfile | docker build --quiet --tag "$1" - >&2
}

configuration() {
  kubectl create configmap prometheus --namespace "$NAMESPACE" --dry-run=client --output yaml \
    --from-file="$HERE/prometheus.yaml" --from-file="$RULES"
}

manifests() { # IMAGE
  sed -e "s#@IMAGE@#$1#" -e "s#@CONFIGURATION@#$(key_of "$HERE/prometheus.yaml" "$RULES")#" "$HERE/manifests.yaml"
}

start() {
  local image
  "$KIND_DIR/tools.sh" prometheus
  image=$(image)
  build "$image"
  "$KIND_DIR/load.sh" "$image"
  { manifests "$image" && echo --- && configuration; } | kubectl apply --filename - >&2
  kubectl rollout status deployment/prometheus --namespace "$NAMESPACE" --timeout=120s >&2
  url
}

stop() {
  kubectl scale deployment/prometheus --namespace "$NAMESPACE" --replicas=0 >&2
  kubectl wait pod --selector app=prometheus --namespace "$NAMESPACE" --for=delete --timeout=60s >&2
}

delete() { manifests none | kubectl delete --ignore-not-found --filename - >&2; }

url() { echo "http://prometheus.$NAMESPACE:9090"; }

main() {
  case "${1:-}" in
    start | stop | delete | url) "$1" ;;
    *) die "usage: prometheus.sh start|stop|delete|url" ;;
  esac
}

main "$@"
