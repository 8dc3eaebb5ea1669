# systemd.bats - the units of deploy/systemd: systemd reads them, and rates them safe.

setup() {
    command -v systemd-analyze >/dev/null || skip "needs systemd-analyze: apt install systemd"
    root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    units=$(mktemp -d "${TMPDIR:-/tmp}/units-XXXXXX")
    # The program is in the build folder, not where the package would install it.
    for unit in "$root"/deploy/systemd/*.service; do
        sed "s|/usr/bin/penstock|$(realpath "${BUILD:-$root/build}")/bin/penstock|" "$unit" >"$units/$(basename "$unit")"
    done
}

teardown() { rm -rf "${units:-}"; }

@test "systemd accepts the units" {
    for unit in "$units"/*.service; do
        run systemd-analyze verify --man=no "$unit"
        [ "$status" = 0 ] && [ -z "$output" ] || { echo "$unit: $output"; return 1; }
    done
}

@test "systemd rejects a unit with a typo" {
    sed -i 's/^PrivateTmp=/PrivatTmp=/' "$units/penstock-scheduler.service"
    run systemd-analyze verify --man=no "$units/penstock-scheduler.service"
    [[ $output == *PrivatTmp* ]]
}

@test "their exposure is at most 2.0 of 10" {
    for unit in "$units"/*.service; do
        systemd-analyze security --offline=true --threshold=20 --no-pager "$unit" >"$units/report" || { tail -n 3 "$units/report"; return 1; }
    done
}

@test "every setting in a unit is known to its command" {
    for name in $(grep -ohE 'PENSTOCK_[A-Z_]+=' "$units"/*.service | tr -d = | sort -u); do
        env "$name=x" "$(realpath "${BUILD:-$root/build}")/bin/penstock" env --role server 2>&1 | grep -q 'unknown setting' && { echo "$name"; return 1; }
    done
    true
}
