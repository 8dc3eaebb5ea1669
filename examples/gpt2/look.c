/* look.c - evaluates the model: on held-out text, and by samples. */
#include "rng.h"
#include "trainer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- validation ------------------------------------------------------------------------------ */
typedef struct {
    int64_t total, looked; /* sequences in total, and those evaluated, spread evenly */
    int64_t from, to;      /* this rank's part */
    /* batches: the same number on all ranks, because the SDK may gather values for each */
    int64_t rounds;
} share;

static share divide(const trainer *t)
{
    const int ranks = t->is_elastic ? 1 : t->shares, rank = t->is_elastic ? 0 : t->position;
    share s = {.total = t->held_order.sequences};
    s.looked =
        t->o.eval_sequences > 0 && t->o.eval_sequences < s.total ? t->o.eval_sequences : s.total;
    s.from   = s.looked * rank / ranks;
    s.to     = s.looked * (rank + 1) / ranks;
    s.rounds = ((s.looked + ranks - 1) / ranks + TRAINER_LOOK_BATCH - 1) / TRAINER_LOOK_BATCH;
    return s;
}

/* Rows without a sequence repeat the first one; their targets are ignored. */
static bool fill(trainer *t, const share *s, int64_t from, int *count)
{
    *count = 0;
    for (int row = 0; row < TRAINER_LOOK_BATCH; row++) {
        const int64_t number = from + row;
        const bool is_mine   = number < s->to;
        const int64_t at     = is_mine ? number * s->total / s->looked : 0;
        if (!trainer_read(t, &t->data.held, reader_start(&t->held_order, at), row)) return false;
        for (int i = 0; !is_mine && i < t->o.length; i++)
            t->targets[(size_t)row * (size_t)t->o.length + (size_t)i] = -1;
        *count += is_mine;
    }
    return true;
}

bool look_validate(trainer *t)
{
    t->held_at = t->result.steps;
    if (t->held_order.sequences == 0 || (t->is_elastic && t->position != 0)) return true;
    const share s = divide(t);
    double sum    = 0;
    for (int64_t i = 0; i < s.rounds; i++) {
        int count;
        double loss = 0;
        if (!fill(t, &s, s.from + i * TRAINER_LOOK_BATCH, &count)) return false;
        TRY_PASSES(t, passes_loss(&t->passes, t->tokens, t->targets, TRAINER_LOOK_BATCH, &loss));
        if (count > 0) sum += loss * count;
    }
    if (!t->is_elastic)
        TRY(pen_all_reduce(pen_world(t->ctx), &sum, &sum, 1, PEN_F64, PEN_SUM,
                           &(pen_opts){.label = "held-out loss"}, NULL));
    t->held_loss = sum / (double)s.looked;
    TRY(pen_metric(t->ctx, "held_loss", t->held_loss));
    return true;
}

/* ---- sampling -------------------------------------------------------------------------------- */
typedef struct {
    int32_t *token;  /* [length] the model's input */
    int count, from; /* its length; the model has seen those before `from` */
    float *logits, *scratch;
    uint8_t *text;
    size_t bytes, room;
} writer;

static bool open_writer(trainer *t, writer *w)
{
    const size_t vocab = (size_t)t->o.config.vocab;
    *w                 = (writer){.token   = calloc((size_t)t->o.length, sizeof *w->token),
                                  .logits  = calloc(vocab, sizeof *w->logits),
                                  .scratch = calloc(vocab, sizeof *w->scratch)};
    uint16_t *prompt;
    size_t n;
    if (!w->token || !w->logits || !w->scratch ||
        !tokenizer_encode(t->tokenizer, (const uint8_t *)t->o.prompt, strlen(t->o.prompt), &prompt,
                          &n))
        return report_fail("no memory for a sample");
    const size_t kept = n < (size_t)t->o.length ? n : (size_t)t->o.length - 1;
    for (size_t i = 0; i < kept; i++) w->token[w->count++] = prompt[n - kept + i];
    if (w->count == 0) w->count = 1; /* token 0 */
    free(prompt);
    return true;
}

static void close_writer(writer *w)
{
    free(w->token);
    free(w->logits);
    free(w->scratch);
    free(w->text);
}

/* If no position is left, drops the older half. */
static void append(writer *w, int length, int token)
{
    w->from = w->count;
    if (w->count == length) {
        w->count = length / 2;
        memmove(w->token, w->token + length - w->count, (size_t)w->count * sizeof *w->token);
        w->from = 0;
    }
    w->token[w->count++] = token;
}

static bool keep(writer *w, const uint8_t *bytes, size_t n)
{
    if (w->bytes + n > w->room) {
        const size_t room = w->room * 2 + n + 4096;
        uint8_t *grown    = realloc(w->text, room);
        if (!grown) return report_fail("no memory for a sample");
        w->text = grown;
        w->room = room;
    }
    memcpy(w->text + w->bytes, bytes, n);
    w->bytes += n;
    return true;
}

static bool write_tokens(trainer *t, writer *w)
{
    rng r = rng_seeded(t->o.sample_seed, 0x73616d706c65);
    for (int64_t i = 0; i < t->o.sample; i++) {
        size_t n;
        TRY_PASSES(t, passes_logits(&t->passes, w->token, w->count, w->from, w->logits));
        const int token =
            sample_draw(w->logits, t->o.config.vocab, &t->o.rule, rng_unit(&r), w->scratch);
        const uint8_t *bytes = tokenizer_bytes(t->tokenizer, token, &n);
        if (!keep(w, bytes, n)) return false;
        append(w, t->o.length, token);
    }
    return true;
}

/* Removes terminal escapes before output to a terminal. */
static void show(trainer *t, const writer *w)
{
    FILE *out = t->report.text;
    if (!out) return;
    report_line(&t->report, "---- sample, temperature %g, top-k %d, seed %llu",
                t->o.rule.temperature, t->o.rule.top_k, (unsigned long long)t->o.sample_seed);
    for (size_t i = 0; i < w->bytes; i++) {
        const uint8_t c = w->text[i];
        fputc(c == '\n' || (c >= ' ' && c != 0x7f) ? c : '?', out);
    }
    report_line(&t->report, "\n----");
}

/* With sharded values all ranks gather them together: all generate the same text, and rank 0 shows it. */
bool look_sample(trainer *t)
{
    if (t->o.sample == 0 || !t->tokenizer) return true;
    if (!t->passes.plan.is_held && !(t->is_elastic ? t->position == 0 : t->info.rank == 0))
        return true;
    writer w;
    bool ok = open_writer(t, &w) && write_tokens(t, &w);
    if (ok) show(t, &w);
    if (ok && t->sample_out &&
        (fwrite(w.text, 1, w.bytes, t->sample_out) != w.bytes || fflush(t->sample_out) != 0))
        ok = report_fail("cannot write %s: %s", t->o.sample_out, strerror(errno));
    close_writer(&w);
    return ok;
}
