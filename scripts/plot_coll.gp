# plot_coll.gp - plots bandwidth over size, ours and the peers': rows "bytes registered foreign openmpi gloo" in GB/s,
# "-" for none, as written by tests/bench/peers/compare.sh.
#   gnuplot -e "data='table'; image='all-reduce.png'" scripts/plot_coll.gp
if (!exists("data")) data = "table"
if (!exists("image")) image = "all-reduce.png"
if (!exists("title_text")) title_text = "all_reduce of float32"

set terminal pngcairo size 900,540 font "sans,11"
set output image
set title title_text
set xlabel "bytes"
set ylabel "algbw, GB/s"
set logscale x 2
set logscale y
set format x "%.0b %BB"
set datafile missing "-"
set grid
set key top left
plot data using 1:2 with linespoints lw 2 pt 7 lc rgb "#08519c" title "penstock, registered buffers", \
     data using 1:3 with linespoints lw 2 pt 6 lc rgb "#6baed6" title "penstock, foreign buffers", \
     data using 1:4 with linespoints lw 2 pt 5 lc rgb "#d95f0e" title "OpenMPI, best tuning", \
     data using 1:5 with linespoints lw 2 pt 4 lc rgb "#74c476" title "Gloo, best algorithm"
