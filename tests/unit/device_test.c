/* device_test.c - what every device promises (device.h), on the host; a query initializes no device. */
#include "common/compute/device/device_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

extern const device_ops device_cpu, device_cuda;

static void host_memory_belongs_to_the_host(void **state)
{
    int here = 0;
    (void)state;
    assert_ptr_equal(device_of(&here), &device_cpu);
    assert_ptr_equal(device_of(NULL), &device_cpu);
    assert_int_equal(device_cpu.current(), -1);
    assert_int_equal(device_cpu.device(&here), -1);
}

static void asking_loads_no_driver(void **state)
{
    int here = 0;
    (void)state;
    assert_false(device_cuda.owns(&here));
    assert_int_equal(device_cuda.device(&here), -1);
    assert_int_equal(device_cuda.current(), -1);
    assert_null(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD));
}

static void a_missing_device_is_reported(void **state)
{
    char note[128] = "";
    pen_error why  = {0};
    (void)state;
    if (device_cuda.available(note, sizeof note)) skip();
    assert_true(strlen(note) > 10);
    assert_null(device_cuda.alloc(64, 0, &why));
    assert_true(why.status == PEN_UNSUPPORTED || why.status == PEN_DEVICE);
    assert_true(strlen(why.text) > 10);
    memset(&why, 0, sizeof why);
    assert_null(device_cuda.host_alloc(64, &why));
    assert_int_not_equal(why.status, PEN_OK);
    assert_int_not_equal(device_cuda.enter(0, &why), PEN_OK);
}

static void memory_is_zeroed_and_aligned(void **state)
{
    static const size_t sizes[] = {0, 1, 255, 256, 100000};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *data = device_cpu.alloc(sizes[i], -1, NULL);
        assert_non_null(data);
        assert_int_equal((uintptr_t)data % 256, 0);
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(data[k], 0);
        memset(data, 7, sizes[i]);
        device_cpu.free(data);
    }
    device_cpu.free(NULL);
    pen_error why = {0};
    assert_null(device_cpu.alloc(SIZE_MAX - 100, -1, &why));
    assert_int_equal(why.status, PEN_NO_MEMORY);
}

static void a_reference_of_this_process_is_the_pointer_itself(void **state)
{
    device_ref ref, other;
    void *mapped = NULL;
    (void)state;
    char *data = device_cpu.alloc(5000, -1, NULL);
    assert_int_equal(device_cpu.share(data + 100, 50, &ref, NULL), PEN_OK);
    assert_int_equal(ref.pid, getpid());
    assert_int_equal(device_cpu.map(&ref, &mapped, NULL), PEN_OK);
    assert_ptr_equal(mapped, data + 100);
    assert_int_equal(device_cpu.share(data, 50, &other, NULL), PEN_OK);
    assert_true(other.id == ref.id && other.offset + 100 == ref.offset && other.base == ref.base);
    device_cpu.unmap(&ref);
    device_cpu.free(data);
}

/* As another process would see it: nothing in the reference marks it as local. */
static void a_reference_of_another_process_is_mapped(void **state)
{
    device_ref ref;
    void *mapped = NULL;
    (void)state;
    char *data = device_cpu.alloc(5000, -1, NULL);
    memcpy(data + 4096, "shared", 7);
    assert_int_equal(device_cpu.share(data + 4096, 7, &ref, NULL), PEN_OK);
    ref.process++;
    assert_int_equal(device_cpu.map(&ref, &mapped, NULL), PEN_OK);
    assert_ptr_not_equal(mapped, data + 4096);
    assert_string_equal(mapped, "shared");
    device_cpu.unmap(&ref);
    device_cpu.free(data);
}

static void foreign_memory_cannot_be_shared(void **state)
{
    static char foreign[64];
    device_ref ref;
    pen_error why = {0};
    (void)state;
    assert_int_equal(device_cpu.share(foreign, sizeof foreign, &ref, &why), PEN_UNSUPPORTED);
    assert_non_null(strstr(why.text, "pen_alloc"));
}

static void a_false_reference_is_refused(void **state)
{
    device_ref ref;
    void *mapped  = NULL;
    pen_error why = {0};
    (void)state;
    char *data = device_cpu.alloc(100, -1, NULL);
    assert_int_equal(device_cpu.share(data, 100, &ref, NULL), PEN_OK);
    ref.process++;
    ref.offset = UINT64_MAX / 2;
    assert_int_equal(device_cpu.map(&ref, &mapped, &why), PEN_CORRUPT);
    assert_null(mapped);
    device_cpu.free(data);
}

static void copies_and_folds_are_done_at_once(void **state)
{
    const float x[5] = {1, 2, 3, 4, 5}, y[5] = {10, 20, 30, 40, 50};
    float z[5] = {0}, sum[5] = {0};
    const void *in[]       = {x, y};
    void *out[]            = {z, sum};
    const reduce_args args = {
        .op = PEN_SUM, .dtype = PEN_F32, .n_in = 2, .n_out = 2, .in = in, .out = out};
    (void)state;
    assert_int_equal(device_cpu.reduce(&args, 1, 3, NULL, NULL), PEN_OK);
    for (int i = 0; i < 5; i++) {
        assert_true(z[i] == (i >= 1 && i <= 3 ? x[i] + y[i] : 0));
        assert_true(sum[i] == z[i]);
    }
    assert_int_equal(device_cpu.copy(z, y, sizeof z, NULL, NULL), PEN_OK);
    assert_memory_equal(z, y, sizeof z);
    const reduce_args wrong = {
        .op = PEN_BAND, .dtype = PEN_F32, .n_in = 2, .n_out = 2, .in = in, .out = out};
    assert_int_equal(device_cpu.reduce(&wrong, 0, 5, NULL, NULL), PEN_INVALID_ARGUMENT);
}

static void events_are_done_when_they_were_asked_often_enough(void **state)
{
    device_event_ref ref;
    (void)state;
    device_event *event = device_cpu.event_new();
    device_cpu_set_event_polls(2);
    assert_int_equal(device_cpu.event_record(event, NULL, NULL), PEN_OK);
    assert_int_equal(device_cpu.event_done(event, NULL), PEN_AGAIN);
    assert_int_equal(device_cpu.event_done(event, NULL), PEN_AGAIN);
    assert_int_equal(device_cpu.event_done(event, NULL), PEN_OK);
    device_cpu_set_event_polls(0);
    assert_int_equal(device_cpu.event_record(event, NULL, NULL), PEN_OK);
    assert_int_equal(device_cpu.event_done(event, NULL), PEN_OK);
    assert_int_equal(device_cpu.event_share(event, &ref, NULL), PEN_OK);
    device_event *mapped = device_cpu.event_map(&ref, NULL);
    assert_int_equal(device_cpu.stream_wait(NULL, mapped, NULL), PEN_OK);
    device_cpu.event_free(mapped);
    device_cpu.event_free(event);
}

static void a_wait_for_flags_ends_when_all_have_come_or_at_the_abort_word(void **state)
{
    (void)state;
    char *flags        = device_cpu.alloc(3 * DEVICE_FLAG_BYTES, -1, NULL);
    uint64_t *abort    = device_cpu.host_alloc(sizeof *abort, NULL);
    uint32_t *result   = device_cpu.host_alloc(sizeof *result, NULL);
    void *first_two[]  = {flags, flags + DEVICE_FLAG_BYTES};
    void *third        = flags + 2 * DEVICE_FLAG_BYTES;
    device_flag_wait w = {.flags = flags, .abort = abort, .result = result, .value = 4, .n = 3};
    assert_int_equal(device_cpu.flag_set(first_two, 2, 4, NULL, NULL), PEN_OK);
    assert_int_equal(device_cpu.flag_wait(&w, NULL, NULL), PEN_AGAIN);
    assert_int_equal(device_cpu.flag_set(&third, 1, 5, NULL, NULL), PEN_OK);
    assert_int_equal(device_cpu.flag_wait(&w, NULL, NULL), PEN_OK);
    assert_int_equal(*result, DEVICE_FLAG_CAME);
    w.value = 9;
    *abort  = 1;
    assert_int_equal(device_cpu.flag_wait(&w, NULL, NULL), PEN_OK);
    assert_int_equal(*result, DEVICE_FLAG_ABORTED);
    device_cpu.host_free(abort);
    device_cpu.host_free(result);
    device_cpu.free(flags);
}

static void uuids_tell_devices_apart_and_are_stable(void **state)
{
    uint8_t host[16], again[16], first[16], second[16];
    (void)state;
    device_cpu.uuid(-1, host);
    device_cpu.uuid(-1, again);
    device_cpu.uuid(0, first);
    device_cpu.uuid(1, second);
    assert_memory_equal(host, again, 16);
    assert_memory_not_equal(host, first, 16);
    assert_memory_not_equal(first, second, 16);
    assert_true(device_process() != 0 && device_process() == device_process());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asking_loads_no_driver), /* first: `available` may load one */
        cmocka_unit_test(host_memory_belongs_to_the_host),
        cmocka_unit_test(a_missing_device_is_reported),
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(a_reference_of_this_process_is_the_pointer_itself),
        cmocka_unit_test(a_reference_of_another_process_is_mapped),
        cmocka_unit_test(foreign_memory_cannot_be_shared),
        cmocka_unit_test(a_false_reference_is_refused),
        cmocka_unit_test(copies_and_folds_are_done_at_once),
        cmocka_unit_test(events_are_done_when_they_were_asked_often_enough),
        cmocka_unit_test(a_wait_for_flags_ends_when_all_have_come_or_at_the_abort_word),
        cmocka_unit_test(uuids_tell_devices_apart_and_are_stable),
    };
    alarm(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
