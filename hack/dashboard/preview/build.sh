#!/usr/bin/env bash
# Installs Grafana's components, which are under the Apache License 2.0, into a folder (460 MB), and bundles app.jsx with them
# there: build.sh FOLDER. package-lock.json has all versions and hashes; `npm install --package-lock-only` writes it.
set -euo pipefail

HERE=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1"
cp "$HERE"/package{,-lock}.json .
npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
NODE_PATH=$PWD/node_modules node_modules/.bin/esbuild "$HERE/app.jsx" --bundle --minify --jsx=automatic --log-level=error \
  --loader:.woff2=dataurl --loader:.woff=dataurl --loader:.ttf=empty \
  --define:process.env.NODE_ENV='"production"' --outfile=app.js
