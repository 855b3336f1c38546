#!/usr/bin/env bash
# Sign images that a registry has, and attest what is in them: `make sign IMAGES='REPOSITORY@sha256:... ...'`. It takes cosign,
# whose own variables (COSIGN_...) choose the key; without one it asks an identity provider. The lists of packages are
# those that `make images` has written to out/sbom.
set -euo pipefail
cd "$(dirname "$0")/../.."

die() { printf 'sign: %s\n' "$*" >&2 && exit 2; }

[ $# -gt 0 ] || die "no image: make sign IMAGES='registry.example/heterotrain-operator@sha256:...'"
command -v cosign >/dev/null || die "cosign is not on PATH: https://docs.sigstore.dev"
for image in "$@"; do
  [[ "$image" == *@sha256:* ]] || die "$image: a tag can be moved after it was signed; name the image by its digest"
  name=${image%%@*}
  sbom=out/sbom/${name##*/}.cdx.json
  [ -f "$sbom" ] || die "$sbom is missing: run make images, which writes it"
done
for image in "$@"; do
  name=${image%%@*}
  cosign sign --yes "$image"
  cosign attest --yes --type cyclonedx --predicate "out/sbom/${name##*/}.cdx.json" "$image"
done
