/* trainer.c - the steps: what a rank reads, computes and reports.
 *
 * DESIGN  The data of a step is a pure function of (step, micro-batch, rank, number of ranks).  So a killed run that
 * continues from a snapshot needs no state of its own, and its losses are the same as without the interruption.  A step
 * has --batch sequences over all ranks; each rank computes an equal share, in --grad-accum parts, and gives its mean
 * gradient.  Losses are sent with the gradients.  In elastic jobs (PEN_CAP_ELASTIC), a share keeps its size and the
 * batch grows and shrinks with the ranks; such jobs use no collectives, and the first live rank evaluates alone.
 */
#include "trainer.h"
#include "peak.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEP_ROOM_MAX = 1 << 22 };

/* Reads the live ranks between two steps; all ranks see the same. */
static void look_at_members(trainer *t)
{
    pen_group *live = pen_world(t->ctx);
    t->position     = pen_rank(live);
    t->shares       = pen_size(live);
}

bool trainer_begin(trainer *t)
{
    const int64_t rows = t->o.steps / 20;
    if (!t->o.log_every)
        t->o.log_every = rows < 1 ? 1 : rows > OPTIONS_ROW_MAX ? OPTIONS_ROW_MAX : rows;
    const size_t room =
        (size_t)(t->micro_batch > TRAINER_LOOK_BATCH ? t->micro_batch : TRAINER_LOOK_BATCH) *
        (size_t)t->o.length;
    t->row.loss          = calloc((size_t)t->o.log_every, sizeof *t->row.loss);
    t->tokens            = calloc(room, sizeof *t->tokens);
    t->targets           = calloc(room, sizeof *t->targets);
    t->step_room         = t->o.steps < STEP_ROOM_MAX ? t->o.steps : STEP_ROOM_MAX;
    t->step_s            = calloc((size_t)t->step_room + 1, sizeof *t->step_s);
    t->held_loss         = NAN;
    t->held_at           = -1;
    t->result.train_loss = NAN;
    if (!t->row.loss || !t->tokens || !t->targets || !t->step_s)
        return report_fail("no memory for a batch");

    const bool shuffled =
        t->o.shuffle == OPTIONS_YES || (t->o.shuffle == OPTIONS_AUTO && !t->o.tokens);
    if (!reader_order_init(&t->order, t->data.train.n, t->o.length, shuffled, t->info.seed))
        return report_fail(
            "%zu tokens to train on are too few for sequences of %d, or too many to shuffle",
            t->data.train.n, t->o.length);
    if (t->data.held.n > 0 &&
        !reader_order_init(&t->held_order, t->data.held.n, t->o.length, false, 0))
        return report_fail("%zu tokens held out are too few for sequences of %d", t->data.held.n,
                           t->o.length);
    look_at_members(t);
    return true;
}

void trainer_end(trainer *t)
{
    reader_order_fini(&t->order);
    reader_order_fini(&t->held_order);
    free(t->row.loss);
    free(t->tokens);
    free(t->targets);
    free(t->step_s);
}

bool trainer_read(trainer *t, const reader_tokens *from, size_t at, int row)
{
    const size_t to = (size_t)row * (size_t)t->o.length;
    const int64_t bad =
        reader_copy(from, at, t->o.length, t->o.config.vocab, t->tokens + to, t->targets + to);
    if (bad < 0) return true;
    return report_fail(
        "token %lld of the file is %d, and there are %d tokens: give --vocab, or another --preset",
        (long long)bad, from->token[bad], t->o.config.vocab);
}

double trainer_bits(const trainer *t, double nats)
{
    const double bits = nats / log(2);
    return t->data.held_bytes > 0 ? bits * (double)t->data.held.n / t->data.held_bytes : bits;
}

/* ---- a row of the report --------------------------------------------------------------------- */
static void start_row(trainer *t, int64_t index)
{
    t->row.first = t->row.end = index;
    t->row.seconds = t->row.tokens = 0;
}

static bool write_losses(trainer *t, FILE *file, const char *path, int digits)
{
    bool ok = true;
    for (int64_t i = t->row.first; file && i < t->row.end; i++)
        ok = ok &&
             fprintf(file, "%lld %.*g\n", (long long)i, digits, t->row.loss[i - t->row.first]) > 0;
    return (ok && (!file || fflush(file) == 0)) ||
           report_fail("cannot write %s: %s", path, strerror(errno));
}

/* What was decided about the steps before `end`.  On a GPU the newest one may still be in progress: asking for it waits. */
static bool count_decided(trainer *t, int64_t end)
{
    for (; t->undecided < end; t->undecided++) {
        pen_step step = {.index = t->undecided};
        TRY(pen_step_decided(t->ctx, &step));
        t->row.grad_norm = step.grad_norm;
        t->result.clipped += step.clip < 1.0;
        t->result.skipped += step.outcome != PEN_APPLIED;
    }
    return true;
}

/* Faster than the peak: something else ran while it was measured, so it is measured again. */
double trainer_mfu(trainer *t, double tokens_per_s)
{
    const double flops = tokens_per_s * gpt2_flops_per_token(&t->o.config, t->o.length) / t->shares;
    for (int tries = 0; tries < 3 && flops > t->peak && t->peak > 0; tries++) {
        const double again = passes_peak(&t->passes);
        if (again > t->peak) t->peak = again;
    }
    return flops <= t->peak ? flops / t->peak : NAN;
}

static bool end_row(trainer *t)
{
    trainer_row *row = &t->row;
    double loss      = 0;
    if (!count_decided(t, row->end)) return false;
    for (int64_t i = row->first; i < row->end; i++) loss += row->loss[i - row->first];
    loss /= (double)(row->end - row->first);
    const double speed   = row->tokens / row->seconds;
    t->result.train_loss = loss;
    t->result.seconds += row->seconds;
    t->trained += row->tokens;
    report_show(&t->report,
                &(report_row){
                    .step         = row->end,
                    .steps        = t->o.steps,
                    .loss         = loss,
                    .bits         = trainer_bits(t, loss),
                    .held_bits    = t->held_at == row->end ? trainer_bits(t, t->held_loss) : NAN,
                    .rate         = row->rate,
                    .grad_norm    = row->grad_norm,
                    .tokens_per_s = speed,
                    .mfu          = trainer_mfu(t, speed),
                });
    TRY(pen_metric(t->ctx, "tokens_per_s", speed));
    const bool ok =
        write_losses(t, t->loss_log, t->o.loss_log, 17) && write_losses(t, t->curve, t->o.curve, 6);
    start_row(t, row->end);
    return ok;
}

/* ---- a step ---------------------------------------------------------------------------------- */
static bool train_parts(trainer *t, const pen_step *step)
{
    double loss = 0;
    for (int m = 0; m < step->accum; m++) {
        const int64_t first =
            reader_first(step->index, m, step->accum, t->position, t->shares, t->micro_batch);
        for (int i = 0; i < t->micro_batch; i++)
            if (!trainer_read(t, &t->data.train, reader_start(&t->order, first + i), i))
                return false;
        TRY_PASSES(t, passes_train(&t->passes, step, m, t->tokens, t->targets, &loss));
    }
    return true;
}

static void dawdle(const trainer *t)
{
    struct timespec left = {.tv_sec  = t->o.slow_ms / 1000,
                            .tv_nsec = t->o.slow_ms % 1000 * 1000000};
    while (t->o.slow_ms && nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

static void note_step(trainer *t, const pen_step *step, double loss, double seconds)
{
    trainer_row *row                    = &t->row;
    row->loss[step->index - row->first] = loss;
    row->end                            = step->index + 1;
    row->seconds += seconds;
    row->tokens += (double)t->micro_batch * step->accum * t->shares * t->o.length;
    row->rate            = step->lr * step->lr_scale;
    t->result.steps      = step->index + 1;
    t->result.step_max_s = fmax(t->result.step_max_s, seconds);
    if (t->step_count < t->step_room) t->step_s[t->step_count++] = (float)seconds;
}

static bool train_step(trainer *t, pen_step *step)
{
    const double begun = peak_clock();
    double loss;
    if (step->flags & PEN_STEP_MEMBERS) look_at_members(t);
    step->lazy = 1;
    if (!train_parts(t, step)) return false;
    dawdle(t);
    TRY(pen_step_end(t->ctx, step));
    TRY(pen_step_total(t->ctx, "loss", PEN_AVG, &loss));
    note_step(t, step, loss, peak_clock() - begun);
    if (!count_decided(t, step->index)) return false;
    report_bar(&t->report, t->result.steps, t->o.steps);
    return true;
}

static bool is_due(int64_t done, int64_t every)
{
    return every > 0 && done % every == 0;
}

static bool after_step(trainer *t)
{
    const int64_t done = t->result.steps;
    const bool is_last = done == t->o.steps, looks = is_last || is_due(done, t->o.eval_every);
    if (looks && !look_validate(t)) return false;
    if (!is_last && !looks && !is_due(done, t->o.log_every)) return true;
    return end_row(t);
}

bool trainer_run(trainer *t)
{
    pen_step step;
    pen_status s;
    t->result.steps = t->result.from = t->info.step;
    start_row(t, t->info.step);
    t->undecided = t->info.step;
    if (t->o.steps == 0) return look_validate(t);
    while ((s = pen_step_begin(t->ctx, &step)) == PEN_OK) {
        if (step.index != t->row.end) { /* joined late, or went back */
            start_row(t, step.index);
            t->undecided = step.index;
        }
        if (!train_step(t, &step) || !after_step(t)) return false;
    }
    if (s != PEN_END) return report_fail("%s", pen_last_error(NULL));
    if (t->row.end > t->row.first && !end_row(t)) return false;
    return t->held_at == t->result.steps || look_validate(t);
}
