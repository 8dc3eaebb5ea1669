/* command_snapshot.c - `penstock snapshot`: takes a snapshot of a running job; list, verify and restore work on disk. */
#include "cli/command.h"
#include "cli/job/control.h"
#include "common/base/why.h"
#include "common/snapshot/store.h"

#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- asking a running job -------------------------------------------------------------------- */
typedef struct {
    CONTROL_PLACE(CONFIG_FIELD, "", "")
    bool json;
} ask_settings;

#define ROW(...) CONFIG_ROW(ask_settings, __VA_ARGS__)
static const config_row ask_rows[] = {CONTROL_PLACE(
    ROW, "60000", "Maximum time to wait for the snapshot: the next step and the disk.")
                                          ROW(json, BOOL, "no", 0, 0, NULL, "Print JSON."){0}};
#undef ROW

static const char usage_all[] =
    "usage: penstock snapshot [--timeout-ms MS]                     snapshot of the running job\n"
    "       penstock snapshot list --store DIR [--json]             lists the snapshots on disk\n"
    "       penstock snapshot verify --store DIR [--step N]         reads and verifies snapshots\n"
    "       penstock snapshot restore --store DIR --to DIR [--step N]  copies a snapshot to resume";

static int ask(int argc, char **argv)
{
    ask_settings s;
    control *link;
    wire_control question = {.kind = WIRE_SNAPSHOT_PLEASE}, answer;
    pen_error why         = {0};
    const int code        = command_settings(ask_rows, &s, argc, argv, usage_all, NULL);
    if (code >= 0) return code;
    if (control_open_job(s.job, s.master_addr, s.master_port,
                         s.timeout_ms < 5000 ? s.timeout_ms : 5000, &link, &why) != PEN_OK)
        return command_fail(1, "%s", why.text);
    pen_status status =
        control_ask(link, &question, WIRE_SNAPSHOT_DONE, s.timeout_ms, &answer, &why);
    if (status == PEN_OK && answer.u.snapshot_done.status != PEN_OK) {
        status = answer.u.snapshot_done.status;
        snprintf(why.text, sizeof why.text, "%s", answer.u.snapshot_done.text);
    }
    if (status == PEN_OK && s.json)
        printf("{\"step\": %" PRId64 "}\n", answer.u.snapshot_done.step);
    if (status == PEN_OK && !s.json)
        printf("snapshot of step %" PRId64 " is complete\n", answer.u.snapshot_done.step);
    control_close(link, 0);
    if (status == PEN_AGAIN)
        return command_fail(1, "no snapshot within %" PRIu64 " ms", s.timeout_ms);
    return status == PEN_OK ? 0 : command_fail(1, "%s", why.text);
}

/* ---- snapshots on disk ----------------------------------------------------------------------- */
typedef struct {
    char store[CONFIG_TEXT_BYTES], to[CONFIG_TEXT_BYTES];
    int64_t step;
    bool json;
} disk_settings;

#define ROW(name, type, dfl, min, doc)                                                             \
    CONFIG_ROW(disk_settings, name, type, dfl, min, 9e15, NULL, doc)
/* clang-format off */
static const config_row list_rows[] = {
    ROW(store, TEXT, "",   0,  "The store.")
    ROW(json,  BOOL, "no", 0,  "Print JSON.")
    {0},
};
static const config_row verify_rows[] = {
    ROW(store, TEXT, "",   0,  "The store.")
    ROW(step,  I64,  "-1", -1, "Step of the snapshot; -1: all.")
    ROW(json,  BOOL, "no", 0,  "Print JSON.")
    {0},
};
static const config_row restore_rows[] = {
    ROW(store, TEXT, "",   0,  "Snapshot directory to read.")
    ROW(to,    TEXT, "",   0,  "Snapshot directory to write; created if missing.")
    ROW(step,  I64,  "-1", -1, "Step of the snapshot; -1: the newest complete one.")
    {0},
};
/* clang-format on */

static store_entry *list_of(store_reader *r, size_t *n)
{
    *n                   = store_reader_list(r, NULL, 0);
    store_entry *entries = calloc(*n + 1, sizeof *entries);
    if (entries != NULL) store_reader_list(r, entries, *n);
    return entries;
}

static const char *state_of(const store_entry *e)
{
    if (e->is_complete) return e->is_superseded ? "replaced" : e->is_import ? "import" : "complete";
    return e->trouble->status == PEN_NOT_FOUND     ? "not complete"
           : e->trouble->status == PEN_UNSUPPORTED ? "of another format"
                                                   : "damaged";
}

/* Seconds since it was written. */
static double age_of(const store_entry *e)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - (double)e->written_ms / 1000;
}

static const char *age_text(double age_s, char text[32])
{
    if (age_s < 0)
        snprintf(text, 32, "?");
    else if (age_s < 120)
        snprintf(text, 32, "%.0f s", age_s);
    else if (age_s < 7200)
        snprintf(text, 32, "%.0f min", age_s / 60);
    else if (age_s < 172800)
        snprintf(text, 32, "%.0f h", age_s / 3600);
    else
        snprintf(text, 32, "%.0f days", age_s / 86400);
    return text;
}

static void print_table(const store_entry *entries, size_t n)
{
    printf("%12s %9s %6s %10s %8s  %-17s %s\n", "step", "age", "parts", "MB", "tensors", "state",
           "job");
    for (size_t i = 0; i < n; i++) {
        const store_entry *e = &entries[i];
        char age[32];
        printf("%12" PRId64 " %9s %6u %10.1f %8u  %-17s %s\n", e->step, age_text(age_of(e), age),
               e->parts, (double)e->bytes / 1e6, e->n_tensors, state_of(e), e->job);
    }
}

static json_t *entry_json(const store_entry *e)
{
    json_t *o = json_pack("{s:I, s:b, s:s, s:I, s:I, s:I, s:f, s:I, s:s, s:s, s:I, s:b}", "step",
                          (json_int_t)e->step, "complete", (int)e->is_complete, "state",
                          state_of(e), "parts", (json_int_t)e->parts, "bytes", (json_int_t)e->bytes,
                          "applied", (json_int_t)e->applied, "age_s", age_of(e), "tensors",
                          (json_int_t)e->n_tensors, "job", e->job, "version", e->version, "format",
                          (json_int_t)e->format, "import", (int)e->is_import);
    json_object_set_new(o, "trouble",
                        e->trouble != NULL ? json_string(e->trouble->text) : json_null());
    return o;
}

/* Reads the settings and opens the store.  -1: continue with *r. */
static int open_store(const config_row *rows, disk_settings *s, int argc, char **argv,
                      const char *usage, store_reader **r)
{
    pen_error why;
    const int code = command_settings(rows, s, argc, argv, usage, NULL);
    if (code >= 0) return code;
    if (s->store[0] == '\0') return command_fail(EXIT_USAGE, "missing --store DIR");
    if (store_reader_open(s->store, r, &why) != PEN_OK) return command_fail(1, "%s", why.text);
    if (store_reader_list(*r, NULL, 0) > 0) return -1;
    store_reader_close(*r);
    return command_fail(1, "no snapshot in %s", s->store);
}

static int list(int argc, char **argv)
{
    disk_settings s;
    store_reader *r;
    size_t n;
    const int code = open_store(list_rows, &s, argc, argv,
                                "usage: penstock snapshot list --store DIR [--json]", &r);
    if (code >= 0) return code;
    store_entry *entries = list_of(r, &n);
    if (entries != NULL && s.json) {
        json_t *snapshots = json_array();
        for (size_t i = 0; i < n; i++) json_array_append_new(snapshots, entry_json(&entries[i]));
        json_t *all = json_pack("{s:s, s:o}", "store", s.store, "snapshots", snapshots);
        command_print_json(all, JSON_COMPACT);
    }
    if (entries != NULL && !s.json) print_table(entries, n);
    const bool done = entries != NULL;
    free(entries);
    store_reader_close(r);
    return done ? 0 : command_fail(1, "no memory");
}

/* ---- verify ---------------------------------------------------------------------------------- */
static int verify_one(store_reader *r, const disk_settings *s, int64_t step)
{
    uint64_t bytes = 0;
    pen_error why;
    if (store_verify(r, step, &bytes, &why) != PEN_OK) return command_fail(1, "%s", why.text);
    if (s->json)
        printf("{\"step\": %" PRId64 ", \"bytes\": %" PRIu64 "}\n", step, bytes);
    else
        printf("snapshot of step %" PRId64 " is intact: %" PRIu64 " bytes verified\n", step, bytes);
    return 0;
}

/* An incomplete snapshot is reported but is not an error; a damaged one is. */
static int verify_all(store_reader *r, const disk_settings *s)
{
    size_t n;
    int code = 0, whole = 0;
    store_entry *entries = list_of(r, &n);
    if (entries == NULL) return command_fail(1, "no memory");
    for (size_t i = 0; i < n; i++) {
        const store_entry *e = &entries[i];
        if (e->is_superseded) continue;
        if (!e->is_complete && e->trouble->status == PEN_NOT_FOUND)
            fprintf(stderr, "penstock: %s\n", e->trouble->text);
        else if (!e->is_complete)
            code = command_fail(1, "%s", e->trouble->text);
        else if (verify_one(r, s, e->step) != 0)
            code = 1;
        else
            whole++;
    }
    free(entries);
    if (code == 0 && whole == 0) return command_fail(1, "no complete snapshot in %s", s->store);
    return code;
}

static int verify(int argc, char **argv)
{
    disk_settings s;
    store_reader *r;
    int code = open_store(verify_rows, &s, argc, argv,
                          "usage: penstock snapshot verify --store DIR [--step N] [--json]", &r);
    if (code >= 0) return code;
    code = s.step < 0 ? verify_all(r, &s) : verify_one(r, &s, s.step);
    store_reader_close(r);
    return code;
}

/* ---- restore --------------------------------------------------------------------------------- */
pen_status command_choose_step(store_reader *r, const char *dir, int64_t wanted, int64_t *step,
                               pen_error *why)
{
    const store_manifest *m;
    const size_t n = store_reader_steps(r, NULL, 0);
    if (wanted >= 0) {
        *step = wanted;
        return store_reader_manifest(r, wanted, &m, why);
    }
    int64_t *steps = calloc(n + 1, sizeof *steps);
    if (steps == NULL) return why_set(why, PEN_NO_MEMORY, "no memory");
    store_reader_steps(r, steps, n);
    *step = n > 0 ? steps[n - 1] : -1;
    free(steps);
    if (n > 0) return PEN_OK;
    return why_set(why, PEN_NOT_FOUND, "no complete snapshot in %s", dir);
}

static int restore(int argc, char **argv)
{
    disk_settings s;
    store_reader *r;
    pen_error why;
    int64_t step;
    int code = open_store(restore_rows, &s, argc, argv,
                          "usage: penstock snapshot restore --store DIR --to DIR [--step N]", &r);
    if (code >= 0) return code;
    if (s.to[0] == '\0') {
        store_reader_close(r);
        return command_fail(EXIT_USAGE, "missing --to DIR");
    }
    pen_status status = command_choose_step(r, s.store, s.step, &step, &why);
    if (status == PEN_OK) status = store_copy(r, step, s.to, &why);
    store_reader_close(r);
    if (status != PEN_OK) return command_fail(1, "%s", why.text);
    printf("%s holds the snapshot of step %" PRId64
           "; resume with penstock run --store %s --resume\n",
           s.to, step, s.to);
    return 0;
}

/* ---- the command --------------------------------------------------------------------------- */
const command command_snapshot_verbs[] = {
    {"list", "lists the snapshots in a store", list},
    {"verify", "reads and verifies snapshots", verify},
    {"restore", "copies a snapshot into a new store, to resume from it", restore},
    {0},
};

int command_snapshot(int argc, char **argv)
{
    if (argc < 2 || argv[1][0] == '-') return ask(argc, argv);
    const command *c = command_verb(command_snapshot_verbs, "snapshot command", argv[1], "");
    return c != NULL ? c->main(argc - 1, argv + 1) : EXIT_USAGE;
}
