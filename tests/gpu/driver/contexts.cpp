/* contexts.cpp - devices and contexts of the fake driver. */
#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <vector>

driver_state &driver = *new driver_state(); /* never destroyed: its thread runs until the end */

static bool has_started;
static std::atomic<bool> is_forked; /* a forked child has no CUDA */
static thread_local std::vector<CUcontext> stack;

static long setting(const char *name, long otherwise, long least, long most)
{
    const char *text  = getenv(name);
    const long number = text != nullptr ? strtol(text, nullptr, 10) : otherwise;
    return number < least ? least : number > most ? most : number;
}

/* The device of the word at `text` of CUDA_VISIBLE_DEVICES; -1: none. */
static long device_of_word(const char *text, char **end)
{
    const bool has_name = strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0;
    const char *digits  = text + (has_name ? 4 : 0);
    const long number   = strtol(digits, end, has_name ? 16 : 10);
    return *end != digits ? number : -1;
}

/* Like the real driver: words up to the first invalid one, and no more than one part (MIG). */
static void find_devices(int count)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    char *end        = nullptr;
    driver.devices   = 0;
    for (int i = 0; text == nullptr && i < count; i++) driver.physical[driver.devices++] = i;
    while (text != nullptr && driver.devices < count) {
        const long number = device_of_word(text, &end);
        if (number < 0 || number >= count) return;
        driver.physical[driver.devices++] = (int)number;
        if (*end != ',' || strncmp(text, "MIG-", 4) == 0) return;
        text = end + 1;
    }
}

static CUresult start()
{
    find_devices((int)setting("CUDA_ON_HOST_DEVICES", 1, 0, DEVICES_MAX));
    driver.device_bytes = (size_t)setting("CUDA_ON_HOST_MIB", 2048, 1, 65536) << 20;
    if (driver.devices == 0) return CUDA_ERROR_NO_DEVICE;
    const CUresult result = memory_start();
    if (result != CUDA_SUCCESS) return result;
    for (int i = 0; i < driver.devices; i++) {
        driver.context[i].device = i;
        driver.context[i].legacy = new CUstream_st{&driver.context[i], false, false, false, {}};
        driver.streams.push_back(driver.context[i].legacy);
    }
    pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
    atexit([] {
        if (is_forked) return;
        counts_report();
        sites_report();
    });
    streams_start((unsigned)setting("CUDA_ON_HOST_SEED", 1, 0, 1 << 30),
                  setting("CUDA_ON_HOST_LATE_MS", 2, 0, 1000));
    return CUDA_SUCCESS;
}

API cuInit(unsigned flags)
{
    if (is_forked) return CUDA_ERROR_NOT_INITIALIZED;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    guard held(driver.lock);
    if (has_started) return CUDA_SUCCESS;
    const CUresult result = start();
    has_started           = result == CUDA_SUCCESS;
    return result;
}

CUcontext context_now()
{
    return stack.empty() ? nullptr : stack.back();
}

static thread_local bool is_device; /* a host function may not call the driver */

void call_from_device(const std::function<void()> &run)
{
    is_device = true;
    run();
    is_device = false;
}

CUresult usable(bool with)
{
    if (is_forked) return CUDA_ERROR_NOT_INITIALIZED;
    if (is_device) return CUDA_ERROR_NOT_PERMITTED;
    guard held(driver.lock);
    if (!has_started) return CUDA_ERROR_NOT_INITIALIZED;
    if (driver.lost != CUDA_SUCCESS) return driver.lost;
    return with && context_now() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

/* ---- devices --------------------------------------------------------------------------------------- */

static bool is_device_number(CUdevice device)
{
    return device >= 0 && device < driver.devices;
}

API cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

API cuDeviceGetCount(int *count)
{
    const CUresult result = usable(false);
    *count                = driver.devices;
    return result;
}

API cuDeviceGet(CUdevice *device, int number)
{
    const CUresult result = usable(false);
    if (result != CUDA_SUCCESS) return result;
    if (!is_device_number(number)) return CUDA_ERROR_INVALID_DEVICE;
    *device = number;
    return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int length, CUdevice device)
{
    if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "played on the host");
    return CUDA_SUCCESS;
}

/* The same for all processes of the machine until it restarts. */
API cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    char text[64] = "";
    if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != nullptr && fgets(text, sizeof text, file) == nullptr) text[0] = '\0';
    if (file != nullptr) fclose(file);
    memset(uuid, 0, sizeof *uuid);
    for (int i = 0; text[i] != '\0'; i++) uuid->bytes[i % 15] ^= (char)(text[i] * (i / 15 + 1));
    uuid->bytes[15] = (char)(driver.physical[device] + 1);
    return CUDA_SUCCESS;
}

API cuDeviceGetAttribute(int *value, CUdevice_attribute name, CUdevice device)
{
    if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
    switch (name) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 2; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 8; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: *value = 1; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = driver.device_bytes;
    return CUDA_SUCCESS;
}

/* One on each bus, from 0x17 on; written in upper case, as the real driver does. */
API cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
    const int n = snprintf(text, (size_t)length, "0000:%02X:00.0", 0x17 + driver.physical[device]);
    return n < length ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* CUDA_ON_HOST_LINKS=pcie, or host: no device reaches another's memory; else nvlink between each even device and the
 * next, pcie between others. */
static bool is_linked(const char *how, CUdevice a, CUdevice b)
{
    const char *links = getenv("CUDA_ON_HOST_LINKS");
    if (links != nullptr && strcmp(links, "host") == 0) return false;
    if (strcmp(how, "nvlink") != 0) return a != b;
    const bool is_pair = driver.physical[a] / 2 == driver.physical[b] / 2;
    return a != b && is_pair && (links == nullptr || strcmp(links, "pcie") != 0);
}

API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    if (!is_device_number(device) || !is_device_number(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = is_linked("pcie", device, peer);
    return CUDA_SUCCESS;
}

API cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute name, CUdevice device, CUdevice peer)
{
    if (!is_device_number(device) || !is_device_number(peer) || device == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    switch (name) {
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED: *value = is_linked("pcie", device, peer); break;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = is_linked("nvlink", device, peer);
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* ---- contexts -------------------------------------------------------------------------------------- */

API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    const CUresult result = usable(false);
    if (result != CUDA_SUCCESS) return result;
    if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
    guard held(driver.lock);
    driver.context[device].is_retained = true;
    *context                           = &driver.context[device];
    return CUDA_SUCCESS;
}

static bool is_context(CUcontext context)
{
    for (int i = 0; i < driver.devices; i++)
        if (context == &driver.context[i] && context->is_retained) return true;
    for (const CUctx_st &c : driver.made)
        if (context == &c) return true;
    return false;
}

/* Of CUDA 12 and 13 alike. */
API cuCtxCreate_v2(CUcontext *context, unsigned, CUdevice device)
{
    const CUresult result = usable(false);
    if (result != CUDA_SUCCESS) return result;
    if (!is_device_number(device)) return CUDA_ERROR_INVALID_DEVICE;
    guard held(driver.lock);
    driver.made.push_back({device, 0, true, nullptr});
    *context           = &driver.made.back();
    (*context)->legacy = new CUstream_st{*context, false, false, false, {}};
    driver.streams.push_back((*context)->legacy);
    stack.push_back(*context);
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(CUcontext *context)
{
    const CUresult result = usable(false);
    *context              = context_now();
    return result;
}

API cuCtxPushCurrent(CUcontext context)
{
    const CUresult result = usable(false);
    if (result != CUDA_SUCCESS) return result;
    if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    stack.push_back(context);
    return CUDA_SUCCESS;
}

API cuCtxPopCurrent(CUcontext *context)
{
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext context)
{
    const CUresult result = usable(false);
    if (result != CUDA_SUCCESS) return result;
    if (context != nullptr && !is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.empty()) stack.pop_back();
    if (context != nullptr) stack.push_back(context);
    return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice *device)
{
    const CUresult result = usable(true);
    if (result == CUDA_SUCCESS) *device = context_now()->device;
    return result;
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_context(peer) || peer == context_now()) return CUDA_ERROR_INVALID_CONTEXT;
    guard held(driver.lock);
    uint32_t &peers    = context_now()->peers;
    const uint32_t bit = 1u << peer->device;
    if (peers & bit) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    peers |= bit;
    return CUDA_SUCCESS;
}

API cuCtxSynchronize()
{
    COUNT_SYNC();
    const CUresult result = usable(true);
    guard held(driver.lock);
    return result == CUDA_SUCCESS ? drain_all(held, context_now()) : result;
}

/* ---- errors ---------------------------------------------------------------------------------------- */

API cuGetErrorString(CUresult error, const char **text)
{
    static const std::map<int, const char *> texts = {
        {CUDA_SUCCESS, "no error"},
        {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
        {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
        {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
        {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
        {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
        {CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"},
        {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
        {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"},
        {CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
        {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
        {CUDA_ERROR_NOT_READY, "device not ready"},
        {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
        {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "host memory is already registered"},
        {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "host memory is not registered"},
        {CUDA_ERROR_NOT_PERMITTED, "operation not permitted"},
        {CUDA_ERROR_NOT_SUPPORTED, "operation not supported"},
        {CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"},
        {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
         "peer access is not supported between these two devices"},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"},
    };
    const auto found = texts.find(error);
    *text            = found == texts.end() ? nullptr : found->second;
    return found == texts.end() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
