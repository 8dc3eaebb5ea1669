/* device_cuda_stream.c - streams and events of CUDA, including shared ones. */
#include "common/compute/device/device_cuda.h"

#ifdef PENSTOCK_CUDA

#include "common/base/why.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* ---- streams ------------------------------------------------------------------------------------- */

pen_status cuda_stream_new(int device, device_stream *stream, pen_error *why)
{
    CUstream made     = NULL;
    pen_status status = cuda_enter(device, why);
    if (status != PEN_OK) return status;
    CUresult result = cuda_driver.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    cuda_leave();
    *stream = made;
    return cuda_failed(result, "making a stream", why);
}

void cuda_stream_free(device_stream stream)
{
    if (!cuda_is_own_stream(stream) || cuda_enter_for(stream, NULL, NULL) != PEN_OK) return;
    cuda_driver.cuStreamDestroy((CUstream)stream);
    cuda_leave();
}

/* The default stream needs a context, without which nothing is captured. */
pen_status cuda_may_enqueue(const char *what, device_stream stream, pen_error *why)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!cuda_has_driver(RTLD_NOLOAD) || (!cuda_is_own_stream(stream) && cuda_current() < 0))
        return PEN_OK;
    const CUresult result = cuda_driver.cuStreamIsCapturing((CUstream)stream, &state);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return cuda_failed(result, what, why);
    if (result != CUDA_SUCCESS || state == CU_STREAM_CAPTURE_STATUS_NONE) return PEN_OK;
    return cuda_failed(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, what, why);
}

/* ---- events -------------------------------------------------------------------------------------- */

struct device_event {
    CUevent handle; /* NULL until it is first used */
    CUcontext context;
    bool is_shared, is_borrowed;
};

device_event *cuda_event_new(void)
{
    return calloc(1, sizeof(device_event));
}

static void event_close(device_event *event)
{
    if (event->handle != NULL && !event->is_borrowed) cuda_driver.cuEventDestroy(event->handle);
    event->handle = NULL;
}

void cuda_event_free(device_event *event)
{
    if (event == NULL) return;
    event_close(event);
    free(event);
}

/* Creates it in the current context.  A shared one stays in its first: others hold its handle. */
static pen_status event_open(device_event *event, pen_error *why)
{
    CUcontext context = NULL;
    cuda_driver.cuCtxGetCurrent(&context);
    if (event->handle != NULL && event->context == context) return PEN_OK;
    if (event->handle != NULL && event->is_shared)
        return why_set(
            why, PEN_UNSUPPORTED,
            "other processes wait for events of the CUDA context that the group's first call "
            "used; this stream belongs to another context");
    event_close(event);
    event->context     = context;
    const unsigned how = CU_EVENT_DISABLE_TIMING | (event->is_shared ? CU_EVENT_INTERPROCESS : 0);
    return cuda_failed(cuda_driver.cuEventCreate(&event->handle, how), "making an event", why);
}

pen_status cuda_event_record(device_event *event, device_stream stream, pen_error *why)
{
    pen_status status = cuda_enter_for(stream, NULL, why);
    if (status != PEN_OK) return status;
    status = event_open(event, why);
    if (status == PEN_OK)
        status = cuda_failed(cuda_driver.cuEventRecord(event->handle, (CUstream)stream),
                             "recording an event", why);
    cuda_leave();
    return status;
}

pen_status cuda_event_done(device_event *event, pen_error *why)
{
    if (event->handle == NULL) return PEN_OK; /* nothing was recorded */
    pen_status status = cuda_push(event->context, "entering an event's context", why);
    if (status != PEN_OK) return status;
    CUresult result = cuda_driver.cuEventQuery(event->handle);
    cuda_leave();
    return result == CUDA_ERROR_NOT_READY ? PEN_AGAIN
                                          : cuda_failed(result, "work of the device", why);
}

pen_status cuda_stream_wait(device_stream stream, device_event *event, pen_error *why)
{
    if (event->handle == NULL) return PEN_OK;
    pen_status status = cuda_enter_for(stream, NULL, why);
    if (status != PEN_OK) return status;
    status = cuda_failed(cuda_driver.cuStreamWaitEvent((CUstream)stream, event->handle, 0),
                         "waiting for an event", why);
    cuda_leave();
    return status;
}

pen_status cuda_event_share(device_event *event, device_event_ref *ref, pen_error *why)
{
    CUipcEventHandle handle;
    pen_status status = cuda_enter_for(NULL, NULL, why);
    if (status != PEN_OK) return status;
    event_close(event);
    event->is_shared = true;
    status           = event_open(event, why);
    if (status == PEN_OK)
        status = cuda_failed(cuda_driver.cuIpcGetEventHandle(&handle, event->handle),
                             "sharing an event", why);
    cuda_leave();
    if (status != PEN_OK) return status;
    *ref = (device_event_ref){.process = device_process(), .event = (uintptr_t)event};
    memcpy(ref->handle, &handle, sizeof handle);
    return PEN_OK;
}

device_event *cuda_event_map(const device_event_ref *ref, pen_error *why)
{
    CUipcEventHandle handle;
    device_event *event = cuda_event_new();
    if (event == NULL) {
        why_set(why, PEN_NO_MEMORY, "no memory for an event");
        return NULL;
    }
    if (ref->process == device_process()) {
        *event             = *(const device_event *)(uintptr_t)ref->event;
        event->is_borrowed = true;
        return event;
    }
    pen_status status = cuda_enter_for(NULL, NULL, why);
    if (status == PEN_OK) {
        cuda_driver.cuCtxGetCurrent(&event->context);
        memcpy(&handle, ref->handle, sizeof handle);
        status = cuda_failed(cuda_driver.cuIpcOpenEventHandle(&event->handle, handle),
                             "mapping an event", why);
        cuda_leave();
    }
    if (status == PEN_OK) return event;
    free(event);
    return NULL;
}

#endif
