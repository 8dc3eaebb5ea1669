#!/usr/bin/env bash
# tls_soak.sh - deaths, lost servers, restarts, elastic jobs and snapshots, with all processes of a host behind TLS 1.3
# instead of Unix-domain sockets:  tests/cluster/tls_soak.sh BUILD_DIR
set -eu
cd "$(dirname "$0")/../.."
BUILD=$(realpath "${1:-build}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$BUILD/bin/penstock" keygen "$folder/secret" >"$folder/keygen"
export BUILD PENSTOCK_TRANSPORT=tcp PENSTOCK_ENCRYPTION=on PENSTOCK_LOCAL_SOCKETS=no PENSTOCK_SECRET_FILE="$folder/secret"
for suite in death failover loss elastic netfault leave admission slots tables snapshot; do
    timeout 300 bats "tests/cluster/$suite.bats"
done
