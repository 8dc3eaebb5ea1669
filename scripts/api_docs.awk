# api_docs.awk - turns include/penstock.h into docs/api.md.
# Fails if a function with its own comment block lacks a Thread line; the seven rules at the top of the header cover
# the rest.
BEGIN {
    print "# The C interface\n"
    print "<!-- Written by scripts/docs.sh from include/penstock.h; edit the header instead. -->\n"
    print "Functions without a description return `PEN_UNSUPPORTED` in this version. The seven rules:\n"
}
NR == 1 { in_rules = 1 }
in_rules && /^ \*\// { in_rules = 0; print "" }
in_rules && /^ \*/ { line = substr($0, 4); if (line != "") print "    " line }
/^\/\* ---- [0-9]+\./ { title = $0; gsub(/^\/\* -+ [0-9]+\. */, "", title); gsub(/ *-+ *\*\/$/, "", title); printf "\n## %s\n", toupper(substr(title, 1, 1)) substr(title, 2); next }
/^\/\* / && !/\*\/ *$/ { comment = substr($0, 4); in_comment = 1; next }
/^\/\* / { comment = substr($0, 4); sub(/ *\*\/ *$/, "", comment); next }
in_comment { line = $0; last = line ~ /\*\/ *$/; sub(/ *\*\/ *$/, "", line); sub(/^ \* ?/, "", line); comment = comment "\n" line; if (last) in_comment = 0; next }
/^PEN_(API|MUST)/ { in_decl = 1; decl = "" }
in_decl {
    line = $0; tail = ""
    if (match(line, /\/\*.*/)) { tail = substr(line, RSTART + 3); sub(/ *\*\/ *$/, "", tail); line = substr(line, 1, RSTART - 1) }
    sub(/ +$/, "", line)
    decl = decl (decl == "" ? "" : "\n") line
    if (line ~ /;$/) {
        in_decl = 0
        sub(/^PEN_(API|MUST) */, "", decl)
        gsub(/  +/, " ", decl)
        name = decl; sub(/ *\(.*/, "", name); sub(/.*[ *]/, "", name)
        printf "\n### `%s`\n\n```c\n%s\n```\n", name, decl
        if (comment != "") {
            if (comment ~ /\n(Shape|Ownership|Errors|Cost)/ && comment !~ /\nThread|\nShape, ownership, thread/) { print "scripts/api_docs.awk: " name " has no Thread line" > "/dev/stderr"; bad = 1 }
            printf "\n```text\n%s\n```\n", comment
        } else if (tail != "") printf "\n%s\n", tail
        comment = ""
    }
    next
}
/^$/ { next }
{ comment = "" }
END { exit bad }
