# torch_docs.bats - runs the commands of the pages that need PyTorch: every `sh run torch` block.

load ../support/job
load ../support/docs

setup() { job_setup; }
teardown() { job_teardown; }

@test "the commands of the pages for PyTorch work" {
    local page
    PATH=/usr/bin:$PATH # Debian's Python, which has Debian's PyTorch
    for page in $(doc_pages); do
        ! grep -qx '```sh run torch' "$root/$page" || LIMIT=400 follow "$page" torch || return 1
    done
    nothing_is_left
}
