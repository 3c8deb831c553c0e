#include "runtime/loader.h"

#include <string.h>

#include "base/base.h"
#include "base/log.h"
#include "runtime/plan.h"

static bl_code inspect(const bl_engine_options *o, bl_loaded *l, bl_err *err) {
    bl_activations act = o->activations_f32 ? BL_ACTIVATIONS_F32 : BL_ACTIVATIONS_INT8;
    bl_cpu_options cpu = {.n_threads = o->n_threads, .cpu_mask = o->cpu_mask, .activations = act};
    if (!o->model_path) {
        BL_FAIL(err, BL_EINVAL, "no model path given");
    }
    if (o->prefill_chunk > BL_MAX_CHUNK) {
        BL_FAIL(err, BL_EINVAL, "prefill chunk is %u rows, at most %u are allowed", o->prefill_chunk,
                BL_MAX_CHUNK);
    }
    BL_TRY(bl_checkpoint_open(o->model_path, &l->ckpt, err));
    BL_TRY(bl_model_new(l->ckpt, act, &l->model, err));
    BL_TRY(bl_backend_cpu_open(&cpu, &l->backend, err));
    BL_TRY(bl_model_check_backend(l->model, l->backend, err));
    uint32_t trained = l->model->cfg.n_context_trained;
    if (o->n_context > trained) {
        BL_FAIL(err, BL_EINVAL, "a context of %u positions is asked for, '%s' declares %u", o->n_context,
                bl_checkpoint_name(l->ckpt), trained);
    }
    uint32_t n_context = o->n_context > 0 ? o->n_context : trained;
    l->max_rows = BL_MIN(o->prefill_chunk > 0 ? o->prefill_chunk : BL_DEFAULT_CHUNK, n_context);
    l->kv = (bl_kv_geometry){.layers = l->model->kv,
                             .n_layers = l->model->n_kv,
                             .states = l->model->states,
                             .n_states = l->model->n_states,
                             .n_context = n_context,
                             .max_rows = l->max_rows,
                             .n_seqs = 1,
                             .f32 = o->activations_f32};
    return bl_plan_make(l->model, l->backend, &l->kv, l->max_rows, &l->info, err);
}

bl_code bl_loader_inspect(const bl_engine_options *o, bl_loaded *ret, bl_err *err) {
    bl_loaded l = {0};
    bl_code rc = inspect(o, &l, err);
    if (rc != BL_OK) {
        bl_loader_done(&l);
        return rc;
    }
    *ret = l;
    return BL_OK;
}

static bl_code check_memory(const bl_engine_options *o, const bl_loaded *l, bl_err *err) {
    uint64_t limit = o->max_memory_bytes > 0 ? o->max_memory_bytes : bl_plan_available_bytes();
    if (limit == 0 || l->info.total_bytes <= limit) {
        return BL_OK;
    }
    BL_FAIL(err, BL_ELIMIT,
            "'%s' needs %llu MiB (weights %llu, %u positions of context %llu), %llu MiB are %s; a smaller "
            "context needs less",
            bl_checkpoint_name(l->ckpt), (unsigned long long)(l->info.total_bytes >> 20),
            (unsigned long long)(l->info.weights_bytes >> 20), l->info.n_context,
            (unsigned long long)(l->info.kv_bytes >> 20), (unsigned long long)(limit >> 20),
            o->max_memory_bytes > 0 ? "allowed" : "available");
}

typedef struct {
    const bl_engine_options *o;
    const bl_checkpoint *ckpt;
    uint64_t done, total;
} progress;

/* The file's pages would otherwise stay beside the re-laid copy: up to twice the weights. */
static void part_consumed(void *user, const bl_tensor_view *part) {
    progress *p = user;
    bl_checkpoint_release_pages(p->ckpt, part);
    p->done += part->size_bytes;
    if (p->o->progress) {
        p->o->progress(p->o->progress_user, p->done, p->total);
    }
}

bl_code bl_loader_load(const bl_engine_options *o, bl_loaded *l, bl_err *err) {
    bl_model *m = l->model;
    progress p = {.o = o, .ckpt = l->ckpt};
    BL_TRY(check_memory(o, l, err));
    BL_TRY(bl_model_load_vectors(m, err));
    for (size_t i = 0; i < m->n_matrices; i++) {
        p.total += bl_model_matrix_file_bytes(&m->matrices[i]);
    }
    if (o->progress) {
        o->progress(o->progress_user, 0, p.total);
    }
    for (size_t i = 0; i < m->n_matrices; i++) {
        BL_TRY(bl_model_load_matrix(m, l->backend, i, part_consumed, &p, err));
    }
    /* what was read from a file that changed meanwhile is no model, even where it looked like one */
    BL_TRY(bl_checkpoint_check_intact(l->ckpt, err));
    bl_model_resolve(m);
    bl_log(BL_LOG_INFO, "loader", "loaded", "family=%s tensors=%zu weights_bytes=%llu", m->cfg.family,
           m->n_matrices, (unsigned long long)l->info.weights_bytes);
    return BL_OK;
}

void bl_loader_done(bl_loaded *l) {
    bl_model_free(l->model, l->backend);
    if (l->backend) {
        l->backend->ops->close(l->backend);
    }
    bl_checkpoint_free(l->ckpt);
    *l = (bl_loaded){0};
}
