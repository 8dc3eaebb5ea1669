#!/usr/bin/env bash
# offload.sh - the cost of keeping optimizer state, or state and parameters, in files instead of memory.
#   tests/bench/offload.sh [BUILD_DIR] [FOLDER_ON_THE_DISK] [ROWS]
# One server, one worker, AdamW over 784 x ROWS numbers. Prints one JSON object: time of a step in memory and with
# files, bytes that a step moves, the rate at which it moves them, and the rate of dd on the same idle disk.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${1:-build}")
disk=${2:-$build}
rows=${3:-10000}
folder=$(mktemp -d "$disk/tier-XXXXXX")
trap 'rm -rf "$folder"' EXIT
export PENSTOCK_OFFLOAD_PATH=$folder LD_LIBRARY_PATH=$build/lib
few=3 many=13

seconds() { # STEPS: microseconds of a job
    local begun=${EPOCHREALTIME/[.,]/}
    "$build/bin/penstock" run --standalone --servers 1 --nproc-per-node 1 "$build/tests/programs/stepper" \
        "rows=$rows" "steps=$1" >/dev/null 2>&1
    echo $((${EPOCHREALTIME/[.,]/} - begun))
}

# Microseconds of a step: long jobs minus short ones, the median of three.
step_us() {
    for _ in 1 2 3; do echo $((($(seconds $many) - $(seconds $few)) / (many - few))); done | sort -n | sed -n 2p
}

dd_rate() { # MB/s of writing and of reading
    local begun=${EPOCHREALTIME/[.,]/}
    dd if=/dev/zero of="$folder/dd" bs=4M count=64 oflag=direct 2>/dev/null
    local written=${EPOCHREALTIME/[.,]/}
    dd if="$folder/dd" of=/dev/null bs=4M iflag=direct 2>/dev/null
    local end=${EPOCHREALTIME/[.,]/}
    rm "$folder/dd"
    echo "$((256 * 1048576 / (written - begun))) $((256 * 1048576 / (end - written)))"
}

n=$((784 * rows + rows + 50101))
memory=$(step_us)
slots=$(PENSTOCK_OFFLOAD_OPTIMIZER=nvme step_us)
all=$(PENSTOCK_OFFLOAD_OPTIMIZER=nvme PENSTOCK_OFFLOAD_PARAM=nvme step_us)
read -r dd_write dd_read < <(dd_rate)
printf '{"bench": "tier", "elements": %d, "step_ms_memory": %.1f, "step_ms_slots": %.1f, "step_ms_all": %.1f, ' \
    "$n" "$((memory))e-3" "${slots}e-3" "${all}e-3"
printf '"moved_MB_slots": %d, "moved_MB_all": %d, "MBps_slots": %d, "MBps_all": %d, "dd_write_MBps": %d, "dd_read_MBps": %d}\n' \
    $((16 * n / 1000000)) $((28 * n / 1000000)) $((16 * n / slots)) $((28 * n / all)) "$dd_write" "$dd_read"
