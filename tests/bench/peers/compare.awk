# compare.awk - turns "contender round bytes algbw" lines into the Markdown table of compare.sh, and into the file
# `table` for scripts/plot_coll.gp: "bytes registered foreign openmpi gloo", "-" for missing values.
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

function median_of(list, n) {
    if (n == 0) return 0
    ascending(list, n)
    return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
}

function median(who, bytes,    r, n, list) {
    for (r = 1; r <= rounds; r++) if ((who, bytes, r) in value) list[++n] = value[who, bytes, r]
    return median_of(list, n)
}

# The tuning of a peer with the best median; "" if the peer is not installed.
function best(peer, bytes,    who, m, top, found) {
    found = ""
    for (who in contenders)
        if (index(who, peer ":") == 1 && (m = median(who, bytes)) > top) { top = m; found = who }
    return found
}

function ratio(ours, other, bytes,    r, n, list, middle) {
    if (other == "" || !(ours in contenders)) return "-"
    for (r = 1; r <= rounds; r++)
        if (((ours, bytes, r) in value) && value[other, bytes, r] > 0)
            list[++n] = value[ours, bytes, r] / value[other, bytes, r]
    if (n == 0) return "-"
    middle = median_of(list, n) # sorts them
    return sprintf("%.2f (%.2f to %.2f)", middle, list[1], list[n])
}

function rate(who, bytes) {
    if (who == "" || !(who in contenders)) return "-"
    return sprintf("%.3f", median(who, bytes))
}

function tuning(who) {
    return who == "" ? "-" : substr(who, index(who, ":") + 1)
}

END {
    ascending(sizes, n_sizes)
    print "| bytes | registered | foreign | OpenMPI (tuning) | Gloo (algorithm) | registered / OpenMPI | foreign / OpenMPI | registered / Gloo |"
    print "|---:|---:|---:|---:|---:|---:|---:|---:|"
    for (i = 1; i <= n_sizes; i++) {
        b = sizes[i]
        mpi = best("openmpi", b)
        gloo = best("gloo", b)
        printf "| %d | %s | %s | %s (%s) | %s (%s) | %s | %s | %s |\n", b, rate("registered", b), rate("foreign", b),
            rate(mpi, b), tuning(mpi), rate(gloo, b), tuning(gloo),
            ratio("registered", mpi, b), ratio("foreign", mpi, b), ratio("registered", gloo, b)
        print b, rate("registered", b), rate("foreign", b), rate(mpi, b), rate(gloo, b) >table
    }
}
