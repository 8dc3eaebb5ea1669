/* failures.cpp - calls of the fake driver that fail because a test says so.
 *
 * CUDA_ON_HOST_FAILS=CALL=ERROR[@N][,...]: that call returns the error, from its Nth time in a process on (1); with
 * CUDA_ON_HOST_FAILS_RANK=R only in the process of that RANK.
 */
#include "driver.h"

#include <cstdlib>

struct failure {
    int error, from, calls;
};

static std::map<std::string, failure> read_failures()
{
    std::map<std::string, failure> read;
    const char *at = getenv("CUDA_ON_HOST_FAILS"), *whose = getenv("CUDA_ON_HOST_FAILS_RANK");
    const char *rank = getenv("RANK");
    if (whose != nullptr && (rank == nullptr || atoi(whose) != atoi(rank))) return read;
    while (at != nullptr && *at != '\0') {
        char name[64] = "";
        failure f     = {0, 1, 0};
        int used      = 0;
        if (sscanf(at, "%63[^=]=%d%n@%d%n", name, &f.error, &used, &f.from, &used) < 2) break;
        read[name] = f;
        at += used;
        if (*at != '\0') at++;
    }
    return read;
}

CUresult failure_of(const char *call)
{
    static std::mutex &lock = *new std::mutex();
    static auto &failures   = *new std::map<std::string, failure>(read_failures());
    guard held(lock);
    const auto found = failures.find(api_name(call));
    if (found == failures.end()) return CUDA_SUCCESS;
    failure &f = found->second;
    return ++f.calls >= f.from ? (CUresult)f.error : CUDA_SUCCESS;
}
