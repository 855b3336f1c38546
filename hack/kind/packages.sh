#!/usr/bin/env bash
# Install the named Debian packages that are missing, without starting any service of theirs.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

missing=()
for package in "$@"; do
  dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || die "needs ${missing[*]}, which only Debian's apt-get can install here"
is_root || die "needs the Debian packages ${missing[*]}: install them, or run this as root"
take_lock
say "installing Debian packages: ${missing[*]}"
# Without systemd nobody would stop the daemon that a package starts.
guard=/usr/sbin/policy-rc.d
if [ ! -d /run/systemd/system ] && [ ! -e "$guard" ]; then
  trap 'rm -f "$guard"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$guard"
  chmod 755 "$guard"
fi
export DEBIAN_FRONTEND=noninteractive
{ apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } >"$CACHE/apt.log" 2>&1 </dev/null ||
  die "apt-get failed: $(tail -n 5 "$CACHE/apt.log")"
rm -f "$CACHE/apt.log"
