/* main.c - trains a small network on Fashion-MNIST: an example of a Penstock training loop.
 *
 * DESIGN  A step's data is a pure function of (seed, step index), so a run that stops and continues, or runs again with
 * another number of workers, sees the same global batches.  Rank r of W takes the share [r B / W, (r + 1) B / W) of a
 * batch of B samples and computes its mean gradient; step.weight is its size in units of B / W, so the weighted mean
 * over the ranks is the mean over the global batch.  With --grad-accum N the share is computed in N parts, each scaled
 * by its part of the share; the SDK adds them before sending.
 * In elastic jobs (PEN_CAP_ELASTIC), r is the position among the live workers.  A share keeps its size, so the batch
 * grows and shrinks with them; with --batch-global the batch is constant and divided among them.  A worker that joins
 * or returns continues at the job's current step, so every rank trains to the last.  Such jobs use no collectives,
 * which need stable members: the first live worker alone runs the test images.
 */
#include "data.h"
#include "epoch.h"
#include "model.h"
#include "options.h"
#include "penstock.h"
#include "report.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EVAL_ROWS = 100 };

typedef struct {
    options o;
    data_set train, test;
    pen_ctx *ctx;
    pen_info info;
    float *param, *grad; /* flat, shared with the SDK */
    pen_tensor *tensors[MODEL_TENSORS_MAX];
    model model;
    uint32_t *order;     /* [train.n] order of epoch order_epoch */
    int64_t order_epoch; /* -1: none yet */
    int64_t steps;
    bool is_elastic;
    int position, shares; /* this rank's position among the live workers; shares of the batch */
    double images;        /* trained so far, over all ranks */
    epoch epoch;
    report report;
    FILE *loss_log, *curve, *out; /* rank 0 */
    report_result result;
} trainer;

static bool fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("fashion_mnist: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return false;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fail("%s", pen_last_error(NULL));                             \
    } while (0)

static bool load_data(trainer *t)
{
    char why[DATA_WHY_BYTES];
    if (!data_load(&t->train, t->o.data_dir, "train", why)) return fail("%s", why);
    if (!data_load(&t->test, t->o.data_dir, "t10k", why)) return fail("%s", why);
    if (t->o.batch > t->train.n)
        return fail("--batch %lld is more than the %d training images", (long long)t->o.batch,
                    t->train.n);
    return true;
}

/* Reads the live workers between two steps; all ranks see the same. */
static void look_at_members(trainer *t)
{
    pen_group *live = pen_world(t->ctx);
    t->position     = pen_rank(live);
    t->shares       = t->o.batch_global ? pen_size(live) : t->info.world_size;
}

/* Passes on flags that are settings of the SDK; environment and launcher override them. */
static bool open_context(trainer *t)
{
    char optim[OPTIONS_TEXT_BYTES + 8], clip[OPTIONS_TEXT_BYTES + 8], mode[32], steps[32], seed[32],
        accum[32];
    const options *o       = &t->o;
    const char *list[8]    = {optim, steps, seed, "applies_loss_scale=yes"};
    int n                  = 4;
    const int64_t in_epoch = t->train.n / o->batch;
    t->steps               = o->steps ? o->steps : o->epochs * in_epoch;

    snprintf(optim, sizeof optim, "optim=%s", o->optim);
    snprintf(steps, sizeof steps, "steps=%lld", (long long)t->steps);
    snprintf(seed, sizeof seed, "seed=%llu", (unsigned long long)o->seed);
    snprintf(mode, sizeof mode, "mode=%s", o->mode ? o->mode : "");
    snprintf(clip, sizeof clip, "clip=%s", o->clip ? o->clip : "");
    snprintf(accum, sizeof accum, "accum=%s", o->accum ? o->accum : "");
    if (o->mode) list[n++] = mode;
    if (o->accum) list[n++] = accum;
    if (o->clip) list[n++] = clip;

    TRY(pen_init(list, &t->ctx));
    TRY(pen_info_get(t->ctx, &t->info));
    t->is_elastic = (t->info.caps & PEN_CAP_ELASTIC) != 0;
    look_at_members(t);
    report_init(&t->report, t->info.rank == 0, o->json);
    return epoch_init(&t->epoch, in_epoch) || fail("no memory for the figures of an epoch");
}

static bool open_file(FILE **file, const char *path)
{
    if (!path) return true;
    *file = fopen(path, "w");
    return *file || fail("cannot write %s: %s", path, strerror(errno));
}

/* If rank 0 may be gone by then, the writer of the result is known only at the end. */
static bool open_files(trainer *t)
{
    if (t->info.rank != 0) return true;
    if (!open_file(&t->loss_log, t->o.loss_log) || !open_file(&t->curve, t->o.curve)) return false;
    return t->is_elastic || open_file(&t->out, t->o.out);
}

/* First of n samples in the share at this position. */
static int64_t share_start(const trainer *t, int64_t n, int position)
{
    return n * position / t->shares;
}

static bool open_model(trainer *t)
{
    const model_ops *ops = t->o.model;
    const size_t bytes   = model_values(ops) * sizeof(float);
    const int64_t most   = t->o.batch_global ? 1 : t->info.world_size;
    const int64_t share  = t->o.batch / most + 1;

    t->param = pen_alloc(t->ctx, bytes, PEN_HOST);
    t->grad  = pen_alloc(t->ctx, bytes, PEN_HOST);
    if (!t->param || !t->grad) return fail("%s", pen_last_error(NULL));
    t->order       = malloc((size_t)t->train.n * sizeof *t->order);
    t->order_epoch = -1;
    const int rows = (int)(share > EVAL_ROWS ? share : EVAL_ROWS);
    if (!t->order || !model_init(&t->model, ops, rows, t->param, t->grad))
        return fail("no memory for a batch of %lld images", (long long)t->o.batch);
    model_start(&t->model, t->info.seed);
    return true;
}

static bool register_tensors(trainer *t)
{
    for (int i = 0; i < t->o.model->tensor_count; i++) {
        const model_tensor *tensor = &t->o.model->tensors[i];
        pen_tensor_desc desc       = {
                  .name  = tensor->name,
                  .ndim  = tensor->ndim,
                  .param = t->model.param[i],
                  .grad  = t->model.grad[i],
                  .flags = tensor->ndim == 1 ? PEN_NO_DECAY : 0, /* biases */
        };
        memcpy(desc.shape, tensor->shape, (size_t)tensor->ndim * sizeof *desc.shape);
        TRY(pen_register(t->ctx, &desc, &t->tensors[i]));
    }
    TRY(pen_commit(t->ctx));
    TRY(pen_info_get(t->ctx, &t->info)); /* step: where a restored run continues */
    return true;
}

/* Workers of one host share its cores; threads that wait for a core cost more than they compute.  OMP_NUM_THREADS,
 * which OpenBLAS has already read, may ask for fewer: the number of threads decides the last bits of a product. */
static int share_cores(const trainer *t)
{
    cpu_set_t cores;
    const int mates = t->info.local_world_size > 0 ? t->info.local_world_size : 1;
    const int most  = openblas_get_num_threads();
    int n = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) / mates : 1;
    if (n > most) n = most;
    openblas_set_num_threads(n > 1 ? n : 1);
    return n > 1 ? n : 1;
}

static void introduce(trainer *t)
{
    const model_ops *ops = t->o.model;
    const int threads    = share_cores(t);
    char values[32];
    report_line(&t->report, "%s %s: %s parameters in %d tensors", ops->name, ops->doc,
                report_grouped((int64_t)model_values(ops), values), ops->tensor_count);
    report_line(
        &t->report, "%s: %lld images a step, %d worker%s with %d BLAS thread%s each (%s kernels)",
        t->info.mode, (long long)t->o.batch, t->info.world_size, t->info.world_size == 1 ? "" : "s",
        threads, threads == 1 ? "" : "s", openblas_get_corename());
    report_head(&t->report, t->info.servers > 0);
}

static bool trainer_open(trainer *t)
{
    if (!load_data(t) || !open_context(t) || !open_files(t) || !open_model(t) ||
        !register_tensors(t))
        return false;
    introduce(t);
    return true;
}

/* This rank's share of the step's batch: its first sample in the epoch's order, and the number of samples. */
static int find_share(trainer *t, int64_t index, int64_t *at)
{
    const int64_t epoch_number = index / t->epoch.steps,
                  first        = index % t->epoch.steps * t->o.batch;
    const int64_t from         = share_start(t, t->o.batch, t->position),
                  to = share_start(t, t->o.batch, t->position + 1), n = to - from;
    if (t->order_epoch != epoch_number)
        data_shuffle(t->order, t->train.n, t->info.seed, epoch_number);
    t->order_epoch = epoch_number;
    *at            = first + from;
    if (*at + n > t->train.n)
        *at = (*at + n) % (t->train.n - n + 1); /* a batch has fewer samples than shares */
    return (int)n;
}

/* The SDK records a failure; pen_step_end() returns it. */
static void send_gradient(void *user, int tensor)
{
    trainer *t = user;
    pen_ready(t->ctx, t->tensors[tensor], PEN_ALL);
}

/* Micro-batch m of the share, scaled so that the parts sum to the gradient of the share's mean.  Its loss is added to
 * *loss, which is sent with the gradients. */
static void train_part(trainer *t, const pen_step *step, int64_t at, int n, int m, double *loss)
{
    const int from    = (int)((int64_t)n * m / step->accum),
              to      = (int)((int64_t)n * (m + 1) / step->accum);
    const double part = n > 0 ? (double)(to - from) / n : 0;
    data_gather(&t->train, t->order + at + from, to - from, t->model.images, t->model.labels);
    pen_mark(t->ctx, "forward", 1); /* for `penstock run --trace FILE` */
    *loss += model_forward(&t->model, to - from, step->loss_scale * part);
    pen_mark(t->ctx, "forward", 0);
    pen_step_scalar(t->ctx, "loss", *loss);
    pen_step_scalar(t->ctx, "images", n);
    pen_mark(t->ctx, "backward", 1);
    model_backward(&t->model, to - from, send_gradient, t);
    pen_mark(t->ctx, "backward", 0);
}

static void dawdle(const trainer *t)
{
    if (t->o.slow_ms == 0 || t->o.slow_rank != t->info.rank) return;
    struct timespec left = {.tv_sec  = t->o.slow_ms / 1000,
                            .tv_nsec = t->o.slow_ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

static double stat_value(trainer *t, const char *name, pen_status *status)
{
    double value       = 0.0;
    const pen_status s = pen_stat(t->ctx, name, &value);
    if (s != PEN_OK && *status == PEN_OK) *status = s;
    return value;
}

static bool start_epoch(trainer *t, int64_t index)
{
    pen_status s = PEN_OK;
    epoch_start(&t->epoch, index);
    t->epoch.push_bytes = stat_value(t, "push.bytes", &s);
    t->epoch.pull_bytes = stat_value(t, "pull.bytes", &s);
    TRY(s);
    return true;
}

static bool train_step(trainer *t, pen_step *step)
{
    const double begun = epoch_clock();
    int64_t at;
    if (step->flags & PEN_STEP_MEMBERS) look_at_members(t);
    const int n    = find_share(t, step->index, &at);
    double loss    = 0, sum, images;
    step->weight   = (double)n * t->shares / (double)t->o.batch;
    step->lr_scale = t->o.decay(step->index, t->steps);
    for (int m = 0; m < step->accum; m++) {
        TRY(pen_step_micro(t->ctx, m));
        train_part(t, step, at, n, m, &loss);
    }
    dawdle(t);
    TRY(pen_step_end(t->ctx, step));

    TRY(pen_step_total(t->ctx, "loss", PEN_SUM, &sum));
    TRY(pen_step_total(t->ctx, "images", PEN_SUM, &images));
    epoch_add(&t->epoch, step->index, sum / images, epoch_clock() - begun);
    if (t->position == 0) TRY(pen_metric(t->ctx, "loss", sum / images)); /* instead of the sum */
    t->result.clipped += step->clip < 1.0;
    t->result.steps = step->index + 1;
    report_bar(&t->report, t->result.steps, t->steps);
    return true;
}

/* Under ps-ssp and ps-async the workers' copies differ: all workers stop, then pull the same values. */
static bool meet(trainer *t)
{
    const char *mode = t->info.mode;
    if (strcmp(mode, "ps-ssp") != 0 && strcmp(mode, "ps-async") != 0) return true;
    if (!t->is_elastic)
        TRY(pen_barrier(pen_world(t->ctx), &(pen_opts){.label = "end of epoch"}, NULL));
    for (int i = 0; i < t->o.model->tensor_count; i++)
        TRY(pen_pull(t->ctx, t->tensors[i], PEN_ALL, NULL, NULL, NULL));
    return true;
}

static double count_right(trainer *t, int64_t from, int64_t to)
{
    uint32_t index[EVAL_ROWS];
    int right = 0;
    for (int64_t at = from; at < to; at += EVAL_ROWS) {
        const int n = (int)(to - at < EVAL_ROWS ? to - at : EVAL_ROWS);
        for (int i = 0; i < n; i++) index[i] = (uint32_t)(at + i);
        data_gather(&t->test, index, n, t->model.images, t->model.labels);
        right += model_count_right(&t->model, n);
    }
    return right;
}

static bool write_losses(trainer *t)
{
    if (t->loss_log && !epoch_write_loss(&t->epoch, t->loss_log, 17))
        return fail("cannot write %s: %s", t->o.loss_log, strerror(errno));
    if (t->curve && !epoch_write_loss(&t->epoch, t->curve, 6))
        return fail("cannot write %s: %s", t->o.curve, strerror(errno));
    return true;
}

static bool show_epoch(trainer *t, double seconds, const double moved[2])
{
    const epoch *e       = &t->epoch;
    const double images  = (double)((e->end - e->first) * t->o.batch);
    const report_epoch x = {
        .epoch         = e->number + 1,
        .epochs        = (t->steps + e->steps - 1) / e->steps,
        .train_loss    = t->result.train_loss,
        .test_accuracy = t->result.test_accuracy,
        .images_per_s  = images / seconds,
        .push_gbps     = moved[0] / seconds / 1e9,
        .pull_gbps     = moved[1] / seconds / 1e9,
        .step_p50_s    = epoch_step_quantile(e, 0.50),
        .step_p99_s    = epoch_step_quantile(e, 0.99),
    };
    t->result.seconds += seconds;
    t->images += images;
    if (epoch_is_empty(e)) return true;
    report_row(&t->report, &x);
    TRY(pen_metric(t->ctx, "images_per_s", x.images_per_s));
    return true;
}

/* Collective: sums bytes and correct answers over all ranks. */
static bool gather_figures(trainer *t, double sums[3])
{
    sums[2] = count_right(t, share_start(t, t->test.n, t->position),
                          share_start(t, t->test.n, t->position + 1));
    TRY(pen_all_reduce(pen_world(t->ctx), sums, sums, 3, PEN_F64, PEN_SUM,
                       &(pen_opts){.label = "accuracy"}, NULL));
    return true;
}

static bool end_epoch(trainer *t)
{
    if (!meet(t)) return false;
    const double seconds = epoch_clock() - t->epoch.begun_s; /* the rest is not training */
    pen_status s         = PEN_OK;
    double sums[3]       = {
              stat_value(t, "push.bytes", &s) - t->epoch.push_bytes,
              stat_value(t, "pull.bytes", &s) - t->epoch.pull_bytes,
    };
    TRY(s);
    if (!t->is_elastic && !gather_figures(t, sums)) return false;
    if (t->is_elastic && t->position == 0) sums[2] = count_right(t, 0, t->test.n);

    t->result.train_loss    = epoch_mean_loss(&t->epoch);
    t->result.test_accuracy = sums[2] / t->test.n;
    return write_losses(t) && show_epoch(t, seconds, sums) && start_epoch(t, t->result.steps);
}

static bool train(trainer *t)
{
    pen_step step;
    pen_status s;
    t->result.steps = t->info.step;
    if (!start_epoch(t, t->info.step)) return false;
    for (double asked = epoch_clock(); (s = pen_step_begin(t->ctx, &step)) == PEN_OK;
         asked        = epoch_clock()) {
        if (step.index / t->epoch.steps != t->epoch.number && !start_epoch(t, step.index))
            return false;
        if (!train_step(t, &step)) return false;
        t->result.step_max_s = fmax(t->result.step_max_s, epoch_clock() - asked);
        if (epoch_is_whole(&t->epoch) && !end_epoch(t)) return false;
    }
    if (s != PEN_END) return fail("%s", pen_last_error(NULL));
    const bool is_new = t->result.seconds == 0.0; /* nothing left to train: still evaluate */
    return (epoch_is_empty(&t->epoch) && !is_new) || end_epoch(t);
}

/* A worker asked to leave before the end has no result. */
static bool is_reporter(const trainer *t)
{
    if (!t->is_elastic) return t->info.rank == 0;
    return t->position == 0 && t->result.steps == t->steps;
}

static bool write_result(trainer *t)
{
    if (!is_reporter(t)) return true;
    if (t->o.json && !report_write_json(&t->result, stdout))
        return fail("cannot write to stdout: %s", strerror(errno));
    if (t->is_elastic && !open_file(&t->out, t->o.out)) return false;
    if (t->out && !report_write_json(&t->result, t->out))
        return fail("cannot write %s: %s", t->o.out, strerror(errno));
    return true;
}

static bool finish(trainer *t)
{
    report_result *r = &t->result;
    TRY(pen_digest(t->ctx, &r->params_crc32c));
    r->images_per_s = r->seconds > 0 ? t->images / r->seconds : 0;
    r->epochs       = (r->steps + t->epoch.steps - 1) / t->epoch.steps;
    r->batch        = t->o.batch;
    r->seed         = t->info.seed;
    r->mode         = t->info.mode;
    r->model        = t->o.model->name;
    r->optim        = t->o.optim;
    r->workers      = t->is_elastic ? pen_size(pen_world(t->ctx)) : t->info.world_size;
    r->servers      = t->info.servers;
    report_end(&t->report, r);
    if (!write_result(t)) return false;
    TRY(pen_finalize(t->ctx));
    t->ctx = NULL;
    return true;
}

static void close_file(FILE *file)
{
    if (file) fclose(file); /* every row was flushed and checked */
}

/* After a failure the context stays open, so that others see this rank as lost, not as leaving in order. */
static void trainer_close(trainer *t)
{
    close_file(t->loss_log);
    close_file(t->curve);
    close_file(t->out);
    epoch_fini(&t->epoch);
    model_fini(&t->model);
    free(t->order);
    data_free(&t->train);
    data_free(&t->test);
    if (t->ctx) return;
    pen_free(t->param);
    pen_free(t->grad);
}

int main(int argc, char **argv)
{
    trainer t = {0};
    options_parse(&t.o, argc, argv);
    const bool ok = trainer_open(&t) && train(&t) && finish(&t);
    trainer_close(&t);
    return ok ? 0 : 1;
}
