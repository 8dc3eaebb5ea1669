# first_run.bats - the script for the first ten minutes on a GPU, on the fake driver.

load ../support/bats

setup() {
    cd "$BATS_TEST_DIRNAME/../.."
    export BUILD=${BUILD:-$PWD/build}
    [ -e "$BUILD/tests/gpu/driver/libcuda.so.1" ] || skip "built without CUDA"
    tmp=$BATS_TEST_TMPDIR
}

@test "a packed folder runs from elsewhere, with nothing of the build: a dry run passes, within a minute, and says what it has not proven" {
    local limit_mib=64 begun # what is carried is small
    tests/gpu/first_run.sh --pack "$tmp/carried" >"$tmp/packed"
    cat "$tmp/packed"
    grep -qE 'needs glibc [0-9.]+ or newer and a driver for CUDA [0-9.]+$' "$tmp/packed"
    [ "$(du -sm "$tmp/carried" | cut -f1)" -lt $limit_mib ]
    ! find "$tmp/carried" -name 'libc.so*' | grep . || return 1
    cd /
    begun=$SECONDS
    env -i PATH=/usr/bin:/bin HOME="$tmp" "$tmp/carried/first_run.sh" --dry-run "$tmp/results.json" >"$tmp/out" || { cat "$tmp/out"; return 1; }
    [ $((SECONDS - begun)) -lt 60 ]
    [[ $(sed -n 1p "$tmp/out") == "first run, on the fake driver: nothing here has touched a GPU"* ]]
    grep -qE '^2[0-9] passed, 0 failed, [0-9]+ skipped$' "$tmp/out"
    tail -n 1 "$tmp/out" | grep -q "^Not proven by this: machine code and PTX, "
    python3 - "$tmp/results.json" <<-END
	import json, sys
	r = json.load(open(sys.argv[1]))
	assert r["dry_run"] and r["failed"] == 0 and r["passed"] + r["skipped"] == len(r["proofs"]) >= 25
	assert [p["name"] for p in r["proofs"]][:3] == ["the image loads", "copies", "bits of folds"]
	assert all(p["state"] in ("ok", "skipped") and p["line"] for p in r["proofs"])
	END
}

@test "what a driver refuses is a failed proof, and the rest runs on" {
    local code=0
    ONLY='process|order of|2 devices|a job' CUDA_ON_HOST_FAILS=cuIpcOpenMemHandle=217 tests/gpu/first_run.sh --dry-run "$tmp/results.json" >"$tmp/out" || code=$?
    cat "$tmp/out"
    [ $code = 1 ]
    grep -q '^failed .*  memory of another process ' "$tmp/out"
    grep -q '^failed .*  a job: collectives ' "$tmp/out"
    grep -q '^ok .*  a job: ps-bsp, one server ' "$tmp/out" # its workers sum through the host
    grep -q '"name":"memory of another process","state":"failed"' "$tmp/results.json"
}
