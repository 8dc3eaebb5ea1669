/* on_device.c - operations on device tensors other than training by units (units.c).
 *
 *   on_device WHAT [NAME=VALUE ...]
 *     verbs     pushes and pulls device memory, the tensor's own and other; prints the values
 *     bind      trains, moves values and gradient to other memory of the device, and trains on
 *     stay      like bind, without the move
 *     restore   trains 4 steps with a snapshot after 2, goes back, and trains them again; prints the values
 *     two       a tensor on each of two devices
 *     stuck     a gradient that its stream reaches a second late
 * Settings are the SDK's. Printed values were read from the device.
 */
#include "penstock.h"
#include "cuda_lite.h"
#include <string.h>
#include <time.h>

enum { N = 100000, WORDS_MAX = 32 };

static void *stream;

static void fail(void)
{
    fprintf(stderr, "on_device: %s\n", pen_last_error(NULL));
    exit(1);
}
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) fail();                                                              \
    } while (0)

static float *device_memory(pen_ctx *ctx)
{
    float *memory = pen_alloc(ctx, N * sizeof(float), PEN_CUDA);
    if (memory == NULL) fail();
    return memory;
}

static void fill(float *device, float first, float step)
{
    static float host[N];
    for (int i = 0; i < N; i++) host[i] = first + step * (float)(i % 8);
    cuda_lite_copy(device, host, sizeof host, stream);
    cuda_lite_must(cuda_lite.wait(stream), "cuStreamSynchronize");
}

static void show(const char *what, const float *device)
{
    static float host[N];
    double sum = 0;
    cuda_lite_copy(host, device, sizeof host, stream);
    cuda_lite_must(cuda_lite.wait(stream), "cuStreamSynchronize");
    for (int i = 0; i < N; i++) sum += host[i];
    printf("%s %.9g %.9g sum %.17g\n", what, host[1], host[N - 1], sum);
}

static pen_tensor *add(pen_ctx *ctx, const char *name, float *param, float *grad)
{
    pen_tensor *t;
    TRY(pen_register(
        ctx,
        &(pen_tensor_desc){.name = name, .ndim = 1, .shape = {N}, .param = param, .grad = grad},
        &t));
    return t;
}

static void verbs(pen_ctx *ctx)
{
    float *param = device_memory(ctx), *grad = device_memory(ctx), *other = device_memory(ctx);
    pen_req req;
    fill(param, 1, 0.5f);
    pen_tensor *t = add(ctx, "t", param, grad);
    TRY(pen_commit(ctx));
    show("committed", param);
    fill(grad, 1, 1);
    const pen_opts o = {.stream = stream};
    TRY(pen_push_pull(ctx, t, PEN_ALL, NULL, NULL, &o, NULL));
    show("own", param);
    fill(other, -1, 0);
    TRY(pen_push(ctx, t, PEN_ALL, other, &o, NULL));
    TRY(pen_pull(ctx, t, PEN_ALL, other, &o, NULL));
    show("other", other);
    TRY(pen_pull(ctx, t, PEN_ALL, NULL, &o, NULL));
    show("pulled", param);
    if (pen_push(ctx, t, PEN_ALL, NULL, &o, &req) == PEN_UNSUPPORTED)
        printf("%s\n", pen_last_error(NULL));
}

static void train(pen_ctx *ctx, pen_tensor *t, float *grad)
{
    pen_step step;
    TRY(pen_step_begin(ctx, &step));
    (void)pen_use(ctx, NULL, PEN_BACKWARD, stream);
    fill(grad, (float)step.index, 1);
    (void)pen_ready(ctx, t, PEN_ALL);
    TRY(pen_step_end(ctx, &step));
}

static void bind(pen_ctx *ctx, int moves)
{
    float *param = device_memory(ctx), *grad = device_memory(ctx), *new_param = device_memory(ctx),
          *new_grad = device_memory(ctx);
    pen_tensor *t   = add(ctx, "t", param, grad);
    TRY(pen_commit(ctx));
    for (int i = 0; i < 2; i++) train(ctx, t, grad);
    if (moves) (void)pen_bind(ctx, t, new_param, new_grad);
    for (int i = 0; i < 2; i++) train(ctx, t, moves ? new_grad : grad);
    show("bound", moves ? new_param : param);
}

static void restore(pen_ctx *ctx)
{
    float *param = device_memory(ctx), *grad = device_memory(ctx);
    pen_tensor *t = add(ctx, "t", param, grad);
    TRY(pen_commit(ctx));
    for (int i = 0; i < 2; i++) train(ctx, t, grad);
    TRY(pen_snapshot(ctx, NULL, NULL));
    show("kept", param);
    for (int i = 0; i < 2; i++) train(ctx, t, grad);
    show("end", param);
    TRY(pen_restore(ctx, -1, NULL));
    show("kept", param);
    for (int i = 0; i < 2; i++) train(ctx, t, grad);
    show("end", param);
}

/* The second tensor is in memory of this thread's current device. */
static void two(pen_ctx *ctx)
{
    float *first = device_memory(ctx);
    (void)cuda_lite_open(1);
    float *second = pen_alloc(NULL, N * sizeof(float), PEN_CUDA);
    if (second == NULL) fail();
    add(ctx, "first", first, NULL);
    if (pen_register(ctx,
                     &(pen_tensor_desc){.name = "second", .ndim = 1, .shape = {N}, .param = second},
                     NULL) == PEN_INVALID_ARGUMENT)
        printf("%s\n", pen_last_error(NULL));
}

static void sleep_a_second(void *user)
{
    const struct timespec second = {1, 0};
    (void)user;
    nanosleep(&second, NULL);
}

static void stuck(pen_ctx *ctx)
{
    float *param = device_memory(ctx), *grad = device_memory(ctx);
    pen_step step;
    pen_tensor *t = add(ctx, "t", param, grad);
    TRY(pen_commit(ctx));
    TRY(pen_setting_set(ctx, "deadline_ms", "100"));
    TRY(pen_step_begin(ctx, &step));
    (void)pen_use(ctx, NULL, PEN_BACKWARD, stream);
    cuda_lite_must(cuda_lite.call(stream, sleep_a_second, NULL), "cuLaunchHostFunc");
    (void)pen_ready(ctx, t, PEN_ALL);
    if (pen_step_end(ctx, &step) == PEN_TIMED_OUT) printf("%s\n", pen_last_error(NULL));
}

int main(int argc, char **argv)
{
    const char *settings[WORDS_MAX + 3] = {"steps=0", "optim=sgd lr=0.5", NULL};
    pen_ctx *ctx;
    for (int i = 2; i < argc && i < WORDS_MAX; i++) settings[i] = argv[i];
    TRY(pen_init(settings, &ctx));
    stream           = cuda_lite_open(0);
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "verbs") == 0) verbs(ctx);
    if (strcmp(what, "bind") == 0) bind(ctx, 1);
    if (strcmp(what, "stay") == 0) bind(ctx, 0);
    if (strcmp(what, "restore") == 0) restore(ctx);
    if (strcmp(what, "two") == 0) two(ctx);
    if (strcmp(what, "stuck") == 0) stuck(ctx);
    fflush(stdout);
    return pen_finalize(ctx) == PEN_OK ? 0 : 1;
}
