#!/usr/bin/env bash
# docs.sh - writes the generated pages:  scripts/docs.sh BUILD_DIR [INTO_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
into=${2:-docs}
mkdir -p "$into"
for page in $("$build/bin/penstock" docs | sed -n 's/^  \([a-z]\)/\1/p'); do
    "$build/bin/penstock" docs "$page" >"$into/$page"
done
python3 scripts/python_docs.py >"$into/python.md"
awk -f scripts/api_docs.awk include/penstock.h >"$into/api.md"
