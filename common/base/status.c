/* status.c - names, texts and remedies, made from the list in penstock.h. */
#include "penstock.h"

static const pen_status_row rows[] = {
#define X(name, value, remedy, text) {PEN_##name, PEN_ACT_##remedy, #name, text},
    PEN_STATUS_LIST(X)
#undef X
};

static const pen_status_row unknown = {PEN_STATUS_MAX_, PEN_ACT_STOP, "UNKNOWN",
                                       "a status this version of Penstock does not know"};

const pen_status_row *pen_status_info(pen_status status)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].status == status) return &rows[i];
    return &unknown;
}
