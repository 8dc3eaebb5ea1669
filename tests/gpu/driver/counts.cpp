/* counts.cpp - what a process asked of the fake driver, counted by who asked: the SDK, which is
 * libpenstock.so, or the program. */
#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

typedef std::map<std::string, unsigned long long> counts;

static std::mutex &lock      = *new std::mutex(); /* like the rest, never destroyed */
static counts &counted       = *new counts();
static std::string &interval = *new std::string();

static bool is_sdk(const void *caller)
{
    static auto &known = *new std::map<const void *, bool>();
    const auto found   = known.find(caller);
    Dl_info about;
    if (found != known.end()) return found->second;
    const bool is_known  = dladdr(caller, &about) != 0 && about.dli_fname != nullptr;
    const char *name     = is_known ? strrchr(about.dli_fname, '/') : nullptr;
    return known[caller] = name != nullptr && strncmp(name, "/libpenstock.so", 15) == 0;
}

void count(const void *caller, const std::string &name, size_t n)
{
    guard held(lock);
    const std::string full = (is_sdk(caller) ? "sdk." : "program.") + name;
    counted[full] += n;
    if (!interval.empty()) counted[interval + "." + full] += n;
}

std::string api_name(const char *function)
{
    const std::string name = function;
    const size_t version   = name.rfind("_v");
    return version == std::string::npos ? name : name.substr(0, version);
}

void count_copy(const void *caller, const char *direction, size_t bytes)
{
    const std::string name = std::string("copy.") + direction;
    count(caller, name, 1);
    count(caller, name + ".bytes", bytes);
}

/* ---- for programs ------------------------------------------------------------------------------------ */

#define SHOWN extern "C" __attribute__((visibility("default")))

SHOWN unsigned long long cuda_on_host_count(const char *name)
{
    guard held(lock);
    const auto found = counted.find(name);
    return found != counted.end() ? found->second : 0;
}

SHOWN void cuda_on_host_interval(const char *name)
{
    guard held(lock);
    interval = name != nullptr ? name : "";
}

/* ---- at the end of the process ------------------------------------------------------------------------ */

/* Simulated hosts count their processes each from 1. */
static std::string with_pid(const char *name)
{
    std::string path    = name;
    const size_t sign   = path.find("%p");
    struct stat numbers = {};
    if (sign == std::string::npos) return path;
    (void)stat("/proc/self/ns/pid", &numbers);
    return path.replace(sign, 2, std::to_string(getpid()) + "-" + std::to_string(numbers.st_ino));
}

FILE *open_report(const char *variable)
{
    const char *name = getenv(variable);
    return name != nullptr && name[0] != '\0' ? fopen(with_pid(name).c_str(), "we") : nullptr;
}

void counts_report()
{
    FILE *file = open_report("CUDA_ON_HOST_COUNTS");
    guard held(lock);
    if (file == nullptr) return;
    for (const auto &[name, n] : counted) fprintf(file, "%s %llu\n", name.c_str(), n);
    fclose(file);
}

void log_work(const std::string &line)
{
    static FILE *file = open_report("CUDA_ON_HOST_LOG");
    guard held(lock);
    if (file != nullptr && fprintf(file, "%s\n", line.c_str()) > 0) fflush(file);
}
