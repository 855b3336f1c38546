#!/bin/bash
# Put images into this root's containerd store without unpacking them, for an image build may not mount anything.
set -euo pipefail
printf 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n' >/tmp/containerd.toml
containerd --config /tmp/containerd.toml >/tmp/containerd.log 2>&1 &
daemon=$!
for _ in $(seq 100); do
  ctr version >/dev/null 2>&1 && break
  sleep 0.1
done
fail() {
  cat /tmp/containerd.log >&2
  exit 1
}
# Compressed, for every node gets a copy.
ctr --namespace k8s.io images import --no-unpack --compress-blobs "$1" || fail
# Pinned: the kubelet must never collect them, for they cannot be had again.
for name in $(ctr --namespace k8s.io images list --quiet); do
  ctr --namespace k8s.io images label "$name" io.cri-containerd.pinned=pinned || fail
done
kill "$daemon"
wait "$daemon" || true
