#!/bin/bash
# Write a tar of what kube-proxy runs: the programs of iptables, their plug-ins and libraries, under the names it uses.
set -euo pipefail
root=$(mktemp -d)
programs=(/usr/sbin/xtables-nft-multi /usr/sbin/nft /usr/sbin/conntrack)
plugins=(/usr/lib/*/xtables/*.so)
mapfile -t libraries < <(ldd "${programs[@]}" "${plugins[@]}" | grep -o '/lib[^ ]*\.so[^ ]*' | grep -v ':$' | sort -u)
cp --parents --dereference "${programs[@]}" "${plugins[@]}" "${libraries[@]}" "$root"
for name in iptables ip6tables; do
  for form in "" -save -restore; do
    ln -s xtables-nft-multi "$root/usr/sbin/$name$form"
  done
done
tar --create --directory "$root" .
