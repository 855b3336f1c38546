#!/usr/bin/env bash
# Look for known vulnerabilities in what the images hold, by the lists in out/sbom (`make images` writes them): make scan.
# osv-scanner asks https://api.osv.dev; ADVISORIES=FOLDER takes copies of its databases instead, FOLDER/osv-scanner/PyPI/all.zip
# and .../Debian/all.zip, and asks nobody. Exit code 1: there are some; 2: nothing was scanned.
set -euo pipefail
. "$(dirname "$0")/../kind/lib.sh"
cd "$(dirname "$0")/../.."

SCANNER=github.com/google/osv-scanner/cmd/osv-scanner@v1.9.2
FOUND=1

die() { printf 'scan: nothing was scanned: %s\n' "$*" >&2 && exit 2; }

lists=()
for list in out/sbom/*.cdx.json; do
  [ -f "$list" ] || die "out/sbom is empty; make images writes the lists"
  lists+=(--sbom "$list")
done
options=()
if [ -n "${ADVISORIES:-}" ]; then
  export OSV_SCANNER_LOCAL_DB_CACHE_DIRECTORY=$ADVISORIES
  options=(--experimental-offline)
fi
scanner=$(go_program "$SCANNER") || die "osv-scanner cannot be built; it takes Go (https://go.dev/dl/)"
rc=0
"$scanner" scan "${options[@]}" "${lists[@]}" || rc=$?
case $rc in
  0 | "$FOUND") exit $rc ;;
  *) die "osv-scanner reached no advisories (its message is above); ADVISORIES names a folder with copies" ;;
esac
