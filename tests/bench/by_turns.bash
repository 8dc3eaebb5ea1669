# by_turns.bash - compares two builds, $a and $b, by turns, in $pairs pairs.  Sourced by a script that has
#   took BUILD ARGUMENTS...   prints a time in $unit

# compare NAME ARGUMENTS...: a JSON object with the medians, and the median, smallest and largest of the ratios B / A.
compare() {
    local one other
    for _ in $(seq "$pairs"); do
        one=$(took "$a" "${@:2}")
        other=$(took "$b" "${@:2}")
        echo "$one $other"
    done | python3 -c '
import json, sys, statistics
bench, unit, job = sys.argv[1:]
rows = [tuple(map(float, line.split())) for line in sys.stdin]
ratio = [b / a for a, b in rows]
print(json.dumps({"bench": bench, "job": job, "pairs": len(rows), "a_" + unit: statistics.median(a for a, _ in rows), "b_" + unit: statistics.median(b for _, b in rows),
    "ratio": round(statistics.median(ratio), 3), "ratio_min": round(min(ratio), 3), "ratio_max": round(max(ratio), 3)}))' "$(basename "$0" .sh)" "$unit" "$1"
}
