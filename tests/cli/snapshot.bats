# snapshot.bats - snapshots on disk: listed, verified, restored, exported and imported.

load ../support/job

setup() { job_setup; }
teardown() { job_teardown; }

example=(--mode ps-bsp --optim "adamw lr=0.002 weight_decay=0.01" --clip 0.5)

# A store with snapshots of steps 10, 20 and 30 of two servers. Each comes from its own run, so that none is delayed by
# the one before or given up for the next.
make_store() {
    local steps from=--fresh
    for steps in 10 20 30; do
        train made --servers 2 --nproc-per-node 1 --store "$tmp/store" --snapshot-every 10 --snapshot-keep 3 $from \
            -- "${example[@]}" --steps "$steps"
        from=--resume
    done
}

# The command prints exactly this on stderr, nothing on stdout, and ends with this code:  says CODE SENTENCE ARGS...
says() {
    code=0
    pen "${@:3}" >"$tmp/out" 2>"$tmp/err" || code=$?
    [ "$code" = "$1" ] || { echo "exit $code, not $1: penstock ${*:3}"; cat "$tmp/out" "$tmp/err"; return 1; }
    is_text "$2" <"$tmp/err" || { echo "by: penstock ${*:3}"; return 1; }
    [ ! -s "$tmp/out" ]
}

# The newest file of a part.
newest() {
    ls "$tmp/store/part-$1"/*.mdb | tail -n 1
}

# Flips a bit in the middle of a file.
damage() {
    python3 - "$1" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(0, 2)
    at = f.tell() // 2
    f.seek(at)
    byte = f.read(1)[0]
    f.seek(at)
    f.write(bytes([byte ^ 16]))
PY
}

@test "list shows every snapshot with its parts, size, age and job; so does JSON" {
    make_store
    pen snapshot list --store "$tmp/store" >"$tmp/table"
    cat "$tmp/table"
    [ "$(wc -l <"$tmp/table")" = 4 ]
    grep -qE "^ +30 +[0-9]+ s +2 +[0-9.]+ +[0-9]+  complete +$job-made$" "$tmp/table"
    pen snapshot list --store "$tmp/store" --json >"$tmp/json"
    python3 - "$tmp/json" "$job-made" <<'PY'
import json, sys
all = json.load(open(sys.argv[1]))["snapshots"]
assert [s["step"] for s in all] == [10, 20, 30], all
for s in all:
    assert s["complete"] and s["parts"] == 2 and s["bytes"] > 100000 and s["job"] == sys.argv[2], s
    assert s["format"] == 2 and 0 <= s["age_s"] < 120 and s["trouble"] is None and s["applied"] == s["step"], s
PY
}

@test "verify reads all of it, and names file and tensor of any damage" {
    local file
    make_store
    pen snapshot verify --store "$tmp/store" >"$tmp/out"
    cat "$tmp/out"
    [ "$(grep -cE '^snapshot of step [123]0 is intact: [0-9]+ bytes verified$' "$tmp/out")" = 3 ]
    file=$(newest 1)
    damage "$file"
    code=0
    pen snapshot verify --store "$tmp/store" --step 30 >"$tmp/out" 2>"$tmp/err" || code=$?
    cat "$tmp/err"
    [ "$code" = 1 ]
    grep -qE "^penstock: the checksum of (param|exp_avg|exp_avg_sq) of '[a-z0-9.]+' from element [0-9]+ in $file does not match; use an older snapshot$" "$tmp/err"
    pen snapshot verify --store "$tmp/store" --step 20 >/dev/null
    code=0
    pen snapshot verify --store "$tmp/store" >"$tmp/out" 2>/dev/null || code=$?
    [ "$code" = 1 ]
    [ "$(wc -l <"$tmp/out")" = 2 ]
}

@test "a snapshot with a missing part is incomplete, and the missing part is named" {
    make_store
    rm "$(newest 1)"
    pen snapshot list --store "$tmp/store" | grep -qE "^ +30 .* 1 .* not complete +$job-made$"
    code=0
    pen snapshot verify --store "$tmp/store" --step 30 2>"$tmp/err" || code=$?
    [ "$code" = 1 ]
    cat "$tmp/err"
    grep -qE "^penstock: the snapshot of step 30 in $tmp/store is not complete: param of '[a-z0-9.]+' is missing from element [0-9]+ on; a server did not finish its part$" "$tmp/err"
    pen snapshot verify --store "$tmp/store" >"$tmp/out" 2>"$tmp/err" # a part cut short by a crash is not damage
    [ "$(wc -l <"$tmp/out")" = 2 ]
}

@test "restore makes a store of one snapshot, from which a job resumes bit for bit" {
    make_store
    pen snapshot restore --store "$tmp/store" --step 20 --to "$tmp/back" >"$tmp/said"
    is_text "$tmp/back holds the snapshot of step 20; resume with penstock run --store $tmp/back --resume" <"$tmp/said"
    train on --servers 1 --nproc-per-node 1 --store "$tmp/back" --resume -- "${example[@]}" --steps 30
    [ "$(awk '{print $1; exit}' "$tmp/on.loss")" = 20 ]
    same_crc made on
    says 1 "penstock: $tmp/back has a snapshot of step 20 already, and a job would go on from that instead of step 10; give --to an empty folder" \
        snapshot restore --store "$tmp/store" --step 10 --to "$tmp/back"
    says 1 "penstock: $tmp/store has no snapshot of step 25" snapshot restore --store "$tmp/store" --step 25 --to "$tmp/none"
    [ ! -e "$tmp/none" ]
}

@test "invalid requests are refused with a sentence" {
    mkdir "$tmp/empty"
    says 1 "penstock: no snapshot in $tmp/empty" snapshot list --store "$tmp/empty"
    says 1 "penstock: no snapshot in $tmp/absent" snapshot verify --store "$tmp/absent"
    says 2 "penstock: missing --store DIR" snapshot list
    says 2 "penstock: unknown snapshot command 'verfy'; did you mean 'verify'?" snapshot verfy
    says 2 "penstock: unknown setting 'stepp'; did you mean 'step'?" snapshot verify --stepp 3
    says 2 "penstock: missing FILE; use penstock import FILE --store DIR" import --store "$tmp/x"
    says 1 "penstock: cannot read $tmp/no.safetensors: No such file or directory" import "$tmp/no.safetensors" --store "$tmp/x"
    says 2 "penstock: missing --out FILE" export --store "$tmp/empty"
    says 1 "penstock: no complete snapshot in $tmp/empty" export --store "$tmp/empty" --out "$tmp/f"
    [ ! -e "$tmp/x" ] && [ ! -e "$tmp/f" ]
}

@test "an exported file is valid safetensors, and imported again it starts a job with the same parameters" {
    make_store
    pen export --store "$tmp/store" --step 30 --out "$tmp/m.safetensors" >"$tmp/said"
    grep -qxE "wrote [0-9]+ tensors of step 30 to $tmp/m.safetensors" "$tmp/said"
    # An independent reader, written from the format's layout.
    python3 - "$tmp/m.safetensors" >"$tmp/sums" <<'PY'
import json, struct, sys, zlib
data = open(sys.argv[1], "rb").read()
(n,) = struct.unpack("<Q", data[:8])
assert n % 8 == 0
header = json.loads(data[8:8 + n])
assert header.pop("__metadata__")["penstock_step"] == "30"
body, at = data[8 + n:], 0
for name, t in header.items():
    begin, end = t["data_offsets"]
    count = 1
    for d in t["shape"]:
        count *= d
    assert t["dtype"] == "F32" and begin == at and end - begin == 4 * count, (name, t)
    at = end
    print(name, t["shape"], zlib.crc32(body[begin:end]))
assert at == len(body)
PY
    cat "$tmp/sums"
    [ "$(wc -l <"$tmp/sums")" -ge 4 ]
    pen import "$tmp/m.safetensors" --store "$tmp/new" >"$tmp/said"
    cat "$tmp/said"
    grep -qF "as step 0, with new optimizer state" "$tmp/said"
    says 1 "penstock: $tmp/new already contains snapshots; use an empty directory, or remove them" import "$tmp/m.safetensors" --store "$tmp/new"
    pen export --store "$tmp/new" --out "$tmp/again.safetensors" >/dev/null
    cmp <(tail -c 100000 "$tmp/m.safetensors") <(tail -c 100000 "$tmp/again.safetensors")
    # Two jobs that start from it, with different servers, are equal; and the first loss is that of a trained model.
    train a --servers 1 --nproc-per-node 1 --store "$tmp/new" --resume -- "${example[@]}" --steps 5
    train b --servers 2 --nproc-per-node 1 --store "$tmp/new" --resume -- "${example[@]}" --steps 5
    same_crc a b
    [ "$(awk '{print $1; exit}' "$tmp/a.loss")" = 0 ]
    awk 'NR == 1 {exit !($2 < 1.5)}' "$tmp/a.loss" || { head -n 1 "$tmp/a.loss"; false; }
}

@test "files of other types are converted if that is exact, and refused by name otherwise" {
    python3 - "$tmp" <<'PY'
import json, struct, sys
def write(path, tensors, cut=0, change=None):
    header, body = {}, b""
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    if change:
        change(header)
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + body[:len(body) - cut])
t = sys.argv[1]
half = [("h", "F16", [2], struct.pack("<ee", 1.5, -2.0)), ("b", "BF16", [2], struct.pack("<HH", 0x3fc0, 0xc000)),
        ("d", "F64", [1], struct.pack("<d", 0.25)), ("i", "I64", [1, 1], struct.pack("<q", -7)), ("u", "U8", [3], bytes([0, 1, 255]))]
write(t + "/good", half)
write(t + "/inexact", [("ok", "F64", [1], struct.pack("<d", 1.0)), ("bad", "F64", [2], struct.pack("<dd", 1.0, 0.1))])
write(t + "/fp8", [("q", "F8_E4M3", [1], b"\0")])
write(t + "/short", half, cut=2)
write(t + "/hole", half, change=lambda h: h["b"].update(data_offsets=[6, 10]))
write(t + "/huge", [("x", "F32", [1], b"abcd")], change=lambda h: h["x"].update(shape=[1 << 40, 1 << 40]))
open(t + "/noise", "wb").write(b"\xff" * 100)
PY
    pen import "$tmp/good" --store "$tmp/s"
    pen export --store "$tmp/s" --out "$tmp/f32" >/dev/null
    python3 - "$tmp/f32" <<'PY'
import struct, sys
data = open(sys.argv[1], "rb").read()
(n,) = struct.unpack("<Q", data[:8])
values = struct.unpack("<9f", data[8 + n:])
assert values == (1.5, -2.0, 1.5, -2.0, 0.25, -7.0, 0.0, 1.0, 255.0), values
PY
    says 1 "penstock: element 1 of 'bad' in $tmp/inexact, of F64, cannot be held in float32 exactly; convert the file to F32 first" \
        import "$tmp/inexact" --store "$tmp/t"
    says 1 "penstock: 'q' in $tmp/fp8 is of F8_E4M3, which cannot be taken in; convert it to F32 first" import "$tmp/fp8" --store "$tmp/t"
    says 1 "penstock: $tmp/short is not a complete safetensors file: 'u' ends behind the file" import "$tmp/short" --store "$tmp/t"
    says 1 "penstock: $tmp/hole is not a complete safetensors file: 'b' does not begin where the one before it ends" \
        import "$tmp/hole" --store "$tmp/t"
    says 1 "penstock: $tmp/huge is not a complete safetensors file: 'x' has a shape that cannot be" import "$tmp/huge" --store "$tmp/t"
    says 1 "penstock: $tmp/noise is not a safetensors file: its header would have 18446744073709551615 bytes" \
        import "$tmp/noise" --store "$tmp/t"
    [ -z "$(find "$tmp/t" -name '*.mdb' 2>/dev/null)" ]
}
