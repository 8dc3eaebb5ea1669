/* backend_cuda.c - loads the library of the GPU network. */
#include "backend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libgpt2_cuda.so"

enum { PATH_BYTES = 4096 };

/* The folder of this program, wherever it is installed. */
static bool find_beside(char path[PATH_BYTES])
{
    const ssize_t n = readlink("/proc/self/exe", path, PATH_BYTES - sizeof LIBRARY);
    if (n < 0) return false;
    path[n]     = '\0';
    char *slash = strrchr(path, '/');
    if (!slash) return false;
    memcpy(slash + 1, LIBRARY, sizeof LIBRARY);
    return true;
}

static const backend *fail(char *text, size_t size, const char **why, const char *path,
                           const char *cause)
{
    snprintf(text, size, "the network for a GPU cannot be loaded: %s%s%s", path ? path : "",
             path ? ": " : "", cause);
    *why = text;
    return NULL;
}

const backend *backend_cuda(const char *path, const char **why)
{
    static char text[PATH_BYTES + 256];
    char beside[PATH_BYTES];
    if (!path) {
        if (!find_beside(beside))
            return fail(text, sizeof text, why, NULL, "the folder of this program is not known");
        if (access(beside, F_OK) != 0)
            return fail(text, sizeof text, why, beside,
                        "not there; it is built where the CUDA toolkit is");
        path = beside;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fail(text, sizeof text, why, NULL, dlerror());
    const backend *found = dlsym(library, "gpt2_backend_cuda");
    if (!found || found->size != sizeof *found)
        return fail(text, sizeof text, why, path, "it is of another build");
    return found;
}
