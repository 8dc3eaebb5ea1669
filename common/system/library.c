/* library.c - loads shared libraries when they are first needed. */
#include "common/system/library.h"

#include "common/base/why.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static pen_status fill(const char *file, const char *const *names, size_t n, char *table,
                       pen_error *why)
{
    void *found;
    void *handle = dlopen(file, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL)
        return why_set(why, PEN_UNSUPPORTED, "cannot load a library: %s; install its package",
                       dlerror()); /* which names it */
    for (size_t i = 0; i < n; i++)
        if (dlsym(handle, names[i]) == NULL)
            return why_set(why, PEN_UNSUPPORTED,
                           "%s has no function %s; install the version that this was built with",
                           file, names[i]);
    for (size_t i = 0; i < n; i++) {
        found = dlsym(handle, names[i]);
        memcpy(table + i * sizeof found, &found, sizeof found);
    }
    return PEN_OK;
}

pen_status library_load(const char *file, const char *const *names, size_t n, void *table,
                        pen_error *why)
{
    void *first;
    pthread_mutex_lock(&lock);
    memcpy(&first, table, sizeof first);
    const pen_status status = first != NULL ? PEN_OK : fill(file, names, n, table, why);
    pthread_mutex_unlock(&lock);
    return status;
}
