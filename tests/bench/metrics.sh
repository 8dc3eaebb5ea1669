#!/usr/bin/env bash
# metrics.sh - the cost of monitoring: steps of Fashion-MNIST with all processes serving metrics that are read once a
# second, against steps without, by turns.
#   tests/bench/metrics.sh [BUILD_DIR] [PAIRS] [EPOCHS]
# Prints one JSON object: the median of the ratios of step times (with / without) and its 95 % interval (bootstrap). The
# reader runs on the same machine, so the ratio includes its time; reader_cpu is its share of one core.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${1:-build}")
pairs=${2:-20}
epochs=${3:-4}
. "$build/env"
work=$(mktemp -d)
export XDG_RUNTIME_DIR=$work
trap 'rm -rf "$work"' EXIT
exec python3 - "$work" "$pairs" "$epochs" <<'END'
import json, os, random, resource, socket, statistics, subprocess, sys, threading, time, urllib.request

work, pairs, epochs = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]

class Reader(threading.Thread):
    """Reads /metrics of all processes once a second."""
    def __init__(self, address):
        super().__init__()
        self.address, self.over, self.pages, self.bytes = address, threading.Event(), 0, 0

    def read(self, address, path):
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            return answer.read()

    def run(self):
        while not self.over.wait(1.0):
            try:
                for group in json.loads(self.read(self.address, "/targets")):
                    self.bytes += len(self.read(group["targets"][0], "/metrics"))
                    self.pages += 1
            except (OSError, ValueError):
                pass

def run(address):
    result = os.path.join(work, "result.json")
    reader = Reader(address) if address else None
    if reader:
        reader.start()
    subprocess.run(["penstock", "run", "--standalone", "--http", address, "--servers", "2", "--nproc-per-node", "2", "fashion_mnist",
                    "--epochs", epochs, "--out", result], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if reader:
        reader.over.set()
        reader.join()
    with open(result) as file:
        value = json.load(file)
    return value["seconds"] / value["steps"], reader.pages if reader else 0

def cpu():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime

ratios, steps, pages, seconds, used = [], [], 0, 0.0, 0.0
for pair in range(pairs):
    def with_():
        global pages, seconds, used
        begun, before = time.monotonic(), cpu()
        step, read = run(f"127.0.0.1:{free_port()}")
        pages, seconds, used = pages + read, seconds + time.monotonic() - begun, used + cpu() - before
        return step
    first, second = (with_, lambda: run("")[0]) if pair % 2 == 0 else (lambda: run("")[0], with_)
    one, two = first(), second()
    shown, bare = (one, two) if pair % 2 == 0 else (two, one)
    ratios.append(shown / bare)
    steps.append(bare)
draw = random.Random(1)
medians = sorted(statistics.median(draw.choices(ratios, k=pairs)) for _ in range(10000))
print(json.dumps({"bench": "metrics", "pairs": pairs, "ratio": round(statistics.median(ratios), 4),
    "ratio_low": round(medians[250], 4), "ratio_high": round(medians[9749], 4), "ratio_min": round(min(ratios), 4), "ratio_max": round(max(ratios), 4),
    "step_ms_bare": round(statistics.median(steps) * 1e3, 3), "pages_read": pages, "reader_cpu": round(used / seconds, 4)}))
END
