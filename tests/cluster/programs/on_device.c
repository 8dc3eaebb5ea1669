/* on_device.c - operations on device tensors other than training by units (units.c).
 *
 *   on_device WHAT [NAME=VALUE ...]
 *     verbs     pushes and pulls device memory, the tensor's own and other; prints the values
 *     bind      trains, moves values and gradient to other memory of the device, and trains on
 *     stay      like bind, without the move
 *     restore   trains 4 steps with a snapshot after 2, goes back, and trains them again; prints the values
 *     two       a tensor on each of two devices
 *     reduce    collectives of all workers on data that a stream writes; another stream reads the results, the last one
 *               after pen_wait_stream()
 *     staged    a collective; prints the bytes copied between device and host, as the SDK and the fake driver counted
 *               them
 *     between   each collective that works on the devices of several hosts, with root 1, on device memory and on host
 *               memory: whether the bits are equal, and the bytes copied between device and host
 *     endless   collectives until one fails; prints its sentence when the stream has come to its end
 *     kept      a gradient of the SDK over micro-batches (accum=2), made ready on a second stream
 *     restore-ahead  a snapshot and a restore between lazy steps
 *     stuck     a gradient that its stream reaches a second late
 *     sum       all ranks sum 1 + their rank on their devices; prints the devices seen and the values
 *     captured  calls with a stream that is being captured; prints their sentences
 *     beside    while the SDK's threads carry a first collective, the program captures another stream; prints the sum
 *     renew     collectives on memory that is freed and allocated again after each, larger and smaller; prints the sums
 *     crossed   two ranks begin calls of two groups in opposite order; prints their sums
 *     follow    two ranks: a request whose stream is held up until pen_wait_stream() has returned; prints its result
 * Settings are the SDK's. Printed values were read from the device.
 */
#include "penstock.h"
#include "cuda_lite.h"
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { N = 100000, LARGE = 1100000, ROUNDS = 4, WORDS_MAX = 32 };

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

/* In the order of that stream: nothing waits. */
static void fill_in(void *in, float *device, float first, float step)
{
    float *host = cuda_lite_pinned(N * sizeof *host);
    for (int i = 0; i < N; i++) host[i] = first + step * (float)(i % 8);
    cuda_lite_copy(device, host, N * sizeof *host, in);
}

static void fill(float *device, float first, float step)
{
    fill_in(stream, device, first, step);
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
    float *param = device_memory(ctx), *grad = device_memory(ctx), *other = device_memory(ctx),
          *drawn = device_memory(ctx);
    pen_req req;
    show("fresh", other);
    pen_tensor *t = add(ctx, "t", param, grad);
    TRY(pen_register(ctx,
                     &(pen_tensor_desc){.name  = "drawn",
                                        .ndim  = 1,
                                        .shape = {N},
                                        .param = drawn,
                                        .flags = PEN_FROZEN,
                                        .init  = "const v=0.25"},
                     NULL));
    fill_in(NULL, param, 1, 0.5f); /* until pen_use() the program's stream is the default one */
    TRY(pen_commit(ctx));
    show("drawn", drawn);
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

/* Each micro-batch writes on the second stream; the SDK clears what it has kept on the newest one, which is the first. */
static void kept(pen_ctx *ctx)
{
    float *param  = device_memory(ctx);
    pen_tensor *t = add(ctx, "t", param, NULL);
    pen_step step;
    void *second;
    cuda_lite_must(cuda_lite.stream_new(&second, 1), "cuStreamCreate");
    fill(param, 0, 0);
    TRY(pen_commit(ctx));
    for (int i = 0; i < 3; i++) {
        TRY(pen_step_begin(ctx, &step));
        for (int m = 0; m < 2; m++) {
            TRY(pen_step_micro(ctx, m));
            float *grad = pen_view(ctx, t, PEN_ALL, PEN_GRAD);
            cuda_lite_must(cuda_lite.wait(NULL), "cuStreamSynchronize"); /* cleared there */
            fill_in(second, grad, (float)(1 + m), 0.001f);
            TRY(pen_ready_on(ctx, t, PEN_ALL, second));
        }
        TRY(pen_step_end(ctx, &step));
    }
    show("kept", param);
}

/* Snapshots while the device has not decided the newest steps. */
static void restore_ahead(pen_ctx *ctx)
{
    float *param = device_memory(ctx), *grad = device_memory(ctx);
    pen_tensor *t = add(ctx, "t", param, grad);
    pen_step step;
    TRY(pen_commit(ctx));
    for (int i = 0; i < 5; i++) {
        if (i == 2) TRY(pen_snapshot(ctx, NULL, NULL));
        TRY(pen_step_begin(ctx, &step));
        step.lazy = 1;
        TRY(pen_ready(ctx, t, PEN_ALL));
        TRY(pen_step_end(ctx, &step));
        printf("step %lld outcome %d\n", (long long)step.index, step.outcome);
    }
    TRY(pen_restore(ctx, -1, NULL));
    TRY(pen_step_begin(ctx, &step));
    TRY(pen_ready(ctx, t, PEN_ALL));
    TRY(pen_step_end(ctx, &step));
    printf("step %lld outcome %d applied %lld\n", (long long)step.index, step.outcome,
           (long long)step.applied);
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

/* Another stream than that of the call waits for its end. The host may see that end in a later round. */
static void reduce_by_request(pen_ctx *ctx, int round, float *data, float *sum, void *other)
{
    const size_t bytes = LARGE * sizeof(float);
    float *given = cuda_lite_pinned(bytes), *last = cuda_lite_pinned(bytes);
    const pen_opts o = {.stream = stream};
    double all       = 0;
    pen_req req;
    for (int i = 0; i < LARGE; i++) given[i] = (float)(round + i % 16);
    cuda_lite_copy(data, given, bytes, stream);
    TRY(pen_all_reduce(pen_world(ctx), data, sum, LARGE, PEN_F32, PEN_SUM, &o, &req));
    TRY(pen_wait_stream(&req, other));
    cuda_lite_copy(last, sum, bytes, other);
    cuda_lite_must(cuda_lite.wait(other), "cuStreamSynchronize");
    for (int i = 0; i < LARGE; i++) all += last[i];
    printf("rank %d round %d request sum %.17g\n", pen_rank(pen_world(ctx)), round, all);
}

/* Neither the program nor its streams wait for anything but the calls themselves.  Large calls are not made in the
 * collectives' own memory. */
static void reduce(pen_ctx *ctx)
{
    const size_t bytes = LARGE * sizeof(float);
    float *data = pen_alloc(ctx, bytes, PEN_CUDA), *sum = pen_alloc(ctx, bytes, PEN_CUDA);
    float *seen[ROUNDS];
    void *other;
    const pen_opts o = {.stream = stream};
    if (data == NULL || sum == NULL) fail();
    cuda_lite_must(cuda_lite.stream_new(&other, 1), "cuStreamCreate"); /* non-blocking */
    for (int r = 0; r < ROUNDS; r++) {
        const size_t n = r % 2 == 0 ? N : LARGE;
        float *given   = cuda_lite_pinned(bytes);
        seen[r]        = cuda_lite_pinned(bytes);
        for (size_t i = 0; i < n; i++) given[i] = (float)(r * 1000 + (int)(i % 8));
        cuda_lite_copy(data, given, n * sizeof *given, stream);
        TRY(pen_all_reduce(pen_world(ctx), data, sum, n, PEN_F32, PEN_SUM, &o, NULL));
        cuda_lite_copy(seen[r], sum, n * sizeof **seen, other);
    }
    cuda_lite_must(cuda_lite.wait(stream), "cuStreamSynchronize");
    cuda_lite_must(cuda_lite.wait(other), "cuStreamSynchronize");
    for (int r = 0; r < ROUNDS; r++) {
        double all = 0;
        for (int i = 0; i < (r % 2 == 0 ? N : LARGE); i++) all += seen[r][i];
        printf("rank %d round %d sum %.17g\n", pen_rank(pen_world(ctx)), r, all);
    }
    for (int r = 0; r < ROUNDS; r++) reduce_by_request(ctx, r, data, sum, other);
    TRY(pen_barrier(pen_world(ctx), NULL, NULL));
}

static void print_copied(pen_ctx *ctx, const char *direction)
{
    char name[64];
    double other = 0;
    snprintf(name, sizeof name, "device.%s.other.bytes", direction);
    TRY(pen_stat(ctx, name, &other));
    snprintf(name, sizeof name, "sdk.copy.%s.bytes", direction);
    printf("%s %.0f of %llu\n", direction, other,
           cuda_lite.count != NULL ? cuda_lite.count(name) : 0);
}

static void staged(pen_ctx *ctx)
{
    float *data = device_memory(ctx);
    fill(data, 1, 1);
    const pen_opts o = {.stream = stream};
    TRY(pen_all_reduce(pen_world(ctx), data, data, N, PEN_F32, PEN_SUM, &o, NULL));
    show("sum", data);
    print_copied(ctx, "down");
    print_copied(ctx, "up");
}

enum { PARTS = 4, PART = LARGE / PARTS, ROOT = 1 };

typedef struct {
    const char *name;
    size_t in, out; /* elements */
    pen_dtype dtype;
    int is_in_place;
} between_case;

static pen_status between_call(pen_group *w, const between_case *k, const void *in, void *out)
{
    const pen_opts o = {.stream = stream, .label = k->name};
    switch (k->name[0]) {
    case 'a':
        if (k->in < k->out) return pen_all_gather(w, in, PART, out, NULL, k->dtype, &o, NULL);
        return pen_all_reduce(w, k->is_in_place ? out : in, out, LARGE, k->dtype, PEN_SUM, &o,
                              NULL);
    case 'b': return pen_broadcast(w, out, LARGE, k->dtype, ROOT, &o, NULL);
    case 's': return pen_reduce_scatter(w, in, NULL, out, PART, k->dtype, PEN_SUM, &o, NULL);
    default: return pen_reduce(w, in, out, LARGE, k->dtype, PEN_SUM, ROOT, &o, NULL);
    }
}

static unsigned long long crossed(const char *direction)
{
    char name[64];
    snprintf(name, sizeof name, "sdk.copy.%s.bytes", direction);
    return cuda_lite.count != NULL ? cuda_lite.count(name) : 0;
}

/* Thirds are not exact: another order of sums gives other bits. */
static void draw_between(void *to, const between_case *k, int rank, size_t n)
{
    float *x   = to;
    int32_t *i = to;
    for (size_t e = 0; e < n; e++) {
        if (k->dtype == PEN_F32)
            x[e] = (float)((e * 7 + (size_t)rank * 3) % 11) / 3;
        else
            i[e] = (int32_t)(e % 1000) * (rank + 1);
    }
}

static void between(pen_ctx *ctx)
{
    static const between_case cases[] = {{"all_reduce", LARGE, LARGE, PEN_I32, 0},
                                         {"reduce", LARGE, LARGE, PEN_I32, 0},
                                         {"scatter of a sum", LARGE, PART, PEN_I32, 0},
                                         {"all_gather", PART, LARGE, PEN_I32, 0},
                                         {"broadcast", 0, LARGE, PEN_I32, 0},
                                         {"all_reduce of floats", LARGE, LARGE, PEN_F32, 1}};
    static uint32_t given[LARGE], want[LARGE], got[LARGE];
    pen_group *w       = pen_world(ctx);
    const size_t bytes = sizeof given;
    const int rank     = pen_rank(w);
    void *in = pen_alloc(ctx, bytes, PEN_CUDA), *out = pen_alloc(ctx, bytes, PEN_CUDA);
    if (in == NULL || out == NULL) fail();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const between_case *k = &cases[c];
        const int has_result  = strcmp(k->name, "reduce") != 0 || rank == ROOT;
        draw_between(given, k, rank, LARGE);
        memcpy(want, given, bytes);
        cuda_lite_copy(in, given, bytes, stream);
        cuda_lite_copy(out, given, bytes, stream);
        cuda_lite_must(cuda_lite.wait(stream), "cuStreamSynchronize");
        const unsigned long long down = crossed("down"), up = crossed("up");
        TRY(between_call(w, k, in, out));
        printf("%s: rank %d down %llu up %llu", k->name, rank, crossed("down") - down,
               crossed("up") - up);
        cuda_lite_copy(got, out, bytes, stream);
        cuda_lite_must(cuda_lite.wait(stream), "cuStreamSynchronize");
        TRY(between_call(w, k, given, want));
        printf(" %s\n", !has_result || memcmp(got, want, k->out * 4) == 0 ? "right" : "wrong");
    }
}

static void endless(pen_ctx *ctx)
{
    const size_t bytes = LARGE * sizeof(float);
    float *data        = pen_alloc(ctx, bytes, PEN_CUDA);
    const pen_opts o   = {.stream = stream, .label = "loop", .deadline_ms = 20000};
    if (data == NULL) fail();
    for (int i = 0;
         pen_all_reduce(pen_world(ctx), data, data, LARGE, PEN_F32, PEN_MAX, &o, NULL) == PEN_OK;
         i++)
        if (i == 3) printf("begun %d\n", (int)getpid()), fflush(stdout);
    cuda_lite_must(cuda_lite.wait(stream), "cuStreamSynchronize");
    printf("%s\n", pen_last_error(NULL));
    fflush(stdout);
    _exit(0);
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

static void sum(pen_ctx *ctx)
{
    float *in = device_memory(ctx), *out = device_memory(ctx);
    const char *seen = getenv("CUDA_VISIBLE_DEVICES");
    fill(in, 1.0f + (float)pen_rank(pen_world(ctx)), 0);
    TRY(pen_all_reduce(pen_world(ctx), in, out, N, PEN_F32, PEN_SUM, NULL, NULL));
    printf("sees %s\n", seen != NULL ? seen : "all");
    show("sum", out);
}

static void show_refusal(pen_status status)
{
    printf("%s\n", status == PEN_UNSUPPORTED ? pen_last_error(NULL) : "not refused");
}

/* Returns the exit code: the gradient that is refused fails the job. */
static int captured(pen_ctx *ctx)
{
    float *param = device_memory(ctx), *grad = device_memory(ctx);
    pen_group *w     = pen_world(ctx);
    const pen_opts o = {.stream = stream};
    pen_step step;
    pen_req req;
    void *graph   = NULL;
    pen_tensor *t = add(ctx, "t", param, grad);
    TRY(pen_commit(ctx));
    TRY(pen_step_begin(ctx, &step));
    TRY(pen_use(ctx, NULL, PEN_BACKWARD, stream));
    cuda_lite_must(cuda_lite.capture_begin(stream, 0), "cuStreamBeginCapture");
    show_refusal(pen_all_reduce(w, grad, grad, N, PEN_F32, PEN_SUM, &o, NULL));
    show_refusal(pen_all_reduce(w, grad, grad, N, PEN_F32, PEN_SUM, NULL, NULL));
    TRY(pen_barrier(w, NULL, &req));
    show_refusal(pen_wait_stream(&req, stream));
    TRY(pen_wait(&req, NULL));
    show_refusal(pen_use(ctx, NULL, PEN_BACKWARD, stream));
    show_refusal(pen_release(ctx, NULL, PEN_BACKWARD, stream));
    show_refusal(pen_ready(ctx, t, PEN_ALL));
    cuda_lite_must(cuda_lite.capture_end(stream, &graph), "cuStreamEndCapture");
    TRY(pen_all_reduce(w, grad, grad, N, PEN_F32, PEN_SUM, &o, NULL));
    fflush(stdout);
    (void)pen_finalize(ctx);
    return 0;
}

static void beside(pen_ctx *ctx)
{
    const struct timespec moment = {0, 100000000};
    float *in = device_memory(ctx), *out = device_memory(ctx);
    const pen_opts o = {.stream = stream};
    void *other, *graph = NULL;
    pen_req req;
    cuda_lite_must(cuda_lite.stream_new(&other, 1), "cuStreamCreate");
    fill(in, 1, 1);
    TRY(pen_all_reduce(pen_world(ctx), in, out, N, PEN_F32, PEN_SUM, &o, &req));
    cuda_lite_must(cuda_lite.capture_begin(other, 0), "cuStreamBeginCapture");
    nanosleep(&moment, NULL);
    cuda_lite_must(cuda_lite.capture_end(other, &graph), "cuStreamEndCapture");
    TRY(pen_wait(&req, NULL));
    show("sum", out);
}

static void renew(pen_ctx *ctx)
{
    static const size_t floats[] = {N, 3 * N, N, 2 * N};
    const pen_opts o             = {.stream = stream};
    for (int round = 0; round < 4 * ROUNDS; round++) {
        float *in  = pen_alloc(ctx, floats[round % 4] * sizeof(float), PEN_CUDA);
        float *out = pen_alloc(ctx, floats[(round + 1) % 4] * sizeof(float), PEN_CUDA);
        if (in == NULL || out == NULL) fail();
        fill(in, (float)round, 1);
        TRY(pen_all_reduce(pen_world(ctx), in, out, N, PEN_F32, PEN_SUM, &o, NULL));
        show("sum", out);
        pen_free(in);
        pen_free(out);
        TRY(pen_barrier(pen_world(ctx), NULL, NULL));
    }
}

static void cross(pen_ctx *ctx)
{
    float *in = device_memory(ctx), *out[] = {device_memory(ctx), device_memory(ctx)};
    const pen_opts o  = {.stream = stream};
    const int ranks[] = {0, 1};
    pen_group *g[2];
    pen_info info;
    pen_req req[2];
    TRY(pen_info_get(ctx, &info));
    for (int i = 0; i < 2; i++) TRY(pen_group_new(pen_world(ctx), ranks, 2, &g[i]));
    fill(in, 1, 1);
    for (int round = 0; round < ROUNDS; round++) {
        for (int k = 0; k < 2; k++) {
            const int i = (k + info.rank) % 2;
            TRY(pen_all_reduce(g[i], in, out[i], N, PEN_F32, PEN_SUM, &o, &req[i]));
        }
        for (int i = 0; i < 2; i++) TRY(pen_wait(&req[i], NULL));
    }
    for (int i = 0; i < 2; i++) show("sum", out[i]);
    for (int i = 0; i < 2; i++) pen_group_free(g[i]);
}

static _Atomic int is_released;

static void hold_up(void *user)
{
    const struct timespec moment = {0, 1000000};
    (void)user;
    for (int i = 0; i < 30000 && !is_released; i++) nanosleep(&moment, NULL);
    if (!is_released) printf("the host waited for the device\n");
}

static void follow(pen_ctx *ctx)
{
    float *in = device_memory(ctx), *out = device_memory(ctx);
    void *other;
    const pen_opts o = {.stream = stream, .deadline_ms = 60000};
    pen_group *w     = pen_world(ctx);
    pen_info info;
    pen_req req;
    TRY(pen_info_get(ctx, &info));
    printf("caps %d\n", (info.caps & PEN_CAP_STREAM) != 0);
    if (info.caps & PEN_CAP_NCCL) printf("caps nccl\n");
    cuda_lite_must(cuda_lite.stream_new(&other, 1), "cuStreamCreate");
    fill(in, 1, 1);
    TRY(pen_all_reduce(w, in, out, N, PEN_F32, PEN_SUM, &o, NULL)); /* makes what calls need */
    fill(out, 0, 0);
    cuda_lite_must(cuda_lite.call(stream, hold_up, NULL), "cuLaunchHostFunc");
    TRY(pen_all_reduce(w, in, out, N, PEN_F32, PEN_SUM, &o, &req));
    TRY(pen_wait_stream(&req, other));
    is_released = 1;
    stream      = other;
    show("sum", out);
    TRY(pen_barrier(w, NULL, NULL));
}

int main(int argc, char **argv)
{
    const char *settings[WORDS_MAX + 3] = {"steps=0", "optim=sgd lr=0.5", NULL};
    pen_ctx *ctx;
    pen_info info;
    for (int i = 2; i < argc && i < WORDS_MAX; i++) settings[i] = argv[i];
    TRY(pen_init(settings, &ctx));
    TRY(pen_info_get(ctx, &info));
    stream           = cuda_lite_open(info.device >= 0 ? info.device : 0);
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "verbs") == 0) verbs(ctx);
    if (strcmp(what, "bind") == 0) bind(ctx, 1);
    if (strcmp(what, "stay") == 0) bind(ctx, 0);
    if (strcmp(what, "restore") == 0) restore(ctx);
    if (strcmp(what, "kept") == 0) kept(ctx);
    if (strcmp(what, "restore-ahead") == 0) restore_ahead(ctx);
    if (strcmp(what, "two") == 0) two(ctx);
    if (strcmp(what, "reduce") == 0) reduce(ctx);
    if (strcmp(what, "staged") == 0) staged(ctx);
    if (strcmp(what, "between") == 0) between(ctx);
    if (strcmp(what, "endless") == 0) endless(ctx);
    if (strcmp(what, "stuck") == 0) stuck(ctx);
    if (strcmp(what, "sum") == 0) sum(ctx);
    if (strcmp(what, "captured") == 0) return captured(ctx);
    if (strcmp(what, "beside") == 0) beside(ctx);
    if (strcmp(what, "renew") == 0) renew(ctx);
    if (strcmp(what, "crossed") == 0) cross(ctx);
    if (strcmp(what, "follow") == 0) follow(ctx);
    fflush(stdout);
    return pen_finalize(ctx) == PEN_OK ? 0 : 1;
}
