# mpirun.bats - Penstock programs started by Debian's mpirun find each other, with servers and without.

load ../support/job

setup() {
    command -v mpirun >/dev/null || skip "needs mpirun: apt install openmpi-bin"
    job_setup
    export OMP_NUM_THREADS=1
    mpi=(mpirun --allow-run-as-root --oversubscribe --mca btl self,vader)
    example=("$examples/fashion_mnist" --steps 40 --batch 64 --seed 7)
}

teardown() { [ -z "${tmp:-}" ] || job_teardown; }

reference() {
    "$penstock" run --standalone "$@" "${example[@]}" --out "$tmp/reference.json" >"$tmp/reference.out" 2>&1 3>&- ||
        { cat "$tmp/reference.out"; return 1; }
}

@test "four ranks of mpirun train by allreduce, with the same parameters as penstock run" {
    reference --nproc-per-node 4
    MARK=$mark timeout 120 "${mpi[@]}" -n 4 "${example[@]}" --out "$tmp/mpi.json" >"$tmp/mpi.out" 2>&1 3>&- || { cat "$tmp/mpi.out"; return 1; }
    same_crc reference mpi
    [ "$(value mpi workers)" = 4 ]
}

@test "mpirun also starts the servers, which take their ranks from it" {
    reference --nproc-per-node 2 --servers 2
    export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((10000 + RANDOM % 4900)) PENSTOCK_SERVERS=2 PENSTOCK_SCHEDULER=external
    MARK=$mark "$penstock" scheduler --world-size 2 >"$tmp/scheduler.out" 2>&1 3>&- &
    MARK=$mark timeout 120 "${mpi[@]}" -n 2 "$penstock" server >"$tmp/servers.out" 2>&1 3>&- &
    MARK=$mark timeout 120 "${mpi[@]}" -n 2 "${example[@]}" --out "$tmp/mpi.json" >"$tmp/mpi.out" 2>&1 3>&- || { cat "$tmp"/*.out; return 1; }
    same_crc reference mpi
    wait
    nothing_is_left 10
}

@test "penstock env names Open MPI as the launcher, and the values it took" {
    timeout 60 "${mpi[@]}" -n 2 --output-filename "$tmp/ranks" "$penstock" env --json >/dev/null 3>&-
    local file
    file=$(find "$tmp/ranks" -path '*rank.1*' -name stdout)
    [ "$(jq -r .launcher "$file")" = "Open MPI" ]
    [ "$(jq .values.rank.value "$file")" = 1 ]
    [ "$(jq .values.world_size.value "$file")" = 2 ]
    [ "$(jq -r .values.master_port.from "$file")" = PMIX_NAMESPACE ]
}
