/* fuzz_wire_control.c - any message on the control plane is refused, or means the same when it
 * is sent on; and a model that arrived is partitioned into a plan, or refused. */
#include "common/compute/optim/optim.h"
#include "proto/plan.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/wire_difference.h"

/* plan.c checks a rule in two ways only: does it exist, is it complete?  So no kernels need be linked. */
const optim_ops *optim_find(const char *name)
{
    static const optim_ops ordinary = {.name = "sgd"},
                           whole    = {.name = "lamb", .whole_tensor = true};
    if (strcmp(name, whole.name) == 0) return &whole;
    return name[0] <= 'm' ? NULL : &ordinary;
}

static wire_arena *arenas[2];
static wire_out sent, again;

static void cut(const wire_model *model)
{
    pen_error why;
    plan *p           = NULL;
    uint64_t elements = 0; /* larger ones too, but not a thousand times a second */
    for (uint32_t t = 0; t < model->n_tensors; t++)
        elements += plan_tensor_elements(&model->tensor[t]);
    if (elements > (uint64_t)1 << 30) return;
    if (plan_create(model, &p, &why) != PEN_OK) {
        FUZZ_CHECK(p == NULL && why.text[0] != '\0');
        return;
    }
    uint64_t covered = 0;
    for (uint32_t c = 0; c < p->n_chunks; c++) covered += p->chunk[c].count;
    FUZZ_CHECK(covered == elements);
    FUZZ_CHECK(plan_compare(model, 0, "a", model, 1, "b", &why) == PEN_OK);
    plan_destroy(p);
}

static void decode_and_send_on(const uint8_t *head, size_t size, wire_arena *arena)
{
    wire_control c, back;
    pen_error why;
    wire_arena_reset(arena);
    pen_status status = wire_control_decode(head, size, arena, &c, &why);
    FUZZ_CHECK(status == PEN_OK || status == PEN_CORRUPT || status == PEN_NO_MEMORY);
    FUZZ_CHECK(status == PEN_OK || (why.status == status && why.text[0] != '\0'));
    if (status != PEN_OK) return;
    FUZZ_CHECK(wire_control_encode(&c, &sent, &why) == PEN_OK);
    wire_arena_reset(arenas[1]);
    FUZZ_CHECK(wire_control_decode(sent.data, sent.size, arenas[1], &back, &why) == PEN_OK);
    FUZZ_CHECK(wire_difference_control(&c, &back) == NULL);
    FUZZ_CHECK(wire_control_encode(&back, &again, &why) == PEN_OK);
    FUZZ_CHECK(sent.size == again.size && memcmp(sent.data, again.data, sent.size) == 0);
    if (c.kind == WIRE_REGISTER) cut(&c.u.register_);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int i = 0; i < 2; i++)
        if (arenas[i] == NULL) arenas[i] = wire_arena_create(8 << 20);
    FUZZ_CHECK(arenas[0] != NULL && arenas[1] != NULL);
    decode_and_send_on(data, size, arenas[0]);

    /* Again behind a valid prefix, with as much memory as is needed and with less. */
    uint8_t *head = fuzz_seal(data, size, 1);
    if (head == NULL) return 0;
    decode_and_send_on(head, size, arenas[0]);
    wire_arena *small = wire_arena_create(data[0] * 16u);
    FUZZ_CHECK(small != NULL);
    decode_and_send_on(head, size, small);
    wire_arena_destroy(small);
    free(head);
    return 0;
}
