/* api_state.c - pen_state_add, pen_restore, pen_export, pen_import: states and parameters that outlive a job. */
#include "worker/api/api.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/system/file_limit.h"
#include "common/system/fp_env.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/export.h"
#include "worker/train/snapshot/snapshot_writer.h"

#include <string.h>

/* ---- states ---------------------------------------------------------------------------------- */
pen_status pen_state_add(pen_ctx *ctx, const char *name, void *data, size_t size, int per_rank)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_check(ctx, "pen_state_add");
    if (status != PEN_OK) return status;
    if (name != NULL && strncmp(name, "penstock.", 9) == 0)
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "pen_state_add('%.60s'): names that begin with 'penstock.' are "
                                 "reserved; choose another name",
                                 name);
    status = state_table_add(&ctx->states, name, data, size, per_rank != 0, &why);
    return status == PEN_OK ? status : last_error_set(&why);
}

/* ---- restoring ------------------------------------------------------------------------------ */
static pen_status run_restore(pen_ctx *ctx, int64_t step)
{
    pen_error why;
    if (step < -1)
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "pen_restore: invalid step %lld; use -1 for the newest snapshot",
                                 (long long)step);
    if (ctx->phase != CONTEXT_COMMITTED)
        return last_error_report(
            PEN_WRONG_STATE,
            "pen_restore: pen_commit has not been called; set resume=yes to start from a snapshot");
    if (ctx->snapshot_writer == NULL)
        return last_error_report(
            PEN_UNSUPPORTED,
            "pen_restore: mode=%s uses servers, which cannot restore a running "
            "job; restart it with resume=yes",
            context_mode_name(ctx));
    pen_status status = api_wait_for_values(ctx, "pen_restore");
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&ctx->step.lock);
    if (ctx->step.is_begun)
        status = why_set(&why, PEN_WRONG_STATE,
                         "pen_restore: step %lld is in progress; call it between pen_step_end() "
                         "and pen_step_begin()",
                         (long long)ctx->step.next_index);
    else
        status = snapshot_writer_go_back(ctx, step, &why);
    if (status == PEN_OK) status = device_copies_changed(ctx, &why);
    pthread_mutex_unlock(&ctx->step.lock);
    return status == PEN_OK ? status : last_error_set(&why);
}

pen_status pen_restore(pen_ctx *ctx, int64_t step, const pen_opts *o)
{
    FP_ENV_OURS();
    pen_status status = context_enter(ctx, "pen_restore", true);
    if (status != PEN_OK) return status;
    status = api_check_opts(o);
    if (status == PEN_OK) status = run_restore(ctx, step);
    return context_leave(ctx, status);
}

/* ---- files ----------------------------------------------------------------------------------- */
static pen_status run_export(pen_ctx *ctx, const char *path, const char *format)
{
    pen_error why;
    export_dtype as;
    if (path == NULL || path[0] == '\0')
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_export: path is empty");
    if (api_check_committed(ctx, "pen_export") != PEN_OK) return PEN_WRONG_STATE;
    if (api_check_stays(ctx, "pen_export") != PEN_OK) return PEN_NOT_A_MEMBER;
    if (export_parse(format != NULL ? format : "safetensors", &as, &why) != PEN_OK)
        return last_error_set(&why);
    pen_status status = api_wait_for_values(ctx, "pen_export");
    if (status != PEN_OK) return status;
    status = export_write(ctx, path, as, &why);
    return status == PEN_OK ? status : last_error_set(&why);
}

pen_status pen_export(pen_ctx *ctx, const char *path, const char *format, const pen_opts *o)
{
    FP_ENV_OURS();
    FILE_LIMIT_IS_AN_ERROR();
    pen_status status = context_enter(ctx, "pen_export", true);
    if (status != PEN_OK) return status;
    status = api_check_opts(o);
    if (status == PEN_OK) status = run_export(ctx, path, format);
    return context_leave(ctx, status);
}

static pen_status run_import(pen_ctx *ctx, const char *path)
{
    pen_error why;
    if (path == NULL || path[0] == '\0')
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_import: path is empty");
    if (ctx->phase != CONTEXT_OPEN)
        return last_error_report(PEN_WRONG_STATE,
                                 "pen_import: pen_commit was already called; import "
                                 "between pen_register and pen_commit");
    if (ctx->model.n_tensors == 0)
        return last_error_report(PEN_WRONG_STATE,
                                 "pen_import: no tensor is registered; register, import, commit");
    model_forget_init(&ctx->model); /* REGISTER shows it: a rank that skips this call differs */
    if (ctx->env.rank != 0) return PEN_OK; /* all ranks start with the values of rank 0 */
    const pen_status status = export_read(ctx, path, &why);
    return status == PEN_OK ? status : last_error_set(&why);
}

pen_status pen_import(pen_ctx *ctx, const char *path, const pen_opts *o)
{
    FP_ENV_OURS();
    pen_status status = context_enter(ctx, "pen_import", true);
    if (status != PEN_OK) return status;
    status = api_check_opts(o);
    if (status == PEN_OK) status = run_import(ctx, path);
    return context_leave(ctx, status);
}

/* A file that cannot be written never fails the job. */
pen_status api_state_stepped(pen_ctx *ctx)
{
    pen_error why;
    if (!ctx->settings.gather_16bit_on_save || !ctx->is_saved) return PEN_OK;
    ctx->is_saved           = false;
    const pen_status status = api_wait_for_values(ctx, "pen_step_end");
    if (status != PEN_OK) return status;
    if (export_beside(ctx, ctx->step.next_index, &why) != PEN_OK)
        log_warning("cannot write the 16-bit parameters of the snapshot of step %lld: %s",
                    (long long)ctx->step.next_index, why.text);
    return PEN_OK;
}
