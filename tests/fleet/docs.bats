# docs.bats - runs the commands that `make test` has no time or no programs for: every `sh run fleet` block.

load ../support/job
load ../support/docs

setup() { job_setup; }
teardown() { job_teardown; }

@test "the commands that the pages leave to the fleet's tests work" {
    local page
    command -v curl >/dev/null || skip "needs curl: apt install curl"
    for page in $(doc_pages | grep -v '^examples/'); do
        ! grep -qx '```sh run fleet' "$root/$page" || follow "$page" fleet || return 1
    done
    nothing_is_left
}

@test "the commands of the examples work, for a few steps each" {
    PENSTOCK_STEPS=30 LIMIT=500 follow examples/README.md fleet
    nothing_is_left
}
