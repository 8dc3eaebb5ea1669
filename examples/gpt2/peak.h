/* peak.h - the peak performance of this processor: MFU is a fraction of it. */
#ifndef GPT2_PEAK_H
#define GPT2_PEAK_H

/* Floating-point operations per second of OpenBLAS's sgemm, 768 x 768 x 768, with this many threads: the best of
 * several runs within a tenth of a second.  Other load on these cores lowers it, as it does in training. */
double peak_flops(int threads);

double peak_clock(void); /* seconds; only differences are meaningful */

#endif
