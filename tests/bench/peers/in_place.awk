# in_place.awk - turns "contender round bytes algbw" lines into the Markdown tables of in_place.sh.
{
    value[$1, $3, $2] = $4
    contenders[$1] = 1
    if (!($3 in seen)) { seen[$3] = 1; sizes[++n_sizes] = $3 + 0 }
    if ($2 + 0 > rounds) rounds = $2 + 0
}

function ascending(list, n,    i, j, x) {
    for (i = 2; i <= n; i++) {
        x = list[i]
        for (j = i - 1; j >= 1 && list[j] > x; j--) list[j + 1] = list[j]
        list[j + 1] = x
    }
}

# Median of `who`, or of its ratio to `other` within each pair; sets least and most.
function median(who, bytes, other,    r, n, list) {
    for (r = 1; r <= rounds; r++) {
        if (!((who, bytes, r) in value)) continue
        if (other == "") list[++n] = value[who, bytes, r]
        else if (value[other, bytes, r] > 0) list[++n] = value[who, bytes, r] / value[other, bytes, r]
    }
    if (n == 0) return 0
    ascending(list, n)
    least = list[1]
    most = list[n]
    return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
}

function cell(who, bytes, other,    m) {
    if (!(who in contenders) || (other != "" && !(other in contenders))) return "-"
    m = median(who, bytes, other)
    return sprintf(other == "" ? "%.1f (%.1f to %.1f)" : "%.2f (%.2f to %.2f)", m, least, most)
}

function openmpi(bytes) {
    return median("openmpi:cma", bytes) >= median("openmpi:none", bytes) ? "openmpi:cma" : "openmpi:none"
}

END {
    ascending(sizes, n_sizes)
    print "| bytes | memory | in place | PEN_OVERWRITE | out of place | OpenMPI in place | loop, 2 threads |"
    print "|---:|---|---:|---:|---:|---:|---:|"
    for (i = 1; i <= n_sizes; i++)
        for (k = 1; k <= 2; k++) {
            b = sizes[i]
            m = k == 1 ? "registered" : "foreign"
            printf "| %d | %s | %s | %s | %s | %s | %s |\n", b, m, cell("in:" m, b), cell("flag:" m, b), cell("out:" m, b),
                cell(openmpi(b), b), cell("loop", b)
        }
    print ""
    print "| bytes | memory | in place / OpenMPI | flag / OpenMPI | flag / loop | in place / before | out of place / before |"
    print "|---:|---|---:|---:|---:|---:|---:|"
    for (i = 1; i <= n_sizes; i++)
        for (k = 1; k <= 2; k++) {
            b = sizes[i]
            m = k == 1 ? "registered" : "foreign"
            printf "| %d | %s | %s | %s | %s | %s | %s |\n", b, m, cell("in:" m, b, openmpi(b)), cell("flag:" m, b, openmpi(b)),
                cell("flag:" m, b, "loop"), cell("in:" m, b, "in:" m ":before"), cell("out:" m, b, "out:" m ":before")
        }
}
