/* unit_test.c - the tensors of a unit: by label, by layer, by size, by hand; and how a program finds its unit. */
#include "worker/tensor/unit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS_MAX = 256 };

typedef struct {
    unit_tensor t[TENSORS_MAX];
    char name[TENSORS_MAX][64];
    uint32_t n;
} tensors;

static void add(tensors *all, const char *name, const char *label, uint64_t elements, bool is_tied)
{
    snprintf(all->name[all->n], sizeof all->name[0], "%s", name);
    all->t[all->n] = (unit_tensor){.name     = all->name[all->n],
                                   .label    = label,
                                   .elements = elements,
                                   .bytes    = 4 * elements,
                                   .is_tied  = is_tied};
    all->n++;
}

static unit_set make(const tensors *all, unit_wrap wrap, const char *match, uint64_t min_params)
{
    unit_set set;
    pen_error why;
    const unit_rules rules = {wrap, match, min_params};
    assert_int_equal(units_make(&set, NULL, all->t, all->n, &rules, &why), PEN_OK);
    return set;
}

/* GPT-2 124M as Hugging Face names it: 12 layers of 12 tensors, and four outside; the head is tied to wte. */
static void add_gpt2(tensors *all)
{
    static const struct {
        const char *name;
        uint64_t elements;
    } parts[] = {{"ln_1.weight", 768},
                 {"ln_1.bias", 768},
                 {"attn.c_attn.weight", 768 * 2304},
                 {"attn.c_attn.bias", 2304},
                 {"attn.c_proj.weight", 768 * 768},
                 {"attn.c_proj.bias", 768},
                 {"ln_2.weight", 768},
                 {"ln_2.bias", 768},
                 {"mlp.c_fc.weight", 768 * 3072},
                 {"mlp.c_fc.bias", 3072},
                 {"mlp.c_proj.weight", 3072 * 768},
                 {"mlp.c_proj.bias", 768}};
    add(all, "wte.weight", NULL, 50257 * 768, true);
    add(all, "wpe.weight", NULL, 1024 * 768, false);
    for (int l = 0; l < 12; l++)
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            char name[64];
            snprintf(name, sizeof name, "h.%d.%s", l, parts[i].name);
            add(all, name, NULL, parts[i].elements, false);
        }
    add(all, "ln_f.weight", NULL, 768, false);
    add(all, "ln_f.bias", NULL, 768, false);
}

/* ---- making ---------------------------------------------------------------------------------- */
static void test_unit_labels_of_registration_make_units_and_the_rest_is_outermost(void **state)
{
    (void)state;
    static tensors
        all; /* three linear layers of a manual wrap: 8x4, 4x16, 16x4, the middle one left out */
    all.n = 0;
    add(&all, "l1.weight", "l1", 32, false);
    add(&all, "l1.bias", "l1", 4, false);
    add(&all, "l2.weight", NULL, 64, false);
    add(&all, "l2.bias", "", 16, false);
    add(&all, "l3.weight", "l3", 64, false);
    add(&all, "l3.bias", "l3", 4, false);
    unit_set set = make(&all, WRAP_UNIT, "", 1);
    assert_int_equal(set.n, 3);
    assert_string_equal(set.unit[0].name, "");
    assert_int_equal(set.unit[0].elements, 80);
    assert_int_equal(set.unit[1].elements, 36);
    assert_int_equal(set.unit[2].elements, 68);
    assert_string_equal(set.unit[2].name, "l3");
    assert_int_equal(set.unit[2].bytes, 4 * 68);
    assert_int_equal(set.unit[0].tensor[1], 3);
    assert_int_equal(set.of[4], 2);
    units_fini(&set);
}

static void test_unit_gpt2_by_layer_has_twelve_layers_and_an_outermost_unit(void **state)
{
    (void)state;
    static tensors all;
    static const char *const patterns[] = {"", "h.*", "h.?,h.??", "x.*|h.*"};
    all.n                               = 0;
    add_gpt2(&all);
    for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++) {
        unit_set set = make(&all, WRAP_LAYER, patterns[p], 1);
        assert_int_equal(set.n, 13);
        assert_int_equal(set.unit[0].n_tensors, 4);
        for (int l = 0; l < 12; l++) {
            char name[16];
            snprintf(name, sizeof name, "h.%d", l);
            assert_string_equal(set.unit[1 + l].name, name);
            assert_int_equal(set.unit[1 + l].n_tensors, 12);
            assert_int_equal(set.unit[1 + l].elements, 7087872);
        }
        uint64_t total = 0;
        for (uint32_t i = 0; i < set.n; i++) total += set.unit[i].elements;
        assert_int_equal(total, 124439808);
        units_fini(&set);
    }
}

static void test_unit_a_pattern_is_about_whole_parts_and_the_innermost_layer_wins(void **state)
{
    (void)state;
    static tensors all;
    all.n = 0;
    add(&all, "encoder.layer.10.attention.self.weight", NULL, 1, false);
    add(&all, "encoder.layer.10.output.weight", NULL, 2, false);
    add(&all, "encoder.norm.weight", NULL, 4, false);
    unit_set set = make(&all, WRAP_LAYER, "encoder.layer.*,encoder.layer.*.attention", 1);
    assert_int_equal(set.n, 3);
    assert_string_equal(set.unit[1].name, "encoder.layer.10.attention");
    assert_string_equal(set.unit[2].name, "encoder.layer.10");
    assert_int_equal(set.unit[0].elements, 4);
    units_fini(&set);
}

static void test_unit_a_leading_double_star_stands_for_any_prefix(void **state)
{
    (void)state;
    static const char *const prefixes[] = {"", "bert.", "model.language.bert."};
    static tensors all;
    for (size_t p = 0; p < sizeof prefixes / sizeof *prefixes; p++) {
        char name[2][80], layer[80];
        all.n = 0;
        snprintf(name[0], sizeof name[0], "%sencoder.layer.10.output.weight", prefixes[p]);
        snprintf(name[1], sizeof name[1], "%smyencoder.layer.10.weight", prefixes[p]);
        snprintf(layer, sizeof layer, "%sencoder.layer.10", prefixes[p]);
        add(&all, name[0], NULL, 2, false);
        add(&all, name[1], NULL, 4, false);
        unit_set set = make(&all, WRAP_LAYER, "**.encoder.layer.*", 1);
        assert_int_equal(set.n, 2);
        assert_string_equal(set.unit[1].name, layer);
        assert_int_equal(set.unit[1].elements, 2);
        units_fini(&set);
    }
}

static void refuses(const tensors *all, const char *patterns, const char *sentence)
{
    const unit_rules rules = {WRAP_LAYER, patterns, 1};
    unit_set set;
    pen_error why = {.text = ""};
    assert_int_equal(units_make(&set, NULL, all->t, all->n, &rules, &why), PEN_BAD_SETTING);
    assert_string_equal(why.text, sentence);
    units_fini(&set);
}

static void test_unit_pattern_that_matches_no_layer_is_told_with_those_there_are(void **state)
{
    (void)state;
    static tensors all;
    all.n = 0;
    add(&all, "encoder.layer.10.attention.self.weight", NULL, 1, false);
    add(&all, "encoder.norm.weight", NULL, 4, false);
#define LAYERS                                                                                     \
    "; it has encoder, encoder.layer, encoder.layer.*, encoder.layer.*.attention, "                \
    "encoder.layer.*.attention.self, encoder.norm"
    refuses(&all, "BertLayer", "wrap_match: no layer of this model is named 'BertLayer'" LAYERS);
    refuses(&all, "encoder.*.weight", /* a tensor's own name is not a layer */
            "wrap_match: no layer of this model is named 'encoder.*.weight'" LAYERS);
    refuses(&all, "Encoder.layer.*", /* case matters */
            "wrap_match: no layer of this model is named 'Encoder.layer.*'" LAYERS);
    refuses(&all, "encoder.layer.*,a.*|b.*,c",
            "wrap_match: no layer of this model is named 'a.*|b.*'" LAYERS);
#undef LAYERS
    all.n = 0;
    add(&all, "weight", NULL, 1, false);
    refuses(&all, "h.*",
            "wrap_match: no layer of this model is named 'h.*': no name of a tensor has a dot");
}

static void test_unit_by_size_takes_tensors_until_there_are_enough_elements(void **state)
{
    (void)state;
    static tensors all;
    static const uint64_t sizes[]   = {60, 50, 100, 30, 30, 30, 5, 200, 99};
    static const uint32_t unit_of[] = {1, 1, 2, 3, 3, 3, 3, 3, 0};
    all.n                           = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%zu", i);
        add(&all, name, NULL, sizes[i], false);
    }
    unit_set set = make(&all, WRAP_SIZE, "", 100);
    assert_int_equal(set.n, 4);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        assert_int_equal(set.of[i], unit_of[i]);
    assert_int_equal(set.unit[1].elements, 110);
    assert_int_equal(set.unit[3].elements, 295);
    assert_int_equal(set.unit[0].elements, 99);
    units_fini(&set);
}

static void test_unit_tied_tensors_are_always_in_the_outermost_unit(void **state)
{
    (void)state;
    static tensors all;
    all.n = 0;
    add(&all, "h.0.a", "h.0", 10, false);
    add(&all, "h.0.shared", "h.0", 7, true);
    const unit_wrap wraps[] = {WRAP_UNIT, WRAP_LAYER, WRAP_SIZE, WRAP_NONE};
    for (size_t i = 0; i < 4; i++) {
        unit_set set = make(&all, wraps[i], "", 1);
        assert_int_equal(set.of[1], 0);
        assert_int_equal(set.of[0], wraps[i] == WRAP_NONE ? 0 : 1);
        units_fini(&set);
    }
}

static void test_unit_moving_elements_are_those_of_tensors_that_do_not_stay(void **state)
{
    (void)state;
    static tensors all;
    all.n = 0;
    add(&all, "h.0.w", "h.0", 1000, false);
    add(&all, "h.0.b", "h.0", 10, false);
    all.t[1].stays = true;
    unit_set set   = make(&all, WRAP_UNIT, "", 1);
    assert_int_equal(set.unit[1].elements, 1010);
    assert_int_equal(set.unit[1].moving, 1000);
    assert_int_equal(set.unit[0].moving, 0);
    units_fini(&set);
}

static void test_unit_pattern_that_is_empty_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {",", "h.*,", ",h.*", "h.*,,x.*"};
    static tensors all;
    all.n = 0;
    add(&all, "h.0.w", NULL, 10, false);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        unit_set set;
        pen_error why          = {0};
        const unit_rules rules = {WRAP_LAYER, bad[i], 1};
        assert_int_equal(units_make(&set, NULL, all.t, all.n, &rules, &why), PEN_BAD_SETTING);
        assert_non_null(strstr(why.text, "wrap_match"));
        units_fini(&set);
    }
}

/* ---- finding --------------------------------------------------------------------------------- */
static pen_unit *find(const unit_set *set, const char *name, int64_t index)
{
    pen_unit *u = NULL;
    pen_error why;
    assert_int_equal(units_find(set, name, index, &u, &why), PEN_OK);
    return u;
}

static void test_unit_is_found_by_name_and_index_with_every_wrap(void **state)
{
    (void)state;
    static tensors all;
    all.n = 0;
    add(&all, "embed", NULL, 5, false);
    add(&all, "h.0.w", "h.0", 10, false);
    add(&all, "h.1.w", "h.1", 20, false);
    add(&all, "head", "head", 40, false);
    const unit_wrap wraps[] = {WRAP_UNIT, WRAP_LAYER, WRAP_SIZE, WRAP_NONE};
    for (size_t i = 0; i < 4; i++) {
        unit_set set = make(&all, wraps[i], "", 12);
        assert_string_equal(find(&set, "h", 1)->name, "h.1");
        assert_int_equal(find(&set, "h.1", PEN_ALL)->elements, 20);
        assert_string_equal(find(&set, "head", 0)->name, "head");
        assert_ptr_equal(find(&set, NULL, 0), &set.handle[0]);
        assert_int_equal(find(&set, NULL, 7)->elements, 5);
        /* It covers the unit of its tensor, and no other. */
        assert_int_equal(find(&set, "h", 1)->n_covers, 1);
        assert_int_equal(find(&set, "h", 1)->covers[0], set.of[2]);
        units_fini(&set);
    }
}

static void test_unit_unknown_name_is_refused_with_the_nearest_one(void **state)
{
    (void)state;
    static tensors all;
    all.n = 0;
    add(&all, "h.0.w", "h.0", 10, false);
    add(&all, "h.1.w", "h.1", 20, false);
    unit_set set = make(&all, WRAP_UNIT, "", 1);
    pen_unit *u  = NULL;
    pen_error why;
    assert_int_equal(units_find(&set, "h", 2, &u, &why), PEN_NOT_FOUND);
    assert_string_equal(why.text, "no unit is named 'h.2'; the nearest name is 'h.0'");
    assert_null(u);
    units_fini(&set);
    all.t[0].label = all.t[1].label = NULL;
    set                             = make(&all, WRAP_UNIT, "", 1);
    assert_int_equal(units_find(&set, "h", 0, &u, &why), PEN_NOT_FOUND);
    assert_string_equal(why.text, "no unit is named 'h.0', because no tensor has a unit; set "
                                  "pen_tensor_desc.unit, or wrap=layer");
    units_fini(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unit_labels_of_registration_make_units_and_the_rest_is_outermost),
        cmocka_unit_test(test_unit_gpt2_by_layer_has_twelve_layers_and_an_outermost_unit),
        cmocka_unit_test(test_unit_a_pattern_is_about_whole_parts_and_the_innermost_layer_wins),
        cmocka_unit_test(test_unit_a_leading_double_star_stands_for_any_prefix),
        cmocka_unit_test(test_unit_pattern_that_matches_no_layer_is_told_with_those_there_are),
        cmocka_unit_test(test_unit_by_size_takes_tensors_until_there_are_enough_elements),
        cmocka_unit_test(test_unit_tied_tensors_are_always_in_the_outermost_unit),
        cmocka_unit_test(test_unit_moving_elements_are_those_of_tensors_that_do_not_stay),
        cmocka_unit_test(test_unit_pattern_that_is_empty_is_refused),
        cmocka_unit_test(test_unit_is_found_by_name_and_index_with_every_wrap),
        cmocka_unit_test(test_unit_unknown_name_is_refused_with_the_nearest_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
