/* metrics.c - writes families and samples in the text that the reader asked for. */
#include "common/net/metrics.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#ifndef PENSTOCK_GIT
#define PENSTOCK_GIT ""
#endif

bool metrics_is_open(const char *accept)
{
    return accept != NULL && strstr(accept, "application/openmetrics-text") != NULL;
}

static void base_name(const stat_row *row, char name[METRICS_NAME_BYTES])
{
    snprintf(name, METRICS_NAME_BYTES, "%s%s",
             strncmp(row->name, "process.", 8) == 0 ? "" : "penstock_", row->name);
    for (char *c = name; *c != '\0'; c++)
        if (*c == '.') *c = '_';
}

void metrics_name(const stat_row *row, char name[METRICS_NAME_BYTES])
{
    base_name(row, name);
    const size_t n = strlen(name);
    if (row->kind == STAT_COUNTER) snprintf(name + n, METRICS_NAME_BYTES - n, "_total");
}

/* ---- labels ---------------------------------------------------------------------------------- */
/* Non-ASCII and control bytes become \xNN. */
static size_t escape(char *out, size_t size, const char *value)
{
    size_t n = 0;
    for (; *value != '\0' && n + 6 < size; value++) {
        const unsigned char c = (unsigned char)*value;
        if (c == '\\' || c == '"')
            n += (size_t)sprintf(out + n, "\\%c", c);
        else if (c == '\n')
            n += (size_t)sprintf(out + n, "\\n");
        else if (c < 0x20 || c >= 0x7f)
            n += (size_t)sprintf(out + n, "\\\\x%02x", c);
        else
            out[n++] = (char)c;
    }
    out[n] = '\0';
    return *value == '\0' ? n : 0;
}

void metrics_label(char labels[METRICS_LABELS_BYTES], const char *name, const char *value)
{
    char text[METRICS_LABELS_BYTES];
    const size_t n = strlen(labels), more = escape(text, sizeof text, value);
    if (n + strlen(name) + more + 5 >= METRICS_LABELS_BYTES || (more == 0 && value[0] != '\0'))
        return;
    snprintf(labels + n, METRICS_LABELS_BYTES - n, "%s%s=\"%s\"", n > 0 ? "," : "", name, text);
}

/* ---- families -------------------------------------------------------------------------------- */
void metrics_begin(metrics_page *page, FILE *out, bool is_open, const char *role, int32_t rank)
{
    char number[16] = "";
    *page           = (metrics_page){.out = out, .is_open = is_open};
    if (rank >= 0) snprintf(number, sizeof number, "%d", rank);
    metrics_label(page->self, "role", role);
    metrics_label(page->self, "rank", number);
}

static bool has_unit(const char *name, const char *unit)
{
    const size_t n = strlen(name), m = strlen(unit);
    return n > m + 1 && name[n - m - 1] == '_' && strcmp(name + n - m, unit) == 0;
}

static void write_head(metrics_page *page, const stat_row *row, const char *type)
{
    base_name(row, page->name);
    page->kind         = row->kind;
    const char *suffix = strcmp(type, "counter") == 0 && !page->is_open ? "_total" : "";
    fprintf(page->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", page->name, suffix, row->doc, page->name,
            suffix, type);
    if (page->is_open && has_unit(page->name, row->unit))
        fprintf(page->out, "# UNIT %s %s\n", page->name, row->unit);
}

void metrics_family(metrics_page *page, const stat_row *row)
{
    write_head(page, row, row->kind == STAT_COUNTER ? "counter" : "gauge");
}

static void write_sample(metrics_page *page, const char *suffix, const char *labels,
                         const char *more, double value)
{
    if (labels == NULL) labels = page->self;
    fprintf(page->out, "%s%s{%s%s%s} ", page->name, suffix, labels,
            labels[0] != '\0' && more[0] != '\0' ? "," : "", more);
    /* Numbers look the same in every locale of the program. */
    char text[40];
    if (!isfinite(value)) {
        fputs(isnan(value) ? "NaN\n" : value > 0 ? "+Inf\n" : "-Inf\n", page->out);
        return;
    }
    if (value == floor(value) && fabs(value) < 1e15)
        snprintf(text, sizeof text, "%" PRId64, (int64_t)value);
    else
        snprintf(text, sizeof text, "%.9g", value);
    for (char *c = text; *c != '\0'; c++)
        if (*c == ',') *c = '.';
    fprintf(page->out, "%s\n", text);
}

void metrics_sample(metrics_page *page, const char *labels, double value)
{
    write_sample(page, page->kind == STAT_COUNTER ? "_total" : "", labels, "", value);
}

void metrics_end(metrics_page *page)
{
    if (page->is_open) fputs("# EOF\n", page->out);
}

/* ---- groups of families ---------------------------------------------------------------------- */
/* The count is the sum of the buckets read, so that both agree under concurrent updates. */
static void write_spread(metrics_page *page, const stat_set *set, stat_spread_id id)
{
    uint64_t count = 0;
    write_head(page, &stat_spread_rows[id], "histogram");
    for (int i = 0; i < STAT_BUCKETS; i++) {
        char bound[48];
        count += atomic_load_explicit(&set->spread[id].bucket[i], memory_order_relaxed);
        snprintf(bound, sizeof bound, i < STAT_BUCKETS - 1 ? "le=\"%.9g\"" : "le=\"+Inf\"",
                 stat_bound(id, i));
        for (char *c = bound; *c != '\0'; c++)
            if (*c == ',') *c = '.';
        write_sample(page, "_bucket", NULL, bound, (double)count);
    }
    write_sample(page, "_sum", NULL, "", stat_sum(set, id));
    write_sample(page, "_count", NULL, "", (double)count);
}

void metrics_stats(metrics_page *page, const stat_set *set)
{
    for (int i = 0; i < STAT_COUNT; i++) {
        metrics_family(page, &stat_rows[i]);
        metrics_sample(page, NULL, (double)stat_get(set, (stat_id)i));
    }
    for (int i = 0; i < STAT_SPREADS; i++) write_spread(page, set, (stat_spread_id)i);
}

static double resident_bytes(void)
{
    unsigned long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL) return 0;
    if (fscanf(file, "%lu %lu", &total, &resident) != 2) resident = 0;
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static double cpu_seconds(void)
{
    struct rusage use;
    if (getrusage(RUSAGE_SELF, &use) != 0) return 0;
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static double open_descriptors(void)
{
    int n    = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL) return 0;
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        n += isdigit((unsigned char)e->d_name[0]) != 0;
    closedir(dir);
    return n - 1; /* the folder itself */
}

void metrics_process(metrics_page *page)
{
    static const stat_row build  = {"build.info", "", "Version and commit of this program; 1.",
                                    STAT_GAUGE},
                          memory = {"process.resident_memory.bytes", "bytes",
                                    "Resident memory of this process.", STAT_GAUGE},
                          cpu    = {"process.cpu.seconds", "seconds",
                                    "Processor time of this process.", STAT_COUNTER},
                          files  = {"process.open_fds", "", "Open descriptors of this process.",
                                    STAT_GAUGE};
    char labels[METRICS_LABELS_BYTES], version[32];
    snprintf(labels, sizeof labels, "%s", page->self);
    snprintf(version, sizeof version, "%d.%d.%d", PEN_VERSION_MAJOR, PEN_VERSION_MINOR,
             PEN_VERSION_PATCH);
    metrics_label(labels, "version", version);
    metrics_label(labels, "commit", PENSTOCK_GIT);
    metrics_family(page, &build);
    metrics_sample(page, labels, 1);
    metrics_family(page, &memory);
    metrics_sample(page, NULL, resident_bytes());
    metrics_family(page, &cpu);
    metrics_sample(page, NULL, cpu_seconds());
    metrics_family(page, &files);
    metrics_sample(page, NULL, open_descriptors());
}
