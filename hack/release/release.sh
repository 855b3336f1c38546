#!/usr/bin/env bash
# Make a release in out/release, and push its images and charts to a registry by digest (docs/release.md):
#
#   make release REGISTRY=registry.example/team REPOSITORY=https://git.example/team/heterotrain
#
# SIGN=yes signs it, too, with cosign, whose own variables (COSIGN_...) choose the key.
set -euo pipefail
. "$(dirname "$0")/../kind/lib.sh"
cd "$(dirname "$0")/../.."

OUT=out/release
IMAGES=(operator trainer)
VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)

say() { printf 'release: %s\n' "$*" >&2; }

die() { printf 'release: %s\n' "$*" >&2 && exit 2; }

check() {
  [ -n "${REGISTRY:-}" ] || die "REGISTRY is not set: where images and charts go, as registry.example/team"
  [[ "${REPOSITORY:-}" =~ ^https://[^[:space:]\"]+$ ]] ||
    die "REPOSITORY is not an https URL: where users find the source; the charts name it"
  [ "${SIGN:-}" != yes ] || command -v cosign >/dev/null || die "cosign is not on PATH: https://docs.sigstore.dev"
  command -v helm >/dev/null || die "helm is not on PATH; hack/kind/tools.sh tools builds it"
  case "$REGISTRY" in
    127.0.0.1:* | localhost:*) PLAIN=(--plain-http) ;; # as Docker does
    *) PLAIN=() ;;
  esac
}

push_images() {
  local name image
  for name in "${IMAGES[@]}"; do
    image=$REGISTRY/heterotrain-$name
    docker tag "heterotrain-$name:$VERSION" "$image:$VERSION"
    docker push --quiet "$image:$VERSION" >/dev/null
    docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$image:$VERSION" | grep "^$image@sha256:"
  done
}

# The charts as they are in the repository know no address; these name their source, and the operator's image by digest.
package_charts() { # OPERATOR'S IMAGE
  local chart
  cp --recursive --dereference helm/heterotrain helm/heterotrain-crds "$WORK/"
  for chart in heterotrain heterotrain-crds; do
    printf 'home: %s\nsources: [%s]\n' "$REPOSITORY" "$REPOSITORY" >>"$WORK/$chart/Chart.yaml"
  done
  sed -i -e "s#^  repository: heterotrain-operator\$#  repository: ${1%@*}#" -e "s#^  digest: \"\"\$#  digest: ${1#*@}#" \
    "$WORK/heterotrain/values.yaml"
  grep -q "^  digest: ${1#*@}" "$WORK/heterotrain/values.yaml" || die "values.yaml has no image.digest to set"
  printf '  artifacthub.io/images: |\n    - {name: operator, image: "%s"}\n' "$1" |
    sed -i '/^annotations:$/r /dev/stdin' "$WORK/heterotrain/Chart.yaml"
  helm package --destination "$OUT" "$WORK/heterotrain" "$WORK/heterotrain-crds" >/dev/null
}

push_charts() {
  local chart
  for chart in "$OUT"/*.tgz; do
    helm push "${PLAIN[@]}" "$chart" "oci://$REGISTRY/charts" 2>&1 |
      sed -n -e "s#^Pushed: \(.*\):[^:]*\$#\1#p" -e 's#^Digest: #@#p' | paste -sd ''
  done
}

sign() {
  local images charts
  mapfile -t images < <(grep -v /charts/ "$OUT/oci.txt")
  mapfile -t charts < <(grep /charts/ "$OUT/oci.txt")
  hack/images/sign.sh "${images[@]}"
  cosign sign --yes "${charts[@]}"
  cosign sign-blob --yes --bundle "$OUT/SHA256SUMS.bundle" "$OUT/SHA256SUMS" >/dev/null
}

main() {
  check
  WORK=$(mktemp -d)
  trap 'rm -rf "$WORK"' EXIT
  rm -rf "$OUT"
  mkdir -p "$OUT"
  .venv/bin/python -m hatchling build --directory "$OUT" >/dev/null
  hack/images/build.sh
  cp out/sbom/*.cdx.json "$OUT/"
  push_images >"$OUT/oci.txt"
  package_charts "$(grep /heterotrain-operator@ "$OUT/oci.txt")"
  push_charts >>"$OUT/oci.txt"
  (cd "$OUT" && sha256sum -- * >"$WORK/SHA256SUMS" && mv "$WORK/SHA256SUMS" .)
  if [ "${SIGN:-}" = yes ]; then
    sign
  else
    say "not signed; SIGN=yes does that"
  fi
  say "made in $OUT:"
  ls "$OUT" >&2
}

main
