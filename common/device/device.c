/* device.c - the table of devices. */
#include "common/device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <unistd.h>

extern const device_ops device_cuda, device_cpu;

const device_ops *const device_all[] = {&device_cuda, &device_cpu, NULL};

const device_ops *device_of(const void *pointer)
{
    int i = 0;
    while (device_all[i + 1] != NULL && !device_all[i]->owns(pointer)) i++;
    return device_all[i];
}

static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static _Atomic uint64_t process;

static void draw_process(void)
{
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        number = (uint64_t)getpid() << 32 ^ (uintptr_t)&number;
    atomic_store(&process, number | 1);
}

/* After a fork the child is another process; its first thread is its only one. */
static void begin_process(void)
{
    draw_process();
    pthread_atfork(NULL, NULL, draw_process);
}

uint64_t device_process(void)
{
    pthread_once(&process_once, begin_process);
    return atomic_load(&process);
}
