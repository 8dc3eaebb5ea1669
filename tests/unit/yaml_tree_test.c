/* yaml_tree_test.c - manifests that are read, changed in place and written. */
#include "cli/emit/yaml_tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char two[] = "kind: Job # a comment\n"
                          "metadata: {name: old-worker}\n"
                          "spec:\n"
                          "  count: 2\n"
                          "  command: [a, \"2\"]\n"
                          "  volumes:\n"
                          "    - name: store\n"
                          "      claim: old-store\n"
                          "    - {name: tmp}\n"
                          "---\n"
                          "kind: Service\n";

static yaml_tree *read_first(void)
{
    yaml_tree *all[2];
    size_t n;
    pen_error why;
    assert_int_equal(yaml_tree_read(two, strlen(two), all, 2, &n, &why), PEN_OK);
    assert_int_equal(n, 2);
    assert_string_equal(yaml_tree_text(all[1], "kind"), "Service");
    yaml_tree_free(all[1]);
    return all[0];
}

/* Expects this text from the tree, and frees the tree. */
static void expect_written(yaml_tree *tree, const char *wanted)
{
    char *text = NULL;
    size_t size;
    pen_error why;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_int_equal(yaml_tree_write(tree, out, &why), PEN_OK);
    fclose(out);
    assert_string_equal(text, wanted);
    free(text);
}

static void test_unchanged_parts_are_written_byte_for_byte(void **state)
{
    (void)state;
    expect_written(read_first(), "---\nkind: Job\nmetadata: {name: old-worker}\nspec:\n  count: 2\n"
                                 "  command: [a, \"2\"]\n  volumes:\n  - name: store\n"
                                 "    claim: old-store\n  - {name: tmp}\n");
}

static void test_places_are_found_and_others_are_not(void **state)
{
    (void)state;
    yaml_tree *t = read_first();
    assert_string_equal(yaml_tree_text(t, "spec.command.1"), "2");
    assert_string_equal(yaml_tree_text(t, "spec.volumes.0.claim"), "old-store");
    assert_null(yaml_tree_text(t, "spec.volumes.2.name"));
    assert_null(yaml_tree_text(t, "spec.volumes.x"));
    assert_null(yaml_tree_text(t, "spec.command"));
    assert_null(yaml_tree_text(t, "spec.cou"));
    assert_false(yaml_tree_set(t, "nowhere.name", "x", false));
    assert_false(yaml_tree_set(t, "spec.command", "x", false));
    assert_false(yaml_tree_clear(t, "kind"));
    assert_false(yaml_tree_add(t, "metadata", "x"));
    assert_false(yaml_tree_drop(t, "spec.volumes", "none"));
    yaml_tree_free(t);
}

static void test_texts_lists_and_maps_are_changed_in_place(void **state)
{
    (void)state;
    yaml_tree *t                 = read_first();
    static const char *const a[] = {"name", "shm", "path", "/dev/shm", NULL};
    assert_true(yaml_tree_set(t, "spec.count", "3", false));
    assert_true(yaml_tree_set(t, "spec.new", "yes", true));
    assert_true(yaml_tree_clear(t, "spec.command"));
    assert_true(yaml_tree_add(t, "spec.command", "two words"));
    assert_true(yaml_tree_drop(t, "spec.volumes", "store"));
    assert_true(yaml_tree_add_map(t, "spec.volumes", a));
    assert_true(yaml_tree_add_claim(t, "spec.volumes", "store", "job-store"));
    expect_written(t, "---\nkind: Job\nmetadata: {name: old-worker}\nspec:\n  count: 3\n"
                      "  command: [\"two words\"]\n  volumes:\n  - {name: tmp}\n"
                      "  - {name: \"shm\", path: \"/dev/shm\"}\n"
                      "  - {name: \"store\", persistentVolumeClaim: {claimName: \"job-store\"}}\n"
                      "  new: \"yes\"\n");
}

static char *shout(void *user, const char *key, const char *text)
{
    int *seen = user;
    ++*seen;
    return key != NULL && strcmp(key, "name") == 0 && strcmp(text, "tmp") == 0 ? strdup("TMP")
                                                                               : NULL;
}

static void test_every_value_is_shown_with_its_key_and_keys_are_not(void **state)
{
    (void)state;
    int seen     = 0;
    yaml_tree *t = read_first();
    yaml_tree_each(t, shout, &seen);
    assert_int_equal(seen, 8);
    assert_string_equal(yaml_tree_text(t, "spec.volumes.1.name"), "TMP");
    yaml_tree_free(t);
}

static void test_invalid_yaml_is_refused_with_its_line(void **state)
{
    (void)state;
    static const char bad[] = "a: 1\nb: [1\nc: 2\n";
    yaml_tree *all[2];
    size_t n;
    pen_error why;
    assert_int_equal(yaml_tree_read(bad, strlen(bad), all, 2, &n, &why), PEN_BAD_SETTING);
    assert_non_null(strstr(why.text, "line 3 of the manifests is not valid YAML"));
    assert_int_equal(yaml_tree_read(two, strlen(two), all, 1, &n, &why), PEN_BAD_SETTING);
    assert_string_equal(why.text, "more than 1 manifests");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unchanged_parts_are_written_byte_for_byte),
        cmocka_unit_test(test_places_are_found_and_others_are_not),
        cmocka_unit_test(test_texts_lists_and_maps_are_changed_in_place),
        cmocka_unit_test(test_every_value_is_shown_with_its_key_and_keys_are_not),
        cmocka_unit_test(test_invalid_yaml_is_refused_with_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
