/* device.c - the table of devices, and what all of them share. */
#include "common/compute/device/device.h"

#include "common/base/why.h"

#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

extern const device_ops device_cuda, device_cpu;

const device_ops *const device_all[] = {&device_cuda, &device_cpu, NULL};

/* ---- may there be a device? --------------------------------------------------------------------- */
/* Number of libraries loaded when no driver was among them, plus one; 0: not checked yet. */
static _Atomic unsigned long long looked_at;

static int look_for_driver(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    *(bool *)user = info->dlpi_name != NULL && strstr(info->dlpi_name, "libcuda.so") != NULL;
    return *(bool *)user;
}

static int count_libraries(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    *(unsigned long long *)user = info->dlpi_adds;
    return 1;
}

bool device_is_loaded(void)
{
    unsigned long long loaded = 0;
    bool is_there             = false;
    dl_iterate_phdr(count_libraries, &loaded);
    if (atomic_load(&looked_at) == loaded + 1) return false;
    dl_iterate_phdr(look_for_driver, &is_there);
    if (!is_there) atomic_store(&looked_at, loaded + 1);
    return is_there;
}

const device_ops *device_host(void)
{
    int i = 0;
    while (device_all[i + 1] != NULL) i++;
    return device_all[i];
}

const device_ops *device_of(const void *pointer)
{
    int i             = 0;
    const bool is_any = device_is_loaded();
    while (device_all[i + 1] != NULL && (!is_any || !device_all[i]->owns(pointer))) i++;
    return device_all[i];
}

bool device_is_host(const device_ops *ops)
{
    return strcmp(ops->name, "cpu") == 0;
}

const device_ops *device_beside_host(char *note, size_t note_size)
{
    if (note_size > 0) note[0] = '\0';
    for (const device_ops *const *d = device_all; *d != NULL; d++)
        if (!device_is_host(*d) && (*d)->available(note, note_size)) return *d;
    return NULL;
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

/* ---- the arguments of a step's arithmetic ---------------------------------------------------- */
static bool is_float(pen_dtype dtype)
{
    return dtype == PEN_F32 || dtype == PEN_F16 || dtype == PEN_BF16;
}

pen_status device_check_float(pen_dtype dtype, pen_error *why)
{
    if (is_float(dtype)) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT, "type %d is not f32, f16 or bf16", (int)dtype);
}

pen_status device_check_weigh(const device_weigh *w, pen_error *why)
{
    if (is_float(w->as) && (w->as == w->grad_dtype || w->grad_dtype == PEN_F32)) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT, "a gradient of type %d is not rounded to type %d",
                   (int)w->grad_dtype, (int)w->as);
}

pen_status device_check_update(const device_update *u, pen_error *why)
{
    if (u->formula < 0 || u->formula >= SIMD_FORMULAS)
        return why_set(why, PEN_INVALID_ARGUMENT, "there is no formula %d", u->formula);
    if (u->pass != DEVICE_UPDATE_APPLY &&
        (u->pass != DEVICE_UPDATE_NORMS || u->formula != SIMD_LAMB))
        return why_set(why, PEN_INVALID_ARGUMENT, "formula %d has no pass %d", u->formula, u->pass);
    if (u->n_rows < 1 || u->n_rows > DEVICE_ROWS_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT, "an update has 1 to %d rows of scalars, not %d",
                       DEVICE_ROWS_MAX, u->n_rows);
    for (size_t i = 0; i < u->n; i++)
        if (u->spans[i].values != NULL && !is_float(u->spans[i].values_dtype))
            return device_check_float(u->spans[i].values_dtype, why);
    return PEN_OK;
}

/* ---- copies between memories, counted -------------------------------------------------------- */
pen_status device_copy(const device_ops *ops, stat_traffic what, stat_set *stats, void *to,
                       const void *from, size_t bytes, device_stream stream, pen_error *why)
{
    const pen_status status = ops->copy(to, from, bytes, stream, why);
    if (status != PEN_OK || stats == NULL || bytes == 0 || device_is_host(ops)) return status;
    const bool is_up = ops->owns(to);
    if (is_up != ops->owns(from)) stat_crossed(stats, what, is_up, bytes);
    return status;
}
