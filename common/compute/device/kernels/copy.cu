/* copy.cu - copies bytes: 16 at a time if both ends have the same alignment. */
#include "common/compute/device/kernels/kernels.h"

extern "C" __global__ void __launch_bounds__(KERNEL_THREADS)
    copy_bytes(const __grid_constant__ kernel_copy k)
{
    enum { U = 4 };
    const uint64_t threads  = (uint64_t)gridDim.x * blockDim.x;
    const uint64_t self     = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned char *in = (const unsigned char *)k.in;
    unsigned char *out      = (unsigned char *)k.out;
    const bool is_alike     = ((uintptr_t)in - (uintptr_t)out) % 16 == 0;
    const uint64_t to_word  = (16 - (uintptr_t)in % 16) % 16;
    const uint64_t head     = !is_alike || to_word > k.bytes ? k.bytes : to_word;
    const uint64_t words    = (k.bytes - head) / 16;
    const uint4 *from       = (const uint4 *)(in + head);
    uint4 *to               = (uint4 *)(out + head);

    uint64_t i = self;
    for (; i + (U - 1) * threads < words; i += U * threads) {
        uint4 word[U];
#pragma unroll
        for (int u = 0; u < U; u++) word[u] = __ldcs(from + i + u * threads);
#pragma unroll
        for (int u = 0; u < U; u++) __stcs(to + i + u * threads, word[u]);
    }
    for (; i < words; i += threads) __stcs(to + i, __ldcs(from + i));
    for (i = self; i < head; i += threads) out[i] = in[i];
    for (i = head + words * 16 + self; i < k.bytes; i += threads) out[i] = in[i];
}
