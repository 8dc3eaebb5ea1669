/* main.c - trains GPT-2 with Penstock: sets up a run, trains, and reports the result.
 *
 *     gpt2 --preset tiny                                                alone
 *     penstock run --nproc-per-node 2 --servers 2 gpt2 --preset tiny    two workers, two servers
 *     penstock run --nproc-per-node 4 --mode zero3 gpt2 --preset 10m    four workers, each a quarter of the state
 *     gpt2 --preset 124m --precision bf16 --device cuda                 on a GPU
 */
#include "trainer.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { PAD = 128, PAD_FROM = 1024 };

/* ---- data ------------------------------------------------------------------------------------ */
static bool load_text(trainer *t)
{
    text whole;
    char why[TEXT_WHY_BYTES];
    if (!text_load(&whole, t->o.data, why)) return report_fail("%s", why);
    const bool ok = reader_encode(&t->data, &whole, t->tokenizer, why) || report_fail("%s", why);
    text_free(&whole);
    return ok;
}

/* The vocabulary is the tokenizer's; a large one is padded, because matrix products run faster at round sizes. */
static void fit_vocabulary(gpt2_config *c, int vocab)
{
    if (vocab == c->vocab) return;
    c->vocab        = vocab;
    c->vocab_padded = vocab < PAD_FROM ? vocab : (vocab + PAD - 1) / PAD * PAD;
}

static bool load_data(trainer *t)
{
    char why[READER_WHY_BYTES];
    const bool has_tokenizer = !t->o.tokens || t->o.vocab;
    if (has_tokenizer) {
        if (!tokenizer_open(&t->tokenizer, t->o.vocab, t->o.merges, why))
            return report_fail("%s", why);
        fit_vocabulary(&t->o.config, tokenizer_size(t->tokenizer));
    }
    if (!t->o.tokens) return load_text(t);
    return reader_map(&t->data, t->o.tokens, t->o.held_tokens, why) || report_fail("%s", why);
}

/* ---- context --------------------------------------------------------------------------------- */
typedef struct {
    char text[12][OPTIONS_TEXT_BYTES + 32];
    const char *list[13];
    int n;
} settings;

static void add(settings *s, const char *name, const char *value)
{
    if (!value) return;
    snprintf(s->text[s->n], sizeof s->text[s->n], "%s=%s", name, value);
    s->list[s->n] = s->text[s->n];
    s->n++;
}

/* Passes on flags that are settings of the SDK; environment, files and launcher override them. */
static bool open_context(trainer *t)
{
    settings s       = {.n = 0};
    const options *o = &t->o;
    char steps[32], seed[32], schedule[128];
    snprintf(steps, sizeof steps, "%lld", (long long)(o->steps ? o->steps : 1)); /* 0 never ends */
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
    snprintf(schedule, sizeof schedule,
             "cosine warmup_num_steps=%lld total_num_steps=%lld final_lr_frac=0.1",
             (long long)(o->steps / 40 + 1), (long long)o->steps + 1);
    add(&s, "steps", steps);
    add(&s, "seed", seed);
    add(&s, "optim", o->optim);
    add(&s, "clip", o->clip);
    add(&s, "accum", o->accum);
    add(&s, "mode", o->mode);
    add(&s, "precision", o->precision);
    add(&s, "applies_loss_scale", "yes");
    add(&s, "device", o->device);
    add(&s, "schedule", o->schedule ? o->schedule : schedule);
    TRY(pen_init(s.list, &t->ctx));
    TRY(pen_info_get(t->ctx, &t->info));
    t->is_elastic = (t->info.caps & PEN_CAP_ELASTIC) != 0;
    report_init(&t->report, t->info.rank == 0, o->json);
    return true;
}

/* A configuration file may set the sequences of a micro-batch; otherwise the flag's are divided. */
static bool plan_batch(trainer *t)
{
    const int64_t parts = (int64_t)t->info.world_size * t->info.accum;
    if (t->info.micro_batch > 0) t->o.batch = t->info.micro_batch * parts;
    if (t->o.batch % parts != 0)
        return report_fail(
            "--batch %lld does not divide by %d workers x %d micro-batches: %lld or %lld does",
            (long long)t->o.batch, t->info.world_size, t->info.accum,
            (long long)(t->o.batch < parts ? parts : t->o.batch / parts * parts),
            (long long)(t->o.batch / parts + 1) * parts);
    if (t->o.batch / parts > 65536)
        return report_fail("a micro-batch of %lld sequences is too large: give --grad-accum",
                           (long long)(t->o.batch / parts));
    t->micro_batch = (int)(t->o.batch / parts);
    return true;
}

static bool open_file(FILE **file, const char *path)
{
    if (!path) return true;
    *file = fopen(path, "w");
    return *file || report_fail("cannot write %s: %s", path, strerror(errno));
}

/* If rank 0 may be gone by then, the writer of the result is known only at the end. */
static bool open_files(trainer *t)
{
    if (t->info.rank != 0) return true;
    if (!open_file(&t->loss_log, t->o.loss_log) || !open_file(&t->curve, t->o.curve)) return false;
    return t->is_elastic ||
           (open_file(&t->out, t->o.out) && open_file(&t->sample_out, t->o.sample_out));
}

/* ---- network --------------------------------------------------------------------------------- */
/* Workers of one host share its cores; threads that wait for a core cost more than they compute. */
static int share_cores(const trainer *t)
{
    cpu_set_t cores;
    const int mates = t->info.local_world_size > 0 ? t->info.local_world_size : 1;
    const int n = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) / mates : 1;
    return n > 1 ? n : 1;
}

/* If parameters or gradients are sharded, only the SDK can drop what this rank does not need. */
static bool is_held(const trainer *t)
{
    static const char *const sharded[] = {"zero2", "zero3", "full_shard", "shard_grad_op",
                                          "hybrid_shard"};
    if (t->o.starts_here) return false;
    if (t->o.held != OPTIONS_AUTO) return t->o.held == OPTIONS_YES;
    for (size_t i = 0; i < sizeof sharded / sizeof *sharded; i++)
        if (strncmp(t->info.mode, sharded[i], strlen(sharded[i])) == 0) return true;
    return false;
}

/* The SDK reports where values lie, since the setting need not come from a flag. */
static const backend *choose_backend(const trainer *t, const char **why)
{
    return t->info.device < 0 ? &backend_cpu : backend_cuda(t->o.plugin, why);
}

static bool share_peak(trainer *t)
{
    t->peak = t->passes.peak;
    if (!t->is_elastic)
        TRY(pen_all_reduce(pen_world(t->ctx), &t->peak, &t->peak, 1, PEN_F64, PEN_AVG,
                           &(pen_opts){.label = "peak"}, NULL));
    return true;
}

static bool open_network(trainer *t)
{
    const char *why;
    const passes_plan plan = {
        .config      = t->o.config,
        .batch       = t->micro_batch,
        .length      = t->o.length,
        .look_batch  = TRAINER_LOOK_BATCH,
        .threads     = share_cores(t),
        .network     = choose_backend(t, &why),
        .device      = t->info.device,
        .is_held     = is_held(t),
        .is_stacked  = t->o.is_stacked,
        .recompute   = t->o.recompute,
        .starts_here = t->o.starts_here,
        .seed        = t->info.seed,
        .import      = t->o.import,
        .precision   = t->info.precision,
    };
    if (!plan.network || !passes_open(&t->passes, t->ctx, &plan, &why))
        return report_fail("%s", why);
    TRY(pen_info_get(t->ctx, &t->info)); /* step: where a restored run continues */
    return share_peak(t);
}

/* The workers and their peak performance. */
static void introduce_workers(trainer *t)
{
    const int n = t->info.world_size, threads = t->passes.plan.threads;
    const char *workers = n == 1 ? "" : "s";
    char batch[96];
    snprintf(batch, sizeof batch, "%s: %lld sequences of %d tokens a step", t->info.mode,
             (long long)t->o.batch, t->o.length);
    if (t->info.device < 0)
        report_line(&t->report,
                    "%s, %d worker%s with %d thread%s each, %.0f GFLOP/s of sgemm in all", batch, n,
                    workers, threads, threads == 1 ? "" : "s", n * t->peak / 1e9);
    else
        report_line(&t->report,
                    "%s, %d worker%s, this one on GPU %d, %.3f TFLOP/s of matrix products in all",
                    batch, n, workers, t->info.device, n * t->peak / 1e12);
}

static void introduce(trainer *t)
{
    const gpt2_config *c = &t->o.config;
    char values[32], tokens[32];
    report_line(&t->report,
                "gpt2 %s: %d layers, %d heads, %d channels, %d tokens: %s parameters, %s",
                t->o.preset, c->layers, c->heads, c->channels, c->vocab,
                report_grouped((int64_t)gpt2_values(c), values), t->info.precision);
    report_line(&t->report, "data: %s, %s of them to train on", t->data.from,
                report_grouped((int64_t)t->data.train.n, tokens));
    introduce_workers(t);
    if (t->info.step > 0)
        report_line(&t->report, "goes on from step %lld", (long long)t->info.step);
    report_head(&t->report, t->data.held_bytes > 0);
}

/* ---- the end --------------------------------------------------------------------------------- */
static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void sum_up(trainer *t)
{
    report_result *r = &t->result;
    qsort(t->step_s, (size_t)t->step_count, sizeof *t->step_s, by_size);
    r->step_p50_s    = t->step_count ? t->step_s[t->step_count / 2] : 0;
    r->tokens_per_s  = r->seconds > 0 ? t->trained / r->seconds : 0;
    r->mfu           = trainer_mfu(t, r->tokens_per_s);
    r->peak_gflops   = t->shares * t->peak / 1e9;
    r->held_loss     = t->held_loss;
    r->held_bits     = trainer_bits(t, t->held_loss);
    r->bits_per_byte = t->data.held_bytes > 0;
    r->batch         = t->o.batch;
    r->length        = t->o.length;
    r->accum         = t->info.accum;
    r->parameters    = (int64_t)gpt2_values(&t->o.config);
    r->seed          = t->info.seed;
    r->mode          = t->info.mode;
    r->precision     = t->info.precision;
    r->device        = t->info.device < 0 ? "host" : "cuda";
    r->preset        = t->o.preset;
    r->optim         = t->o.optim;
    r->layers        = t->o.config.layers;
    r->heads         = t->o.config.heads;
    r->channels      = t->o.config.channels;
    r->vocab         = t->o.config.vocab;
    r->workers       = t->is_elastic ? t->shares : t->info.world_size;
    r->servers       = t->info.servers;
    r->threads       = t->passes.plan.threads;
}

/* A worker asked to leave before the end has no result. */
static bool is_reporter(const trainer *t)
{
    if (!t->is_elastic) return t->info.rank == 0;
    return t->position == 0 && t->result.steps == t->o.steps;
}

static bool write_result(trainer *t)
{
    if (!is_reporter(t)) return true;
    if (t->o.json && !report_write_json(&t->result, stdout))
        return report_fail("cannot write to stdout: %s", strerror(errno));
    if (t->out && !report_write_json(&t->result, t->out))
        return report_fail("cannot write %s: %s", t->o.out, strerror(errno));
    return true;
}

static bool finish(trainer *t)
{
    TRY(pen_digest(t->ctx, &t->result.params_crc32c));
    if (t->is_elastic && is_reporter(t) &&
        (!open_file(&t->out, t->o.out) || !open_file(&t->sample_out, t->o.sample_out)))
        return false;
    if (t->o.export) TRY(pen_export(t->ctx, t->o.export, NULL, NULL));
    sum_up(t);
    report_end(&t->report, &t->result);
    if (!write_result(t) || !look_sample(t)) return false;
    TRY(pen_finalize(t->ctx));
    t->ctx = NULL;
    return true;
}

static void close_file(FILE *file)
{
    if (file) fclose(file); /* every row was flushed and checked */
}

/* After a failure the context stays open, so that others see this rank as lost, not as leaving in order. */
static void close_all(trainer *t)
{
    close_file(t->loss_log);
    close_file(t->curve);
    close_file(t->out);
    close_file(t->sample_out);
    trainer_end(t);
    passes_close(&t->passes, t->ctx == NULL);
    reader_free(&t->data);
    tokenizer_free(t->tokenizer);
}

int main(int argc, char **argv)
{
    trainer t = {0};
    options_parse(&t.o, argc, argv);
    bool ok = load_data(&t) && open_context(&t) && plan_batch(&t) && open_files(&t) &&
              open_network(&t) && trainer_begin(&t);
    if (ok) introduce(&t);
    ok = ok && trainer_run(&t) && finish(&t);
    close_all(&t);
    return ok ? 0 : 1;
}
