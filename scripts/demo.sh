#!/usr/bin/env bash
# demo.sh - trains Fashion-MNIST with 2 servers and 2 workers and prints the result:  scripts/demo.sh BUILD_DIR
#   SEED, EPOCHS, MODE change the training
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
out=$build/demo
mkdir -p "$out"
rm -f "$out"/result.json "$out"/loss.csv "$out"/loss.png

echo "run     penstock run --servers 2 --nproc-per-node 2 fashion_mnist --mode ${MODE:-ps-bsp}"
"$build/bin/penstock" run --standalone --servers 2 --nproc-per-node 2 --no-prefix --job fashion_mnist-demo \
    "$build/bin/examples/fashion_mnist" --mode "${MODE:-ps-bsp}" --seed "${SEED:-1}" ${EPOCHS:+--epochs "$EPOCHS"} \
    --out "$out/result.json" --curve "$out/loss.csv"

if command -v gnuplot >/dev/null; then
    gnuplot -e "curve='$out/loss.csv'; image='$out/loss.png'" scripts/plot_loss.gp
else
    echo "        gnuplot is missing: no loss curve drawn (its data is in $out/loss.csv)"
fi

value() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/p" "$out/result.json"; }
printf 'ok      test accuracy %.4f   %s steps in %.1f s   parameters crc32c %s\n' \
    "$(value test_accuracy)" "$(value steps)" "$(value seconds)" "$(value params_crc32c)"
echo "        $out/result.json"
echo
echo "next    . $build/env; penstock run --nproc-per-node 2 --servers 2 fashion_mnist --mode ps-ssp"
echo "        penstock status            in a second terminal, while it runs"
echo "        your own model in 30 lines of C: examples/linear.c    what just happened: docs/tour.md"
[ ! -f "$out/loss.png" ] || { echo; echo "curve   $out/loss.png"; }
