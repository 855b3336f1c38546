#!/usr/bin/env bash
# What kube-score finds critical in the chart, but for what docs/security.md gives a reason for. Exit code 1 if it finds
# anything. Needs Go, and helm (in PATH, or as `make kind` builds it).
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/kind/lib.sh

KUBE_SCORE=github.com/zegl/kube-score/cmd/kube-score@v1.20.0
EXPLAINED=(--ignore-container-cpu-limit --ignore-test=container-image-pull-policy)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v go >/dev/null || die "needs Go (https://go.dev/dl/) to build kube-score"
command -v helm >/dev/null || die "needs helm; hack/kind/tools.sh tools builds it"
GOBIN=$work GOFLAGS=-mod=mod go install "$KUBE_SCORE"

for replicas in 1 3; do
  say "kube-score of the chart with replicas=$replicas"
  helm template heterotrain helm/heterotrain --namespace heterotrain --set "replicas=$replicas" >"$work/chart.yaml"
  "$work/kube-score" score --kubernetes-version v1.34 --output-format ci "${EXPLAINED[@]}" "$work/chart.yaml" |
    grep -v '^\[\(OK\|SKIPPED\)\]' || true
  "$work/kube-score" score --kubernetes-version v1.34 "${EXPLAINED[@]}" "$work/chart.yaml" >/dev/null ||
    die "kube-score finds something critical"
done
