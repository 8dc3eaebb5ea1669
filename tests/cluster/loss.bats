# loss.bats - jobs without servers: a worker is lost, and the others continue or the job fails; with real processes.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# Runs survivor on four ranks:  survive NAME RUN_FLAGS... -- RANK HOW AT   -> $code, $tmp/NAME.{out,err}
survive() {
    local name=$1 flags
    take_flags "${@:2}"
    shift $((${#flags[@]} + 2))
    code=0
    pen run --standalone --job "$job-$name" --nproc-per-node 4 "${flags[@]}" "$programs/survivor" 40 5 "$@" \
        >"$tmp/$name.out" 2>"$tmp/$name.err" || code=$?
}

# All ranks but $2 made all calls, the last one among three ranks.
three_went_on() {
    cat "$tmp/$1.out" "$tmp/$1.err"
    [ "$(grep -c 'of 4: 40 calls, the last sum 3 among 3$' "$tmp/$1.out")" -eq 3 ]
    ! grep -q "rank $2 of 4" "$tmp/$1.out" || return 1
}

@test "without servers workers train among themselves, without a setting for it" {
    survive plain --
    [ "$code" -eq 0 ]
    [ "$(grep -c 'of 4: 40 calls, the last sum 4 among 4$' "$tmp/plain.out")" -eq 4 ]
    grep -q ' 0 servers   4 workers' "$tmp/plain.err"
    nothing_is_left
}

@test "continue: the others continue without a worker that was killed, and the job ends with 0" {
    survive killed --on-worker-loss continue -- 1 kill 20
    three_went_on killed 1
    [ "$code" -eq 0 ]
    [ "$(grep -c '^penstock: worker 1 .* is gone.*; the job goes on without it$' "$tmp/killed.err")" -eq 1 ]
    nothing_is_left
}

@test "continue: rank 0 is a worker like any other" {
    survive first --on-worker-loss continue -- 0 kill 20
    three_went_on first 0
    [ "$code" -eq 0 ]
    nothing_is_left
}

@test "continue: a worker that ends with its own code is lost, and the code is not the job's" {
    survive code --on-worker-loss continue -- 2 exit=7 20
    three_went_on code 2
    [ "$code" -eq 0 ]
    nothing_is_left
}

@test "continue: a worker that stops answering is lost after its lease, and is ended with the job" {
    survive stopped --on-worker-loss continue --lease-ms 2000 -- 3 stop 20
    three_went_on stopped 3
    [ "$code" -eq 0 ]
    nothing_is_left
}

@test "continue: a worker that fails before the job has begun ends it" {
    code=0
    pen run --standalone --nproc-per-node 2 --on-worker-loss continue sh -c 'exit 9' 2>"$tmp/all.err" || code=$?
    cat "$tmp/all.err"
    [ "$code" -eq 9 ]
    nothing_is_left
}

@test "continue: a job that loses all its workers fails, with the code and the sentence of the first" {
    code=0
    pen run --standalone --nproc-per-node 3 --on-worker-loss continue "$programs/stepper" steps=30 1:crash_at=5 \
        0:crash_at=8 2:crash_at=8 >"$tmp/all.out" 2>"$tmp/all.err" || code=$?
    cat "$tmp/all.err"
    [ "$code" -eq 139 ]
    grep -q '^  verdict  all workers are gone; the first one lost: worker 1 ' "$tmp/all.err"
    grep -q '^  rule     on_worker_loss=continue$' "$tmp/all.err"
    nothing_is_left
}

@test "fail: the loss of a worker ends the job, as with servers" {
    survive failed -- 1 kill 20
    cat "$tmp/failed.err"
    [ "$code" -eq 137 ]
    [ ! -s "$tmp/failed.out" ]
    grep -q 'rule     on_worker_loss=fail (default)' "$tmp/failed.err"
    nothing_is_left
}

@test "a rank that waits too long for another is told where that rank is" {
    survive hung --deadline-ms 2500 -- 1 hang 20
    cat "$tmp/hung.err"
    grep -q "rank 1.*; it is alive: in user code for .* s, last call pen_all_reduce" "$tmp/hung.err"
    nothing_is_left
}

@test "the key-value store hands out each ticket once, and answers when a key is set" {
    pen run --standalone --nproc-per-node 3 "$programs/tickets" 200 >"$tmp/out"
    cat "$tmp/out"
    [ "$(grep -c ': 600 tickets$' "$tmp/out")" -eq 3 ]
    [ "$(grep -c ' timed out$' "$tmp/out")" -eq 3 ]
    grep -q 'rank 2: rank 0 is at host0:7000' "$tmp/out"
    pen run --standalone --nproc-per-node 2 --servers 1 "$programs/tickets" 10 >"$tmp/out"
    [ "$(grep -c ': 20 tickets$' "$tmp/out")" -eq 2 ]
    pen run --standalone --nproc-per-node 1 "$programs/tickets" 10 >"$tmp/out"
    [ "$(grep -c ': 10 tickets$' "$tmp/out")" -eq 1 ]
    nothing_is_left
}

@test "continue: a worker that dies between the last step and the figures takes nothing from those of fashion_mnist" {
    local one
    # The third pen_stat() of a worker is the first call after the last step of its epoch.
    cat >"$tmp/dies.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int pen_stat(void *ctx, const char *name, double *value)
{
    static int calls;
    int (*real)(void *, const char *, double *) = (int (*)(void *, const char *, double *))dlsym(RTLD_NEXT, "pen_stat");
    if (++calls == 3 && getenv("RANK") && strcmp(getenv("RANK"), getenv("DIES")) == 0) {
        usleep(300000); /* others hear where it is: a beat comes every 100 ms */
        raise(SIGKILL);
    }
    return real(ctx, name, value);
}
END
    cc -shared -fPIC -o "$tmp/dies.so" "$tmp/dies.c"
    for one in 1 0; do
        DIES=$one LD_PRELOAD=$tmp/dies.so train "dies$one" --on-worker-loss continue --nproc-per-node 3 -- --steps 10
        grep -q "^penstock: worker $one .* is gone in step 10, .*; the job goes on without it$" "$tmp/dies$one.err"
    done
    [ "$(value dies1 steps)" = 10 ]
    nothing_is_left
}
