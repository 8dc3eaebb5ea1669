# plot_loss.gp - plots a loss curve from the file of fashion_mnist --curve FILE: one row "step loss" per step.
#   gnuplot -e "curve='build/demo/curve.dat'; image='build/demo/loss.png'" scripts/plot_loss.gp
if (!exists("curve")) curve = "curve.dat"
if (!exists("image")) image = "loss.png"
if (!exists("title_text")) title_text = "Fashion-MNIST"

set terminal pngcairo size 900,540 font "sans,11"
set output image
set title title_text
set xlabel "step"
set ylabel "training loss (mean over the global batch)"
set logscale y
set grid
set key top right
# A running mean: follows the steep start closely, later smooths over about 50 steps.
n = 0; mean = 0
share(n) = n < 50 ? 2.0 / (n + 1) : 2.0 / 51
follow(x) = (n = n + 1, mean = mean + share(n) * (x - mean))
plot curve using 1:2 with points pt 7 ps 0.2 lc rgb "#9ecae1" title "each step", \
     curve using 1:(follow($2)) with lines lw 2 lc rgb "#08519c" title "running mean"
