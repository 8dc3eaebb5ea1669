/* probe.c - what the driver does where its manual is silent:  probe
 *
 * Two small allocations of one process, which may share a page of the device, are exported and opened by another. Then the
 * owner frees one, while the other process maps it, and allocates as much again, mostly at the same address; that is
 * exported and opened, first with the old mapping still there, then without it. Prints the driver's results; fails if the
 * bytes are wrong after the way that Penstock goes: old mappings are closed first.
 */
#include "common/compute/device/device_cuda.h"
#include "members.h"

#include <stdio.h>
#include <string.h>

enum { BYTES = 65536, BLOCKS = 2 };

typedef struct {
    CUipcMemHandle handle;
    uint64_t at, base, size;
} exported;

static bool make(exported *e, unsigned char value)
{
    CUdeviceptr at = 0, base = 0;
    size_t size = 0;
    if (cuda_driver.cuMemAlloc(&at, BYTES) != CUDA_SUCCESS ||
        cuda_driver.cuMemsetD8Async(at, value, BYTES, NULL) != CUDA_SUCCESS ||
        cuda_driver.cuStreamSynchronize(NULL) != CUDA_SUCCESS ||
        cuda_driver.cuMemGetAddressRange(&base, &size, at) != CUDA_SUCCESS)
        return false;
    e->at   = at;
    e->base = base;
    e->size = size;
    return cuda_driver.cuIpcGetMemHandle(&e->handle, at) == CUDA_SUCCESS;
}

static CUresult open_it(const exported *e, CUdeviceptr *mapped)
{
    return cuda_driver.cuIpcOpenMemHandle(mapped, e->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

/* The first byte that differs; -1: none. */
static int wrong_byte(CUdeviceptr mapped, const exported *e, unsigned char value)
{
    static unsigned char bytes[BYTES];
    memset(bytes, 0, sizeof bytes);
    if (!members_copy(bytes, (void *)(uintptr_t)(mapped + (e->at - e->base)), BYTES)) return 0;
    for (int i = 0; i < BYTES; i++)
        if (bytes[i] != value) return i;
    return -1;
}

static int own(member *self, exported *e)
{
    bool ok = true;
    for (int i = 0; i < BLOCKS; i++) ok = ok && make(&e[i], (unsigned char)(i + 1));
    members_meet(self); /* both are exported */
    members_meet(self); /* both are open */
    const uint64_t before = e[0].at;
    ok = ok && cuda_driver.cuMemFree((CUdeviceptr)before) == CUDA_SUCCESS && make(&e[2], 3);
    printf("allocated again %s\n", e[2].at == before ? "at the same address" : "elsewhere");
    members_meet(self);
    members_meet(self); /* all is read */
    return ok ? 0 : 1;
}

static int other(member *self, const exported *e)
{
    CUdeviceptr mapped[BLOCKS] = {0}, again = 0;
    int wrong[BLOCKS];
    members_meet(self);
    for (int i = 0; i < BLOCKS; i++) {
        const CUresult result = open_it(&e[i], &mapped[i]);
        wrong[i] =
            result == CUDA_SUCCESS ? wrong_byte(mapped[i], &e[i], (unsigned char)(i + 1)) : 0;
        printf("allocation %d of %d bytes in a block of %llu, opening gives %d, bytes %s\n", i,
               BYTES, (unsigned long long)e[i].size, result, wrong[i] < 0 ? "right" : "WRONG");
    }
    members_meet(self);
    members_meet(self); /* the first is freed, and made again */
    CUresult result = open_it(&e[2], &again);
    printf("opening with the old mapping there gives %d", result);
    if (result == CUDA_SUCCESS)
        printf(", bytes %s",
               wrong_byte(again, &e[2], 3) < 0 ? "right" : "of what was there before");
    printf("\n");
    if (result == CUDA_SUCCESS) cuda_driver.cuIpcCloseMemHandle(again);
    const CUresult closed = cuda_driver.cuIpcCloseMemHandle(mapped[0]);
    result                = open_it(&e[2], &again);
    const bool is_right   = result == CUDA_SUCCESS && wrong_byte(again, &e[2], 3) < 0;
    members_meet(self);
    printf("closing the old one gives %d, opening then %d, bytes %s\n", closed, result,
           is_right ? "right" : "WRONG");
    return is_right && wrong[0] < 0 && wrong[1] < 0 ? 0 : 1;
}

static int run(member *self, const void *arg)
{
    exported *e = (exported *)self->board->bytes;
    (void)arg;
    return self->rank == 0 ? own(self, e) : other(self, e);
}

int main(void)
{
    _Static_assert(3 * sizeof(exported) <= sizeof((members_board *)0)->bytes, "fits");
    return members_run(2, 30, run, NULL);
}
