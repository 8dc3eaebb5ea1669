/* model_memory_test.c - what may be registered, by where it lies.  model.c is compiled in here with a device_of() of this
 * file's, for which one page is memory of a device. */
#include "common/device/device.h"

static const device_ops *device_of_page(const void *pointer);
#define device_of device_of_page
#include "worker/model.c" /* the unit under test */
#undef device_of

#include "worker/context.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static float page[1024];

static const device_ops *device_of_page(const void *pointer)
{
    static const device_ops pretended = {.name = "cuda"};
    const float *at                   = pointer;
    return at >= page && at < page + 1024 ? &pretended : device_of(pointer);
}

static void expect(const pen_tensor_desc *d, pen_status status, const char *begin)
{
    static pen_ctx ctx = {.sync = "bsp"};
    static model m;
    pen_error why = {0};
    assert_int_equal(model_init(&m, &ctx, &why), PEN_OK);
    assert_int_equal(model_add_tensor(&m, &ctx, d, NULL, &why), status);
    if (begin != NULL) assert_memory_equal(why.text, begin, strlen(begin));
    model_fini(&m);
}

static void memory_of_a_device_is_refused_with_the_name_of_the_tensor(void **state)
{
    static float host[16];
    (void)state;
    const pen_tensor_desc both = {
        .name = "w", .ndim = 1, .shape = {16}, .param = host, .grad = host};
    pen_tensor_desc d = both;
    expect(&d, PEN_OK, NULL);
    d.param = page + 8;
    expect(&d, PEN_UNSUPPORTED, "'w': param lies in memory of a device (cuda)");
    d.flags = PEN_FROZEN;
    expect(&d, PEN_UNSUPPORTED, "'w': param lies in memory of a device (cuda)");
    d      = both;
    d.grad = page;
    expect(&d, PEN_UNSUPPORTED, "'w': grad lies in memory of a device (cuda)");
    d.grad = NULL;
    expect(&d, PEN_OK, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_a_device_is_refused_with_the_name_of_the_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
