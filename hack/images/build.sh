#!/usr/bin/env bash
# Build the images of the operator and the trainer, each only if something that goes into it has changed, and load them
# into the cluster of `make kind`, if it is up. TORCH=cuda takes torch's CUDA build instead of the one for CPUs; BASE=... is
# what both start from, for example python@sha256:... What is in them is written to out/sbom.
#
# The build context is a temporary folder with just what the Dockerfile copies and, beside it, how pip reaches packages
# on this machine: only a build stage sees that, so neither credentials nor wheels end in an image.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

KEY_LABEL=heterotrain.dev/key
TORCH=${TORCH:-cpu}
VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
# The Dockerfile comes first.
COMMON=(pyproject.toml hack/images/{debian_packages.py,sbom.lock} trainer-image/heterotrain)
OPERATOR=(Dockerfile "${COMMON[@]}" hack/images/operator.lock operator/heterotrain_operator)
TRAINER=(trainer-image/Dockerfile "${COMMON[@]}" constraints.txt hack/images/trainer.lock examples/*.py)
PIP_OPTIONS=(index-url extra-index-url trusted-host proxy default-timeout retries)
PIP_SETTINGS=$("${PYTHON:-python3}" -m pip config list 2>/dev/null || true)

# What pip would use for an option, from its environment or else its files; several values are separated by spaces.
pip_option() {
  local variable=PIP_${1^^} value
  variable=${variable//-/_}
  value=${!variable:-$(sed -n "s/^\(global\|install\)\.$1='\(.*\)'\$/\2/p" <<<"$PIP_SETTINGS" | tail -n 1)}
  value=${value//\\n/ }
  echo "${value# }"
}

write_pip_settings() { # FOLDER
  local option value
  echo '[global]' >"$1/pip.conf"
  for option in "${PIP_OPTIONS[@]}"; do
    value=$(pip_option "$option")
    [ -z "$value" ] || echo "$option = $value" >>"$1/pip.conf"
  done
  value=$(pip_option cert)
  if [ -f "$value" ]; then
    cp "$value" "$1/authorities.pem"
    echo 'cert = /build/authorities.pem' >>"$1/pip.conf"
  fi
}

copy_wheels() { # NAME FOLDER: those of every folder that pip searches, as far as the image can use them
  local place wheel
  for place in $(pip_option find-links); do
    for wheel in "$place"/*.whl; do
      case "$1:$TORCH:${wheel##*/}" in
        operator:*:torch-* | trainer:cuda:torch-*+cpu-* | *:\*.whl) ;;
        *) mkdir -p "$2/wheels" && cp "$wheel" "$2/wheels/" ;;
      esac
    done
  done
  [ ! -d "$2/wheels" ] || echo 'find-links = /build/wheels' >>"$2/pip.conf"
}

build() { # NAME PATH...
  local name=$1 image=heterotrain-$1:$VERSION options=(--build-arg "BASE=$BASE") key older
  shift
  IMAGES+=("$image")
  mkdir "$WORK/$name"
  tar --create --exclude=__pycache__ "$@" | tar --extract --directory "$WORK/$name"
  [ "$name" = operator ] || options+=(--build-arg "TORCH=$TORCH")
  key=$(key_of "$WORK/$name" "$(docker image inspect --format '{{.Id}}' "$BASE")" "${options[@]}")
  [ "$(docker image inspect --format "{{index .Config.Labels \"$KEY_LABEL\"}}" "$image" 2>/dev/null)" != "$key" ] ||
    return 0
  say "building $image"
  older=$(docker image inspect --format '{{.Id}}' "$image" 2>/dev/null || true)
  mkdir "$WORK/$name/pip"
  write_pip_settings "$WORK/$name/pip"
  copy_wheels "$name" "$WORK/$name/pip"
  "${BUILD[@]}" --file "$WORK/$name/$1" "${options[@]}" --label "$KEY_LABEL=$key" \
    --label "org.opencontainers.image.base.name=$BASE" --tag "$image" "$WORK/$name"
  # What the tag has left; a container may still hold it.
  [ -z "$older" ] || docker image rm "$older" >/dev/null 2>&1 || true
}

# The base by its digest, if it came from a registry: its tag may move between the builds of two images.
pin_base() {
  local digest
  [[ "$BASE" != *@* ]] || return 0
  digest=$(docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$BASE" | grep "^${BASE%:*}@") ||
    return 0
  BASE=$digest
}

write_sboms() { # IMAGE...: as CycloneDX; each image holds its own
  local image container
  mkdir -p out/sbom
  for image in "$@"; do
    container=$(docker create "$image")
    docker cp --quiet "$container:/opt/heterotrain/sbom.cdx.json" "out/sbom/${image%%:*}.cdx.json"
    docker rm "$container" >/dev/null
  done
}

main() {
  IMAGES=()
  WORK=$(mktemp -d)
  trap 'rm -rf "$WORK"' EXIT
  hack/images/base.sh
  pin_base
  build operator "${OPERATOR[@]}"
  build trainer "${TRAINER[@]}"
  write_sboms "${IMAGES[@]}"
  if [ -n "$(docker ps --quiet --filter "label=io.x-k8s.kind.cluster=$CLUSTER")" ]; then
    "$KIND_DIR/load.sh" "${IMAGES[@]}"
  fi
}

# Standard output is left to what a shell evaluates, as of `make kind`.
main >&2
