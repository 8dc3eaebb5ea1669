/* report.c - rows, progress bar and JSON of rank 0. */
#include "report.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static const char *const erase_line = "\r\033[K";

bool report_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("gpt2: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return false;
}

void report_init(report *r, bool speaks, bool json)
{
    *r = (report){.bar_tenth = -1};
    if (!speaks) return;
    r->text    = json ? stderr : stdout;
    r->has_bar = isatty(STDERR_FILENO);
}

static void erase_bar(report *r)
{
    if (!r->has_bar || r->bar_tenth < 0) return;
    fputs(erase_line, stderr);
    r->bar_tenth = -1;
}

void report_line(report *r, const char *format, ...)
{
    if (!r->text) return;
    va_list args;
    erase_bar(r);
    va_start(args, format);
    vfprintf(r->text, format, args);
    va_end(args);
    fputc('\n', r->text);
    fflush(r->text);
}

const char *report_grouped(int64_t n, char text[32])
{
    char digits[24];
    const int count = snprintf(digits, sizeof digits, "%lld", (long long)n);
    char *to        = text;
    for (int i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0) *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return text;
}

void report_bar(report *r, int64_t done, int64_t total)
{
    static const char equals[] = "========================================";
    const int width            = (int)sizeof equals - 1;
    if (total < done) total = done;
    const int64_t tenth = done * 1000 / total;
    if (!r->has_bar || tenth == r->bar_tenth) return;
    const int full = (int)(done * width / total);
    char a[32], b[32];
    fprintf(stderr, "%s[%.*s>%*s] %s of %s steps", erase_line, full, equals, width - full, "",
            report_grouped(done, a), report_grouped(total, b));
    fflush(stderr);
    r->bar_tenth = tenth;
}

void report_head(report *r, bool bits_per_byte)
{
    report_line(
        r, "step               loss   bits/%s   held out   grad norm       rate   tokens/s     MFU",
        bits_per_byte ? "byte" : "tok.");
}

void report_show(report *r, const report_row *x)
{
    char step[48], held[16] = "-", mfu[16] = "-";
    snprintf(step, sizeof step, "%lld/%lld", (long long)x->step, (long long)x->steps);
    if (isfinite(x->held_bits)) snprintf(held, sizeof held, "%.4f", x->held_bits);
    if (isfinite(x->mfu)) snprintf(mfu, sizeof mfu, "%.1f %%", x->mfu * 100);
    report_line(r, "%-14s %8.4f   %9.4f   %8s   %9.3f   %8.2e   %8.0f   %6s", step, x->loss,
                x->bits, held, x->grad_norm, x->rate, x->tokens_per_s, mfu);
}

void report_end(report *r, const report_result *x)
{
    char steps[32], held[64] = "";
    if (isfinite(x->held_bits))
        snprintf(held, sizeof held, "%.4f bits/%s held out   ", x->held_bits,
                 x->bits_per_byte ? "byte" : "token");
    report_line(r, "ok       %sparameters crc32c %08x   %s steps in %.1f s   %.0f tokens/s", held,
                x->params_crc32c, report_grouped(x->steps, steps), x->seconds, x->tokens_per_s);
}

/* JSON has no NaN: unknown values are null. */
static void put_real(json_t *o, const char *name, double x)
{
    json_object_set_new(o, name, isfinite(x) ? json_real(x) : json_null());
}

static void put_count(json_t *o, const char *name, int64_t n)
{
    json_object_set_new(o, name, json_integer(n));
}

static void put_word(json_t *o, const char *name, const char *word)
{
    json_object_set_new(o, name, json_string(word));
}

static json_t *to_json(const report_result *x)
{
    char crc[9];
    snprintf(crc, sizeof crc, "%08x", x->params_crc32c);
    json_t *o = json_object();
    put_real(o, "train_loss", x->train_loss);
    put_real(o, "held_loss", x->held_loss);
    put_real(o, x->bits_per_byte ? "held_bits_per_byte" : "held_bits_per_token", x->held_bits);
    put_real(o, "seconds", x->seconds);
    put_real(o, "tokens_per_s", x->tokens_per_s);
    put_real(o, "step_p50_s", x->step_p50_s);
    put_real(o, "step_max_s", x->step_max_s);
    put_real(o, "peak_gflops", x->peak_gflops);
    put_real(o, "mfu", x->mfu);
    put_count(o, "steps", x->steps);
    put_count(o, "from_step", x->from);
    put_count(o, "batch", x->batch);
    put_count(o, "length", x->length);
    put_count(o, "accum", x->accum);
    put_count(o, "parameters", x->parameters);
    put_count(o, "clipped", x->clipped);
    put_count(o, "skipped", x->skipped);
    put_count(o, "seed", (int64_t)x->seed);
    put_count(o, "layers", x->layers);
    put_count(o, "heads", x->heads);
    put_count(o, "channels", x->channels);
    put_count(o, "vocab", x->vocab);
    put_count(o, "workers", x->workers);
    put_count(o, "servers", x->servers);
    put_count(o, "threads", x->threads);
    put_word(o, "mode", x->mode);
    put_word(o, "precision", x->precision);
    put_word(o, "device", x->device);
    put_word(o, "preset", x->preset);
    put_word(o, "optim", x->optim);
    put_word(o, "params_crc32c", crc);
    return o;
}

bool report_write_json(const report_result *result, FILE *out)
{
    json_t *object = to_json(result);
    if (!object) return false;
    const bool ok = json_dumpf(object, out, JSON_REAL_PRECISION(10)) == 0 &&
                    fputc('\n', out) != EOF && fflush(out) == 0;
    json_decref(object);
    return ok;
}
