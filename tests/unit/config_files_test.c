/* config_files_test.c - files of DeepSpeed and accelerate: parsing, the tables of keys, the resulting settings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/config/write_yaml.h"
#include "common/config_files/keys.h"
#include "common/config_files/load.h"
#include "common/config_files/resolve.h"
#include "worker/worker_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const files[] = {
    "fsdp.yml",
    "deepspeed_file_stage2.yml",
    "deepspeed_file_stage3.yml",
    "deepspeed_plugin_stage2.yml",
    "deepspeed_plugin_stage3.yml",
    "zero_stage2_config.json",
    "zero_stage3_offload_config.json",
};
enum { N_FILES = sizeof files / sizeof *files };

static const resolve_flags all_flags = {.hidden_size  = "768",
                                        .lr           = "3e-4",
                                        .weight_decay = "0.01",
                                        .warmup_steps = "10",
                                        .total_steps  = "100"};
static const resolve_flags no_flags  = {.lr = NULL};
static const resolve_flags *flags    = &all_flags;

static const char *path_of(const char *file)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", CONFIG_DATA, file);
    return path;
}

static void read_file(const char *file, document *d)
{
    pen_error why = {0};
    if (document_read(d, path_of(file), &why) != PEN_OK) fail_msg("%s", why.text);
}

/* ---- given: "setting=value" of the environment ----------------------------------------------------------- */

static const char *given_setting, *given_value;

static const char *find_given(const void *user, const char *setting, const char **source)
{
    (void)user;
    *source = "environment";
    return given_setting != NULL && strcmp(setting, given_setting) == 0 ? given_value : NULL;
}

/* The settings that YAML and JSON text, either may be NULL, resolve to. */
static pen_status resolve_text(const char *yaml, const char *json, const resolve_flags *by,
                               resolution *out, pen_error *why)
{
    document y = {.keys = NULL}, j = {.keys = NULL};
    *out              = (resolution){.notices = NULL};
    pen_status status = PEN_OK;
    if (yaml != NULL) status = document_parse_yaml(&y, "a.yml", yaml, strlen(yaml), why);
    if (status == PEN_OK && json != NULL)
        status = document_parse_json(&j, "d.json", json, strlen(json), why);
    if (status == PEN_OK)
        status = resolve(yaml != NULL ? &y : NULL, json != NULL ? &j : NULL, by,
                         (resolve_given){find_given, NULL}, out, why);
    document_free(&y);
    document_free(&j);
    return status;
}

static void refuses(const char *yaml, const char *json, const char *sentence)
{
    resolution r;
    pen_error why = {0};
    assert_int_equal(resolve_text(yaml, json, &all_flags, &r, &why), PEN_BAD_SETTING);
    assert_string_equal(why.text, sentence);
    resolution_free(&r);
}

/* A setting, or "" if it is not set. */
static void gives(const char *yaml, const char *json, const char *setting, const char *value)
{
    resolution r;
    pen_error why = {0};
    if (resolve_text(yaml, json, flags, &r, &why) != PEN_OK) fail_msg("%s", why.text);
    const resolved_value *v = resolved_find(&r.settings, setting);
    assert_string_equal(v != NULL ? v->value : "", value);
    resolution_free(&r);
}

static void notices(const char *yaml, const char *json, const char *sentence)
{
    resolution r;
    pen_error why = {0};
    size_t n      = 0;
    if (resolve_text(yaml, json, flags, &r, &why) != PEN_OK) fail_msg("%s", why.text);
    for (size_t i = 0; i < r.n_notices; i++) n += strcmp(r.notices[i].text, sentence) == 0;
    if (n != 1) {
        for (size_t i = 0; i < r.n_notices; i++) print_message("%s\n", r.notices[i].text);
        fail_msg("%zu times: %s", n, sentence);
    }
    resolution_free(&r);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static void has_key(const document *d, const char *path, const char *text, document_kind kind,
                    int line)
{
    const document_key *key = document_find(d, path);
    if (key == NULL) fail_msg("%s is not there", path);
    assert_string_equal(key->text, text);
    assert_int_equal(key->kind, kind);
    assert_int_equal(key->line, line);
}

static void test_json_keys_have_their_paths_kinds_and_lines(void **state)
{
    (void)state;
    static const char text[] =
        "{\n \"a\": {\"x\": true, \"y\\\"z\": \"s:{\"},\n\n \"list\": [{\"in\":\n 1}, 2, \"t\"],\n"
        " \"n\": 2e8, \"i\": 7,\n \"e\": {}, \"o\": null\n}";
    document d;
    pen_error why;
    assert_int_equal(document_parse_json(&d, "d.json", text, strlen(text), &why), PEN_OK);
    has_key(&d, "a.x", "true", DOCUMENT_BOOL, 2);
    has_key(&d, "a.y\"z", "s:{", DOCUMENT_TEXT, 2);
    has_key(&d, "list", "2,t", DOCUMENT_LIST, 4);
    has_key(&d, "n", "2e+08", DOCUMENT_NUMBER, 6);
    has_key(&d, "i", "7", DOCUMENT_NUMBER, 6);
    has_key(&d, "e", "", DOCUMENT_EMPTY, 7);
    has_key(&d, "o", "", DOCUMENT_NULL, 7);
    assert_int_equal(d.n, 7);
    document_free(&d);
}

static void test_yaml_words_are_read_as_yaml_1_1_reads_them(void **state)
{
    (void)state;
    static const char text[] = "a: 'no'\nb: no\nc: null\nd:\n  e: 1e-3\n  f: {}\ng: [x, 1]\n"
                               "h: 10.0.0.1\ni:\n";
    document d;
    pen_error why;
    assert_int_equal(document_parse_yaml(&d, "a.yml", text, strlen(text), &why), PEN_OK);
    has_key(&d, "a", "no", DOCUMENT_TEXT, 1);
    has_key(&d, "b", "no", DOCUMENT_BOOL, 2);
    has_key(&d, "c", "null", DOCUMENT_NULL, 3);
    has_key(&d, "d.e", "1e-3", DOCUMENT_NUMBER, 5);
    has_key(&d, "d.f", "", DOCUMENT_EMPTY, 6);
    has_key(&d, "g", "x,1", DOCUMENT_LIST, 7);
    has_key(&d, "h", "10.0.0.1", DOCUMENT_TEXT, 8);
    has_key(&d, "i", "", DOCUMENT_NULL, 9);
    document_free(&d);
}

static void refuses_bytes(bool yaml, const char *text, const char *sentence)
{
    document d;
    pen_error why;
    assert_int_equal(
        (yaml ? document_parse_yaml : document_parse_json)(&d, "f", text, strlen(text), &why),
        PEN_BAD_SETTING);
    assert_string_equal(why.text, sentence);
    assert_null(d.keys);
}

static void test_invalid_files_are_refused_with_their_line(void **state)
{
    (void)state;
    refuses_bytes(false, "[1]", "f:1: this is not a JSON object: it begins with '{'");
    refuses_bytes(false, "{\"a\": 1,\n \"a\": 2}",
                  "f:2: this is not JSON: duplicate object key near '\"a\"'");
    refuses_bytes(false, "{\"a\":\n", "f:2: this is not JSON: unexpected token near end of file");
    refuses_bytes(true, "a: 1\na: 2\n", "f: a is given twice, on lines 1 and 2");
    refuses_bytes(true, "a: &x 1\nb: *x\n",
                  "f:1: anchors (&) and aliases (*) are not read here: write the value out");
    refuses_bytes(true, "a: 1\n---\nb: 2\n",
                  "f:2: a second document begins here; one file is one configuration");
    refuses_bytes(true, "- 1\n", "f:1: no keys: write each line as  key: value");
    refuses_bytes(true, "a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n",
                  "f:1: nested deeper than 8");
}

/* Half a million brackets: refused after the first few. */
static void test_a_hostile_depth_is_refused_at_once(void **state)
{
    (void)state;
    static const char openers[] = "[{";
    static char text[500000];
    for (int k = 0; k < 2; k++)
        for (int yaml = 0; yaml < 2; yaml++) {
            document d;
            pen_error why;
            memset(text, openers[k], sizeof text);
            memcpy(text, "a: ", 3);
            assert_int_equal((yaml ? document_parse_yaml : document_parse_json)(&d, "f", text,
                                                                                sizeof text, &why),
                             PEN_BAD_SETTING);
            assert_null(d.keys);
        }
}

/* A truncated or changed byte leads to a sentence at worst. */
static void test_truncated_and_damaged_files_are_read_or_refused(void **state)
{
    (void)state;
    size_t read = 0, refused = 0;
    for (int f = 0; f < N_FILES; f++) {
        char bytes[4096];
        FILE *file = fopen(path_of(files[f]), "rb");
        assert_non_null(file);
        const size_t size = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        assert_in_range(size, 100, sizeof bytes - 1);
        const bool yaml = strstr(files[f], ".yml") != NULL;
        for (size_t n = 0; n < 2 * size; n++) {
            document d;
            resolution r;
            pen_error why = {0};
            char kept     = bytes[n % size];
            if (n >= size) bytes[n - size] ^= (char)(1 + n % 255);
            const size_t length = n < size ? n : size;
            pen_status status =
                (yaml ? document_parse_yaml : document_parse_json)(&d, "f", bytes, length, &why);
            bytes[n % size] = kept;
            r               = (resolution){.notices = NULL};
            if (status == PEN_OK)
                status = resolve(yaml ? &d : NULL, yaml ? NULL : &d, &all_flags,
                                 (resolve_given){find_given, NULL}, &r, &why);
            read += status == PEN_OK;
            refused += status == PEN_BAD_SETTING && why.text[0] != '\0';
            assert_true(status == PEN_OK || status == PEN_BAD_SETTING);
            resolution_free(&r);
            document_free(&d);
        }
    }
    print_message("%zu read, %zu refused\n", read, refused);
    assert_true(read > 100 && refused > 1000);
}

/* ---- tables ---------------------------------------------------------------------------------------------- */

static bool is_target(const char *name)
{
    for (int i = 0; resolve_targets[i] != NULL; i++)
        if (strcmp(resolve_targets[i], name) == 0) return true;
    return false;
}

static void check_table(const key_row *rows)
{
    for (const key_row *r = rows; r->path != NULL; r++) {
        const char *nearest;
        if (key_find(rows, r->path, &nearest) != r && strchr(r->path, '*') == NULL)
            fail_msg("%s is there twice", r->path);
        if (r->doc == NULL || r->doc[0] == '\0') fail_msg("%s has no sentence", r->path);
        if (r->value == KEY_WORD && r->words == NULL) fail_msg("%s has no words", r->path);
        if (r->use == KEY_ALWAYS && r->usual == NULL) fail_msg("%s is always what?", r->path);
        if (r->use == KEY_SETS || r->use == KEY_JOINS)
            if (!is_target(r->target)) fail_msg("%s sets '%s', no target", r->path, r->target);
    }
}

static void test_every_key_has_a_meaning_and_every_target_is_a_setting(void **state)
{
    (void)state;
    check_table(deepspeed_keys);
    check_table(accelerate_keys);
    for (int i = 0; resolve_targets[i] != NULL; i++) {
        const config_row *row = worker_settings_rows;
        while (row->name != NULL && strcmp(row->name, resolve_targets[i]) != 0) row++;
        if (row->name == NULL) fail_msg("no worker has a setting '%s'", resolve_targets[i]);
    }
}

/* Every word that a key maps to is accepted by its setting. */
static void check_words(const key_row *rows)
{
    static worker_settings scratch;
    for (const key_row *r = rows; r->path != NULL; r++) {
        if (r->value != KEY_WORD || r->use != KEY_SETS) continue;
        for (const char *at = r->words; *at != '\0'; at += strspn(at, " ")) {
            char word[64];
            pen_error why;
            const size_t in = strcspn(at, "=") + 1, all = strcspn(at, " ");
            snprintf(word, sizeof word, "%.*s", (int)(all - in), at + in);
            if (config_set(worker_settings_rows, &scratch, r->target, word, &why) != PEN_OK)
                fail_msg("%s: %s", r->path, why.text);
            at += all;
        }
    }
}

static void test_every_word_a_key_becomes_is_accepted_by_its_setting(void **state)
{
    (void)state;
    config_defaults(worker_settings_rows, &(worker_settings){.mode = 0});
    check_words(deepspeed_keys);
    check_words(accelerate_keys);
    assert_true(deepspeed_keys[0].path != NULL);
}

/* ---- what the published files resolve to ----------------------------------------------------------------- */

static const struct {
    const char *yaml, *json, *setting, *value;
} golden[] = {
    {NULL, "zero_stage2_config.json", "mode", "zero2"},
    {NULL, "zero_stage2_config.json", "precision", "fp16"},
    {NULL, "zero_stage2_config.json", "loss_scale", "0"},
    {NULL, "zero_stage2_config.json", "loss_scale_window", "1000"},
    {NULL, "zero_stage2_config.json", "loss_scale_power", "16"},
    {NULL, "zero_stage2_config.json", "loss_scale_hysteresis", "2"},
    {NULL, "zero_stage2_config.json", "loss_scale_min", "1"},
    {NULL, "zero_stage2_config.json", "optim", "adamw lr=3e-4 weight_decay=0.01"},
    {NULL, "zero_stage2_config.json", "simd", "scalar"},
    {NULL, "zero_stage2_config.json", "schedule",
     "WarmupDecayLR warmup_min_lr=0 warmup_max_lr=3e-4 warmup_num_steps=10 total_num_steps=100"},
    {NULL, "zero_stage2_config.json", "prefetch_bucket", "200000000"},
    {NULL, "zero_stage2_config.json", "reduce_bucket", "589824"},
    {NULL, "zero_stage2_config.json", "accum", "1"},
    {NULL, "zero_stage2_config.json", "clip", "1"},
    {NULL, "zero_stage2_config.json", "report_every", "2000"},
    {NULL, "zero_stage2_config.json", "report_times", "no"},
    {NULL, "zero_stage3_offload_config.json", "mode", "zero3"},
    {NULL, "zero_stage3_offload_config.json", "simd", ""},
    {NULL, "zero_stage3_offload_config.json", "offload_optimizer", "cpu"},
    {NULL, "zero_stage3_offload_config.json", "offload_param", "cpu"},
    {NULL, "zero_stage3_offload_config.json", "sub_group", "1000000000"},
    {NULL, "zero_stage3_offload_config.json", "reduce_bucket", "589824"},
    {NULL, "zero_stage3_offload_config.json", "prefetch_bucket", "530841"},
    {NULL, "zero_stage3_offload_config.json", "persistence_threshold", "7680"},
    {NULL, "zero_stage3_offload_config.json", "max_live", "1000000000"},
    {NULL, "zero_stage3_offload_config.json", "max_reuse", "1000000000"},
    {NULL, "zero_stage3_offload_config.json", "gather_16bit_on_save", "no"},
    {"fsdp.yml", NULL, "mode", "full_shard"},
    {"fsdp.yml", NULL, "precision", "fp32"},
    {"fsdp.yml", NULL, "wrap", "layer"},
    {"fsdp.yml", NULL, "wrap_match", "**.encoder.layer.*"},
    {"fsdp.yml", NULL, "prefetch_backward", "pre"},
    {"fsdp.yml", NULL, "max_reuse", "0"},
    {"fsdp.yml", NULL, "offload_param", ""},
    {"deepspeed_plugin_stage2.yml", NULL, "mode", "zero2"},
    {"deepspeed_plugin_stage2.yml", NULL, "precision", "fp16"},
    {"deepspeed_plugin_stage2.yml", NULL, "accum", "1"},
    {"deepspeed_plugin_stage2.yml", NULL, "clip", "1"},
    {"deepspeed_plugin_stage2.yml", NULL, "offload_optimizer", "none"},
    {"deepspeed_plugin_stage2.yml", NULL, "offload_param", ""},
    {"deepspeed_plugin_stage3.yml", NULL, "mode", "zero3"},
    {"deepspeed_plugin_stage3.yml", NULL, "offload_optimizer", "cpu"},
    {"deepspeed_plugin_stage3.yml", NULL, "offload_param", "cpu"},
    {"deepspeed_plugin_stage3.yml", NULL, "gather_16bit_on_save", "yes"},
    {"deepspeed_file_stage2.yml", "zero_stage2_config.json", "mode", "zero2"},
    {"deepspeed_file_stage2.yml", "zero_stage2_config.json", "precision", "fp16"},
    {"deepspeed_file_stage3.yml", "zero_stage3_offload_config.json", "offload_param", "cpu"},
};

static void test_the_files_of_the_literature_become_these_settings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        document yaml = {.keys = NULL}, json = {.keys = NULL};
        resolution r;
        pen_error why = {0};
        if (golden[i].yaml != NULL) read_file(golden[i].yaml, &yaml);
        if (golden[i].json != NULL) read_file(golden[i].json, &json);
        if (resolve(golden[i].yaml != NULL ? &yaml : NULL, golden[i].json != NULL ? &json : NULL,
                    &all_flags, (resolve_given){find_given, NULL}, &r, &why) != PEN_OK)
            fail_msg("%s", why.text);
        const resolved_value *v = resolved_find(&r.settings, golden[i].setting);
        if (strcmp(v != NULL ? v->value : "", golden[i].value) != 0)
            fail_msg("%s %s: %s is '%s', not '%s'", golden[i].yaml, golden[i].json,
                     golden[i].setting, v != NULL ? v->value : "", golden[i].value);
        resolution_free(&r);
        document_free(&yaml);
        document_free(&json);
    }
}

static void test_launch_keys_reach_the_launcher(void **state)
{
    (void)state;
    static const char yaml[] =
        "num_machines: 2\nmachine_rank: 1\nnum_processes: 8\n"
        "main_process_ip: 10.0.0.1\nmain_process_port: 29501\ngpu_ids: 0,1\n";
    static const char *const wanted[][2] = {
        {"num_machines", "2"},          {"machine_rank", "1"},
        {"num_processes", "8"},         {"main_process_ip", "10.0.0.1"},
        {"main_process_port", "29501"}, {"cuda_visible_devices", "0,1"},
    };
    resolution r;
    pen_error why;
    assert_int_equal(resolve_text(yaml, NULL, &no_flags, &r, &why), PEN_OK);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const resolved_value *v = resolved_find(&r.start, wanted[i][0]);
        assert_non_null(v);
        assert_string_equal(v->value, wanted[i][1]);
    }
    resolution_free(&r);
    refuses("use_cpu: true\ngpu_ids: 0\n", NULL,
            "a.yml:1 (use_cpu: true) and a.yml:2 (gpu_ids: 0) contradict each other");
}

/* ---- unknown, without effect, contradicting -------------------------------------------------------------- */

#define ZERO(keys) "{\"zero_optimization\": {" keys "}}"
#define FP16(keys) "{\"fp16\": {" keys "}}"
#define ADAM(keys) "{\"optimizer\": {\"type\": \"Adam\", \"params\": {" keys "}}}"

static void test_unknown_keys_are_refused_with_the_nearest(void **state)
{
    (void)state;
    refuses(
        NULL, ZERO("\n\"stge\": 2"),
        "d.json:2: unknown key 'zero_optimization.stge'; did you mean 'zero_optimization.stage'?");
    refuses(NULL, "{\"gradient_clip\": 1}",
            "d.json:1: unknown key 'gradient_clip'; did you mean 'gradient_clipping'?");
    refuses("num_process: 2\n", NULL,
            "a.yml:1: unknown key 'num_process'; did you mean 'num_processes'?");
    refuses("fsdp_config:\n  fsdp_sharding: 1\n", NULL,
            "a.yml:2: unknown key 'fsdp_config.fsdp_sharding'; did you mean "
            "'fsdp_config.fsdp_sharding_strategy'?");
}

static void test_values_of_the_wrong_kind_are_refused(void **state)
{
    (void)state;
    refuses(NULL, FP16("\"enabled\": \"maybe\""),
            "d.json:1: fp16.enabled is 'maybe', but must be true or false");
    refuses(NULL, FP16("\"hysteresis\": 1.5"),
            "d.json:1: fp16.hysteresis is '1.5', but must be a whole number of at least 0");
    refuses(NULL, FP16("\"hysteresis\": \"auto\""),
            "d.json:1: fp16.hysteresis is 'auto', but nothing fills that in: write the value");
    refuses(NULL, ZERO("\"stage\": {}"),
            "d.json:1: zero_optimization.stage is a section, but must be one value");
    refuses("mixed_precision: fp8\n", NULL,
            "a.yml:1: mixed_precision is 'fp8', but must be one of no, false, fp16, bf16");
    refuses(NULL, ADAM("\"betas\": [0.9]"),
            "d.json:1: betas are '0.9', but must be like [0.9, 0.999]");
}

static void test_known_keys_without_effect_are_reported_once(void **state)
{
    (void)state;
    notices(NULL, ZERO("\"overlap_comm\": false"),
            "d.json:1: zero_optimization.overlap_comm has no effect: it is always true here, for "
            "gradients travel while the backward pass goes on");
    notices(NULL, "{\"aio\": {\"block_size\": 1,\n \"queue_depth\": 8}}",
            "d.json:1: aio.block_size has no effect: files are read and written in pieces of "
            "sub_group_size");
    notices("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n"
            "  zero3_init_flag: true\n",
            NULL,
            "a.yml:4: deepspeed_config.zero3_init_flag has no effect: it is for ZeRO stage 3, and "
            "this is stage 2");
    notices("distributed_type: FSDP\ndeepspeed_config:\n  zero_stage: 2\n", NULL,
            "a.yml:3: deepspeed_config has no effect: distributed_type is FSDP");
    notices(NULL, FP16("\"enabled\": false, \"loss_scale\": 8"),
            "d.json:1: fp16.loss_scale has no effect: the job does not train in fp16");
}

static void test_contradictory_places_are_both_named(void **state)
{
    (void)state;
    refuses(
        NULL, "{\"fp16\": {\"enabled\": true},\n\"bf16\": {\"enabled\": true}}",
        "d.json:1 (fp16.enabled: true) and d.json:2 (bf16.enabled: true) contradict each other");
    refuses("mixed_precision: bf16\n", FP16("\"enabled\": true"),
            "d.json:1 (fp16.enabled: true) and a.yml:1 (mixed_precision: bf16) contradict each "
            "other");
    refuses(
        "mixed_precision: 'no'\n", FP16("\"enabled\": true"),
        "d.json:1 (fp16.enabled: true) and a.yml:1 (mixed_precision: no) contradict each other");
    refuses("deepspeed_config:\n  zero_stage: 2\n", ZERO("\"stage\": 3"),
            "a.yml:2 (deepspeed_config.zero_stage: 2) and d.json:1 (zero_optimization.stage: 3) "
            "contradict each other");
    refuses("deepspeed_config:\n  gradient_clipping: 1.0\n", "{\"gradient_clipping\": 0.5}",
            "a.yml:2 (deepspeed_config.gradient_clipping: 1.0) and d.json:1 (gradient_clipping: "
            "0.5) contradict each other");
    refuses("distributed_type: FSDP\n", "{}",
            "a.yml:1 (distributed_type: FSDP) and d.json, a configuration of DeepSpeed, contradict "
            "each other: say DEEPSPEED, or leave the file out");
    refuses("distributed_type: 'NO'\nnum_processes: 2\n", NULL,
            "a.yml:1 (distributed_type: NO) and a.yml:2 (num_processes: 2) contradict each other");
    refuses(NULL, "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"adam_w_mode\": false}}}",
            "d.json:1 (optimizer.type: AdamW) and d.json:1 (optimizer.params.adam_w_mode: false) "
            "contradict each other");
    gives("deepspeed_config:\n  gradient_clipping: 1.0\n", "{\"gradient_clipping\": 1}", "clip",
          "1");
    gives("deepspeed_config:\n  gradient_clipping: 0.5\n", "{\"gradient_clipping\": \"auto\"}",
          "clip", "0.5");
}

static void test_files_are_offloaded_to_only_where_the_stage_allows(void **state)
{
    (void)state;
    refuses(NULL, ZERO("\"stage\": 2, \"offload_param\": {\"device\": \"nvme\"}"),
            "d.json:1: zero_optimization.offload_param.device nvme needs ZeRO stage 3, but this is "
            "stage 2");
    refuses("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 0\n"
            "  offload_optimizer_device: nvme\n",
            NULL,
            "a.yml:4: deepspeed_config.offload_optimizer_device nvme needs ZeRO stage 1 or more, "
            "but this is stage 0");
    refuses(NULL, ZERO("\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"}"),
            "d.json:1: zero_optimization.offload_optimizer.device nvme needs a folder: say "
            "nvme_path, or --offload-path DIR");
    gives(NULL,
          ZERO("\"stage\": 1, \"offload_optimizer\": {\"device\": \"nvme\", "
               "\"nvme_path\": \"/n\"}"),
          "offload_path", "/n");
}

/* ---- auto, and precedence -------------------------------------------------------------------------------- */

static void refuses_auto(const char *json, const char *sentence)
{
    resolution r;
    pen_error why = {0};
    assert_int_equal(resolve_text(NULL, json, &no_flags, &r, &why), PEN_BAD_SETTING);
    assert_string_equal(why.text, sentence);
    resolution_free(&r);
}

static void test_an_auto_that_nothing_resolves_names_the_flag_that_does(void **state)
{
    (void)state;
    refuses_auto(ADAM("\"lr\": \"auto\""), "d.json:1: optimizer.params.lr is auto: say --lr");
    refuses_auto(ZERO("\"reduce_bucket_size\": \"auto\""),
                 "d.json:1: zero_optimization.reduce_bucket_size is auto, which is made from the "
                 "hidden size of the model: say --hidden-size N");
    refuses_auto("{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": "
                 "\"auto\"}}}",
                 "d.json:1: scheduler.params.warmup_num_steps is auto: say --warmup-steps");
}

static void test_an_auto_is_the_programs_if_its_rule_is_the_files(void **state)
{
    (void)state;
    static const resolve_flags own   = {.optim    = "adamw lr=0.5 weight_decay=0.2",
                                        .schedule = "WarmupLR warmup_num_steps=7",
                                        .steps    = "0"};
    static const resolve_flags other = {.optim = "sgd lr=0.5"};
    static const char warmup[]       = "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
                                       "{\"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\"}}}";
    resolution r;
    pen_error why = {0};
    flags         = &own;
    gives(NULL, ADAM("\"lr\": \"auto\", \"weight_decay\": \"auto\""), "optim",
          "adamw lr=0.5 weight_decay=0.2");
    gives(NULL, ADAM("\"lr\": 1, \"weight_decay\": \"auto\""), "optim",
          "adamw lr=1 weight_decay=0.2");
    gives(NULL, warmup, "schedule", "WarmupLR warmup_max_lr=0.5 warmup_num_steps=7");
    flags = &all_flags;
    assert_int_equal(resolve_text(NULL, ADAM("\"lr\": \"auto\""), &other, &r, &why),
                     PEN_BAD_SETTING);
    assert_string_equal(why.text,
                        "d.json:1: optimizer.params.lr is auto: say --lr, or say it to pen_init()");
    resolution_free(&r);
}

static void test_what_the_program_may_say_later_is_left_open(void **state)
{
    (void)state;
    static const resolve_flags later = {.program_may_say = true};
    resolution r;
    pen_error why = {0};
    assert_int_equal(resolve_text(NULL, ADAM("\"lr\": \"auto\", \"eps\": 1"), &later, &r, &why),
                     PEN_OK);
    assert_true(r.is_open);
    assert_null(resolved_find(&r.settings, "optim"));
    assert_int_equal(r.n_notices, 1);
    assert_string_equal(
        r.notices[0].text,
        "d.json:1: optimizer.params.lr is auto: say --lr, unless the program says it");
    resolution_free(&r);
}

static void test_a_flag_or_variable_wins_over_the_file(void **state)
{
    (void)state;
    static const char adam[] = ADAM("\"lr\": 1e-3, \"betas\": [0.8, 0.99], \"eps\": 1e-6");
    gives(NULL, adam, "optim", "adamw lr=3e-4 weight_decay=0.01 beta1=0.8 beta2=0.99 eps=1e-06");
    flags = &no_flags;
    gives(NULL, adam, "optim", "adamw lr=0.001 weight_decay=0 beta1=0.8 beta2=0.99 eps=1e-06");
    given_setting = "optim";
    given_value   = "sgd lr=1";
    gives(NULL, adam, "optim", "sgd lr=1");
    given_setting = "mode";
    given_value   = "zero3";
    gives(NULL, ZERO("\"stage\": 2, \"stage3_max_live_parameters\": 5"), "max_live", "5");
    gives(NULL, ZERO("\"stage\": 2"), "mode", "zero3");
    given_setting = NULL;
    gives(NULL, ZERO("\"stage\": 2, \"stage3_max_live_parameters\": 5"), "max_live", "");
}

static void test_adam_is_decoupled_unless_the_file_disables_it(void **state)
{
    (void)state;
    flags = &no_flags;
    gives(NULL, ADAM("\"weight_decay\": 0.1"), "optim", "adamw weight_decay=0.1");
    gives(NULL, ADAM("\"adam_w_mode\": false"), "optim", "adam");
    gives(NULL, "{\"optimizer\": {\"type\": \"AdamW\"}}", "optim", "adamw weight_decay=0");
    gives(NULL, ADAM("\"torch_adam\": true"), "optim", "adamw");
    gives(NULL, ADAM("\"torch_adam\": true"), "simd", "scalar");
}

static int all_again(void **state)
{
    (void)state;
    flags         = &all_flags;
    given_setting = NULL;
    return 0;
}

static void test_fsdp_words_and_numbers_are_equivalent(void **state)
{
    (void)state;
    static const char *const modes[][3] = {
        {"1", "FULL_SHARD", "full_shard"},
        {"2", "SHARD_GRAD_OP", "shard_grad_op"},
        {"3", "NO_SHARD", "no_shard"},
        {"4", "HYBRID_SHARD", "hybrid_shard"},
        {"5", "HYBRID_SHARD_ZERO2", "hybrid_shard_zero2"},
    };
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        for (int k = 0; k < 2; k++) {
            char yaml[200];
            snprintf(yaml, sizeof yaml,
                     "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: %s\n",
                     modes[i][k]);
            gives(yaml, NULL, "mode", modes[i][2]);
        }
    gives("distributed_type: FSDP\n", NULL, "mode", "full_shard");
    gives("fsdp_config:\n  fsdp_offload_params: true\n", NULL, "offload_optimizer", "cpu");
    gives("fsdp_config:\n  fsdp_transformer_layer_cls_to_wrap: BertLayer,my.*\n", NULL,
          "wrap_match", "**.encoder.layer.*,my.*");
}

/* ---- written files --------------------------------------------------------------------------------------- */

static void test_what_is_written_reads_back_the_same(void **state)
{
    (void)state;
    for (int f = 0; f < N_FILES; f++) {
        document d, again;
        pen_error why;
        char *text;
        size_t size, n = 0;
        if (strstr(files[f], ".yml") == NULL) continue;
        read_file(files[f], &d);
        FILE *out = open_memstream(&text, &size);
        for (size_t i = 0; i < d.n; i++) /* a section without keys is not written */
            if (d.keys[i].kind != DOCUMENT_EMPTY) d.keys[n++] = d.keys[i];
        d.n = n;
        assert_int_equal(document_write_yaml(&d, out, &why), PEN_OK);
        fclose(out);
        assert_int_equal(document_parse_yaml(&again, "again", text, size, &why), PEN_OK);
        assert_int_equal(again.n, d.n);
        for (size_t i = 0; i < d.n; i++) {
            assert_string_equal(again.keys[i].path, d.keys[i].path);
            assert_int_equal(again.keys[i].kind, d.keys[i].kind);
            assert_string_equal(again.keys[i].text, d.keys[i].text);
        }
        free(text);
        document_free(&d);
        document_free(&again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_keys_have_their_paths_kinds_and_lines),
        cmocka_unit_test(test_yaml_words_are_read_as_yaml_1_1_reads_them),
        cmocka_unit_test(test_invalid_files_are_refused_with_their_line),
        cmocka_unit_test(test_a_hostile_depth_is_refused_at_once),
        cmocka_unit_test(test_truncated_and_damaged_files_are_read_or_refused),
        cmocka_unit_test(test_every_key_has_a_meaning_and_every_target_is_a_setting),
        cmocka_unit_test(test_every_word_a_key_becomes_is_accepted_by_its_setting),
        cmocka_unit_test(test_the_files_of_the_literature_become_these_settings),
        cmocka_unit_test(test_launch_keys_reach_the_launcher),
        cmocka_unit_test(test_unknown_keys_are_refused_with_the_nearest),
        cmocka_unit_test(test_values_of_the_wrong_kind_are_refused),
        cmocka_unit_test(test_known_keys_without_effect_are_reported_once),
        cmocka_unit_test(test_contradictory_places_are_both_named),
        cmocka_unit_test(test_files_are_offloaded_to_only_where_the_stage_allows),
        cmocka_unit_test(test_an_auto_that_nothing_resolves_names_the_flag_that_does),
        cmocka_unit_test(test_an_auto_is_the_programs_if_its_rule_is_the_files),
        cmocka_unit_test(test_what_the_program_may_say_later_is_left_open),
        cmocka_unit_test_teardown(test_a_flag_or_variable_wins_over_the_file, all_again),
        cmocka_unit_test_teardown(test_adam_is_decoupled_unless_the_file_disables_it, all_again),
        cmocka_unit_test(test_fsdp_words_and_numbers_are_equivalent),
        cmocka_unit_test(test_what_is_written_reads_back_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
