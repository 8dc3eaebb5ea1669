# docs.awk - checks the fenced blocks of the documentation, and makes scripts of those that can be run.
#
#   awk -v want=problems -f docs.awk PAGES...              lines "page:line: error"
#   awk -v want=script [-v more=fleet|torch] [-v name=N] -f docs.awk PAGE   a bash script of the page's commands
#   awk -v want=script -v hosts=1 -f docs.awk PAGE         a script of its commands for several hosts
#
# The words after the three backticks give the kind of a block:
#   sh run               commands: run by `make test`, all blocks of a page in order, in one folder
#   sh run fleet [NAME]  commands: run by `make fleet`, in tests/fleet/docs.bats, or in tests/fleet/NAME.bats
#   sh run torch         commands: run by `make python-test`, in tests/python/torch_docs.bats
#   sh run on HOST       commands of a host, node0 or node1 ...: run by tests/cluster/hosts_docs.bats.  Those of several
#                        hosts run side by side, until the page returns to one of them, or shows the output
#   sh needs WHAT        commands that no test runs: WHAT is a word of `needs` below
#   output               the output of the `sh run` block above it: every line must appear; ... matches anything
#   c FILE, yaml FILE .. the page writes this file before the commands that follow it
#   c, text, yaml ..     for reading only
# A line  <!-- run: COMMAND -->  replaces what readers do by eye after the commands above it: wait, compare.
BEGIN {
    split("c cpp python text json yaml ini toml promql dockerfile diff make xml", w, " ")
    for (i in w) reads[w[i]] = 1
    needs["gpu"] = "an NVIDIA GPU"
    needs["cluster"] = "a cluster of the reader's"
    needs["root"] = "rights of the administrator"
    needs["files"] = "files of the reader's"
    needs["time"] = "more than a test has"
}

function problem(text) {
    if (want == "problems") print FILENAME ":" FNR ": " text
}

function opens(info) {
    n = split(info, word, " ")
    lang = n > 0 ? word[1] : ""
    if (lang == "output") together_ends()
    kind = "read"; file = ""; opened = FNR
    if (lang == "") problem("a block without a word: say sh run, output, text, c ...")
    else if (lang == "output") {
        kind = ran ? "output" : "read"
        if (!ever_commands) problem("output without commands above it: say text")
    } else if (lang == "sh") opens_commands()
    else if (lang ~ /^(bash|shell|console|zsh|shell-session|sh-session)$/) problem("say sh, not " lang)
    else if (!(lang in reads)) problem("no block is of '" lang "'")
    else if (n >= 2 && word[2] != "golden") {
        file = word[2]
        kind = "file"
        if (file ~ /\//) problem("a page writes files into its own folder only")
    }
    if (kind == "read" && lang != "output") ran = 0
    if (kind == "file" && want == "script") print "cat >" file " <<'END_OF_THE_BLOCK'"
}

function opens_commands() {
    kind = "skip"
    ever_commands = 1
    if (n == 3 && word[2] == "needs" && (word[3] in needs)) ran = 0
    else if (n == 2 && word[2] == "run") { kind = "run"; ran = name == "" && !hosts }
    else if (n == 4 && word[2] == "run" && word[3] == "on" && word[4] ~ /^node[0-7]$/) {
        kind = "run"
        ran = hosts
        if (ran) { opens_on(word[4]); command_ran = 1; return }
    }
    else if (word[2] == "run" && (word[3] == "fleet" && n <= 4 || word[3] == "torch" && n == 3)) {
        fleet_name = n == 4 ? word[4] : ""
        ran = more == word[3] && fleet_name == name
        kind = ran ? "run" : "skip"
        if (want == "problems") {
            kind = "run"
            if (n == 4 && system("grep -qsF '" FILENAME "' tests/fleet/" word[4] ".bats") != 0)
                problem("tests/fleet/" word[4] ".bats does not name this page")
        }
    } else problem("'" lang " " word[2] "' is nothing that a block can be: sh run, sh run fleet [NAME], sh run torch, sh run on node0, sh needs gpu|cluster|root|files|time")
    if (kind == "run" && !ran) kind = want == "script" ? "skip" : "run"
    command_ran = ran
    if (kind == "run" && want == "script") print "block " FNR "\n{"
}

function opens_on(host) {
    if (host in busy) together_ends()
    busy[host] = together = 1
    if (want == "script") print "on_host " host " " FNR " <<'END_OF_THE_BLOCK'"
}

function together_ends() {
    if (together && want == "script") print "hosts_end"
    together = 0
    split("", busy)
}

function closes() {
    if (want == "script" && kind == "file") print "END_OF_THE_BLOCK"
    if (want == "script" && kind == "run") print together ? "END_OF_THE_BLOCK" : ":\n} >\"$printed\" 2>&1"
    if (lang == "c" && kind == "read" && has_main) problem("a whole program needs a file name: c NAME.c")
}

FNR == 1 {
    if (inside) print previous ": the last block does not end"
    together_ends()
    inside = 0; ran = 0; command_ran = 0; ever_commands = 0; previous = FILENAME
}
/^```/ {
    if (inside) { closes(); inside = 0; next }
    has_main = 0
    inside = 1
    opens(substr($0, 4))
    next
}
inside && /^(int|void) main\(/ { has_main = 1 }
inside && kind == "run" { commands = commands "\n" $0 }
inside && want == "script" {
    if (kind == "file" || kind == "run") print
    else if (kind == "output" && $0 != "") { gsub(/'/, "'\\''"); print "prints '" $0 "'" }
}
inside { next }
/^<!-- run: .* -->$/ && want == "script" && command_ran { together_ends(); sub(/^<!-- run: /, ""); sub(/ -->$/, ""); print }
/^ +(```|~~~)/ || /^~~~/ { problem("a block has to begin in the first column, with three backticks") }
/^    (\$ |\. build\/env|penstock [a-z]|make |cc |kubectl |sbatch |srun )/ { problem("commands belong in a block: ```sh run") }
END {
    together_ends()
    if (inside) { print previous ": the last block does not end" }
}
