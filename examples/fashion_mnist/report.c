/* report.c - table, progress bar and JSON of rank 0. */
#include "report.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static const char *const erase_line = "\r\033[K";

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

void report_head(report *r, bool has_servers)
{
    r->has_servers = has_servers;
    report_line(r, "epoch    train loss   test accuracy   images/s%s   step p50   step p99",
                has_servers ? "   push GB/s   pull GB/s" : "");
}

void report_row(report *r, const report_epoch *e)
{
    char epoch[48], servers[40] = "";
    snprintf(epoch, sizeof epoch, "%lld/%lld", (long long)e->epoch, (long long)e->epochs);
    if (r->has_servers)
        snprintf(servers, sizeof servers, "   %9.2f   %9.2f", e->push_gbps, e->pull_gbps);
    report_line(r, "%-7s  %10.4f   %13.4f   %7.1fk%s   %5.1f ms   %5.1f ms", epoch, e->train_loss,
                e->test_accuracy, e->images_per_s / 1e3, servers, e->step_p50_s * 1e3,
                e->step_p99_s * 1e3);
}

void report_end(report *r, const report_result *x)
{
    char steps[32];
    report_line(r, "ok       test accuracy %.4f   parameters crc32c %08x   %s steps in %.1f s",
                x->test_accuracy, x->params_crc32c, report_grouped(x->steps, steps), x->seconds);
}

/* JSON has no NaN: a diverged run has null. */
static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *to_json(const report_result *x)
{
    char crc[9];
    snprintf(crc, sizeof crc, "%08x", x->params_crc32c);
    json_t *o = json_object();
    json_object_set_new(o, "test_accuracy", real(x->test_accuracy));
    json_object_set_new(o, "train_loss", real(x->train_loss));
    json_object_set_new(o, "seconds", real(x->seconds));
    json_object_set_new(o, "images_per_s", real(x->images_per_s));
    json_object_set_new(o, "step_max_s", real(x->step_max_s));
    json_object_set_new(o, "steps", json_integer(x->steps));
    json_object_set_new(o, "clipped", json_integer(x->clipped));
    json_object_set_new(o, "epochs", json_integer(x->epochs));
    json_object_set_new(o, "batch", json_integer(x->batch));
    json_object_set_new(o, "seed", json_integer((json_int_t)x->seed));
    json_object_set_new(o, "mode", json_string(x->mode));
    json_object_set_new(o, "workers", json_integer(x->workers));
    json_object_set_new(o, "servers", json_integer(x->servers));
    json_object_set_new(o, "model", json_string(x->model));
    json_object_set_new(o, "optim", json_string(x->optim));
    json_object_set_new(o, "params_crc32c", json_string(crc));
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
