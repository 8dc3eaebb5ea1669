#!/usr/bin/env bash
# abi.sh - prints the size of every public struct and the offset of its fields:  abi.sh SCRATCH_DIR
set -euo pipefail
cd "$(dirname "$0")/../.."
awk '
    /^typedef struct( pen_[a-z_]+)? \{/ {inside = 1; body = ""; next_line = $0; sub(/^[^{]*\{/, "", next_line); $0 = next_line}
    inside {
        line = $0
        gsub(/\/\*[^*]*\*+([^\/*][^*]*\*+)*\//, "", line)
        sub(/\/\*.*/, "", line)
        if (match(line, /\} *pen_[a-z_0-9]+;/)) {
            name = substr(line, RSTART, RLENGTH); gsub(/[} ;]/, "", name)
            printf "    printf(\"%s %%zu\\n\", sizeof(%s));\n", name, name
            inside = 0
        }
    }
    BEGIN {print "#include \"penstock.h\"\n#include <stdio.h>\nint main(void)\n{"}
    END {print "    return 0;\n}"}' include/penstock.h >"$1/abi.c"
gcc -std=c99 -Iinclude -o "$1/abi_program" "$1/abi.c"
"$1/abi_program"
