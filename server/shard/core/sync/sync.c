/* sync.c - the registry of consistency rules, and their parser. */
#include "server/shard/core/sync/sync.h"

#include "common/base/why.h"

#include <string.h>

extern const sync_ops sync_bsp, sync_ssp, sync_async;

const sync_ops *const sync_all[] = {&sync_bsp, &sync_ssp, &sync_async, NULL};

static const sync_ops *find_rule(const char *name, size_t length)
{
    for (size_t i = 0; sync_all[i] != NULL; i++)
        if (strlen(sync_all[i]->name) == length && memcmp(sync_all[i]->name, name, length) == 0)
            return sync_all[i];
    return NULL;
}

pen_status sync_parse(const char *text, const sync_ops **ops, sync_hyper *hyper, pen_error *why)
{
    if (text == NULL || *text == '\0') text = sync_bsp.name;
    const size_t length    = strcspn(text, " ");
    const sync_ops *choice = find_rule(text, length);
    if (choice == NULL)
        return why_set(why, PEN_BAD_SETTING,
                       "unknown consistency rule '%.*s'; expected bsp, \"ssp s=N\" or async",
                       (int)length, text);

    sync_hyper told;
    config_defaults(choice->hyper_rows, &told);
    const pen_status status = config_from_words(choice->hyper_rows, &told, text + length, why);
    if (status != PEN_OK) return status;
    *ops   = choice;
    *hyper = told;
    return PEN_OK;
}
