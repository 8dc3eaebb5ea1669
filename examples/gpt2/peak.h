/* peak.h - what this processor can do at best: the figure that MFU is a part of. */
#ifndef GPT2_PEAK_H
#define GPT2_PEAK_H

/* Floating-point operations per second of OpenBLAS's sgemm, 768 x 768 x 768, with so many threads: the best of a few
 * in a tenth of a second.  Whatever else runs on these cores meanwhile counts against it, as it does in training. */
double peak_flops(int threads);

double peak_clock(void); /* seconds; only differences mean something */

#endif
