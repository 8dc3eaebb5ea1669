# nonfinite.bats - one bad number anywhere skips the step everywhere; ranks that disagree are told so.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

# Runs the stepper:  steps NAME SERVERS WORKERS WORDS...   -> $tmp/NAME.{out,err}, $code of the job
steps() {
    code=0
    pen run --standalone --no-prefix --log-dir "$tmp/logs-$1" --job "$job-$1" --servers "$2" --nproc-per-node "$3" "$programs/stepper" "${@:4}" \
        >"$tmp/$1.out" 2>"$tmp/$1.err" || code=$?
}

# The line that rank R printed for step S:  line NAME R S
line() {
    grep "^rank $2 step $3 " "$tmp/$1.out"
}

@test "one NaN in one element of one rank skips the step on all ranks, names rank and tensor, and changes nothing" {
    local place tensor rank before after
    for place in "1,0 fc1.weight" "4,10099 fc2.weight" "3,0 scale"; do
        tensor=${place#* }
        steps nan 3 2 "1:nan=2,${place% *}"
        [ "$code" = 0 ]
        for rank in 0 1; do
            line nan $rank 2 | grep -q " SKIPPED_NONFINITE applied 2 norm nan clip 1 bad 1 $tensor crc "
            before=$(line nan $rank 1) after=$(line nan $rank 2)
            [ "${before##* }" = "${after##* }" ]
            line nan $rank 3 | grep -q " APPLIED applied 3 "
        done
        [ "$(sed 's/^rank [01] //' "$tmp/nan.out" | sort | uniq -c | awk '$1 != 2' | wc -l)" = 0 ]
        grep -q "step 2 skipped: first non-finite gradient in '$tensor' on rank 1" "$tmp/nan.err"
    done
    nothing_is_left
}

@test "a skipped step leaves no trace in the optimizer slots: the rest of the run is unchanged" {
    local servers
    for servers in 1 3; do
        steps "nan$servers" "$servers" 2 0:nan=1,1,777 clip=100
        [ "$code" = 0 ]
    done
    cmp <(sort "$tmp/nan1.out") <(sort "$tmp/nan3.out")
    nothing_is_left
}

@test "clipping gives the same norms, factors and parameters with 1 and 3 servers" {
    local servers
    for servers in 1 3; do
        steps "clip$servers" "$servers" 2 steps=8 clip=20
        [ "$code" = 0 ]
    done
    cmp <(sort "$tmp/clip1.out") <(sort "$tmp/clip3.out")
    [ "$(grep -vc ' clip 1 ' "$tmp/clip1.out")" -ge 6 ]
    [ "$(grep -c ' clip 1 ' "$tmp/clip1.out")" -ge 2 ]
    nothing_is_left
}

# Both ranks end with the same sentence, which begins with $2 and names both values:  disagree NAME WHAT A B WORDS...
disagree() {
    local sentence
    steps "$1" 2 2 "${@:5}"
    [ "$code" = 1 ]
    sentence="stepper: $2 is $3 on rank 0 and $4 on rank 1; all ranks must give the same"
    said_by "$tmp/logs-$1" | sed -n "s/^.*\] stepper: /stepper: /p" | sort | uniq -c >"$tmp/$1.said"
    cat "$tmp/$1.said"
    [ "$(wc -l <"$tmp/$1.said")" = 1 ]
    grep -q "^ *2 $sentence\$" "$tmp/$1.said"
    nothing_is_left
}

@test "another lr_scale on one rank is a mismatch that both ranks report" {
    disagree rate "the learning rate of parameter group 0" 0.01 0.0050000000000000001 1:lr_scale=0.5
}

# Each server names the first pair of ranks that it saw; one of these sentences becomes the verdict.
@test "one rank of four that disagrees is named in one sentence, which all four report" {
    local other
    for other in 0 3; do
        steps "four$other" 3 4 "$other:loss_scale=2"
        [ "$code" = 1 ]
        said_by "$tmp/logs-four$other" | sed -n "s/^.*\] stepper: /stepper: /p" | sort | uniq -c >"$tmp/four$other.said"
        cat "$tmp/four$other.said"
        [ "$(wc -l <"$tmp/four$other.said")" = 1 ]
        grep -q "^ *4 stepper: the loss scale is [12] on rank [0-3] and [12] on rank [0-3]; all ranks must" "$tmp/four$other.said"
    done
    nothing_is_left
}

@test "another loss scale on one rank is a mismatch that both ranks report" {
    disagree scale "the loss scale" 1 2 1:loss_scale=2
}

@test "another clip bound on one rank is a mismatch that both ranks report" {
    steps clip 2 2 0:clip=0.5 1:clip=0.25
    [ "$code" = 1 ]
    said_by "$tmp/logs-clip" | sed -n "s/^.*\] stepper: /stepper: /p" | sort | uniq -c >"$tmp/said"
    cat "$tmp/said"
    [ "$(wc -l <"$tmp/said")" = 1 ]
    grep -qE "^ *2 stepper: .*clip.* '?0.5'? on rank 0 .*'?0.25'? on rank 1|'?0.25'? on rank 1 .*'?0.5'? on rank 0" "$tmp/said"
    nothing_is_left
}
