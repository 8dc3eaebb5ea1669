/* sites.cpp - waits by the place that asks for them: they are listed, made late, or left out.
 *
 * A site is a call of the driver with the two functions above the one that makes it: common/compute/device only passes
 * on what the SDK decides. A stream that a site waits for becomes late, in all processes: it begins its work a while
 * (CUDA_ON_HOST_LATE_MS) after it was enqueued. So who does not wait, is too early, in nearly every order; who waits,
 * waits longer.
 */
#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <execinfo.h>

enum { FRAMES = 16, CALLERS = 2 };

struct seen {
    std::string object;
    unsigned long long calls;
};

static std::mutex &lock                   = *new std::mutex();
static std::map<std::string, seen> &sites = *new std::map<std::string, seen>();
static const std::string &dropped         = *new std::string([] {
    const char *name = getenv("CUDA_ON_HOST_DROP");
    return name != nullptr ? name : "";
}());
static const bool lists                   = getenv("CUDA_ON_HOST_SITES") != nullptr;
static const bool are_late                = getenv("CUDA_ON_HOST_LATE") != nullptr;

/* "cuEventQuery:1a2b0,1f000": offsets in the object that called the driver. */
static std::string site_of(const char *call, std::string *object)
{
    void *frame[FRAMES];
    Dl_info own, about;
    std::string text = call;
    int i = 0, n = backtrace(frame, FRAMES);
    if (dladdr((void *)site_of, &own) == 0) return text;
    while (i < n && dladdr(frame[i], &about) != 0 && about.dli_fbase == own.dli_fbase) i++;
    if (i == n) return text;
    const void *base = about.dli_fbase;
    *object          = about.dli_fname;
    for (int k = 1; k <= CALLERS && i + k < n; k++) {
        if (dladdr(frame[i + k], &about) == 0 || about.dli_fbase != base) break;
        char offset[32];
        snprintf(offset, sizeof offset, "%c%zx", k == 1 ? ':' : ',',
                 (size_t)((char *)frame[i + k] - (char *)base - 1));
        text += offset;
    }
    return text;
}

site_order site_orders(const char *call)
{
    if (!lists && !are_late && dropped.empty()) return SITE_AS_IT_COMES;
    std::string object;
    const std::string site = site_of(call, &object);
    guard held(lock);
    seen &s  = sites[site];
    s.object = object;
    s.calls++;
    if (site == dropped) return SITE_IS_DROPPED;
    return are_late ? SITE_IS_LATE : SITE_AS_IT_COMES;
}

bool site_drops_flags()
{
    return dropped.rfind("flag_wait", 0) == 0;
}

void sites_report()
{
    FILE *file = open_report("CUDA_ON_HOST_SITES");
    guard held(lock);
    if (file == nullptr) return;
    for (const auto &[name, s] : sites)
        fprintf(file, "%s %s %llu\n", name.c_str(), s.object.c_str(), s.calls);
    fclose(file);
}
