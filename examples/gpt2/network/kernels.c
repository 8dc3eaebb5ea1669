/* kernels.c - which compiled kernels run on this processor. */
#include "kernels.h"

#include <string.h>

static const gpt2_kernels *const kernels_all[] = {
#if defined(__x86_64__)
    &gpt2_kernels_avx512,
    &gpt2_kernels_avx2,
#endif
    &gpt2_kernels_base,
    NULL,
};

const gpt2_kernels *gpt2_kernels_best(void)
{
    for (int i = 0; kernels_all[i]; i++)
        if (kernels_all[i]->here()) return kernels_all[i];
    return &gpt2_kernels_base;
}

const gpt2_kernels *gpt2_kernels_find(const char *name)
{
    for (int i = 0; kernels_all[i]; i++)
        if (strcmp(kernels_all[i]->name, name) == 0)
            return kernels_all[i]->here() ? kernels_all[i] : NULL;
    return NULL;
}
