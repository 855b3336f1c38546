#!/usr/bin/env bash
# Look for known vulnerabilities: make scan. It reads what is installed into the images and for development (hack/images/*.lock,
# constraints.txt) and, after `make images`, the lists of all that the images hold (out/sbom).
# osv-scanner asks https://api.osv.dev; ADVISORIES=FOLDER takes the advisories of a folder instead and asks nobody: any that are
# written in OSV's format (advisories.py), or copies of its databases, FOLDER/osv-scanner/PyPI/all.zip and .../Debian/all.zip.
# Exit code 1: there are some; 2: nothing was scanned.
set -euo pipefail
. "$(dirname "$0")/../kind/lib.sh"
cd "$(dirname "$0")/../.."

SCANNER=github.com/google/osv-scanner/cmd/osv-scanner@v1.9.2
FOUND=1

die() { printf 'scan: nothing was scanned: %s\n' "$*" >&2 && exit 2; }

lists=()
for list in hack/images/*.lock constraints.txt; do
  lists+=(--lockfile "requirements.txt:$list")
done
for list in out/sbom/*.cdx.json; do
  if [ -f "$list" ]; then
    lists+=(--sbom "$list")
  else
    echo "scan: no out/sbom, so Debian's packages are not looked at; make images writes the lists" >&2
  fi
done
options=()
if [ -n "${ADVISORIES:-}" ]; then
  if [ ! -d "$ADVISORIES/osv-scanner" ]; then
    packed=$(mktemp -d)
    trap 'rm -rf "$packed"' EXIT
    "${PYTHON:-python3}" hack/release/advisories.py "$ADVISORIES" "$packed" PyPI Debian || die "ADVISORIES names a folder of advisories"
    ADVISORIES=$packed
  fi
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
