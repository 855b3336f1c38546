# shellcheck shell=bash
# What the scripts of this folder share, beside what they take from ../kind: the base, and how a build reaches the net.

. "$(dirname "${BASH_SOURCE[0]}")/../kind/lib.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

# Both Dockerfiles start from the same image, by default this one.
BASE=${BASE:-$(sed -n 's/^ARG BASE=//p' Dockerfile)}

# Docker knows these arguments by itself and keeps them out of the image.
BUILD=(docker build --network host --force-rm) # of a build that failed, too, no container stays
for variable in HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
  [ -z "${!variable:-}" ] || BUILD+=(--build-arg "$variable")
done
unset variable

say() { printf 'images: %s\n' "$*" >&2; }
