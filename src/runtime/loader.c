#include "runtime/loader.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/log.h"
#include "runtime/plan.h"
#include "runtime/prefix_cache.h"

#define DEFAULT_CONCURRENT 4u
#define MIN_AUTO_CONTEXT   512u
#define MAX_AUTO_CACHE     ((uint64_t)4 << 30)
#define AUTO_CACHE_SEQS    16u /* as many whole contexts are enough of a cache */

static bl_code check_options(const bl_engine_options *o, bl_err *err) {
    if (!o->model_path) {
        BL_FAIL(err, BL_EINVAL, "no model path given");
    }
    if (o->prefill_chunk > BL_MAX_CHUNK || o->step_tokens > BL_MAX_CHUNK || o->solo_stripe > BL_MAX_CHUNK) {
        BL_FAIL(err, BL_EINVAL, "prefill chunk is %u rows, step %u, solo stripe %u: at most %u are allowed",
                o->prefill_chunk, o->step_tokens, o->solo_stripe, BL_MAX_CHUNK);
    }
    if (o->max_concurrent > BL_MAX_CONCURRENT) {
        BL_FAIL(err, BL_EINVAL, "max_concurrent is %u, at most %u are allowed", o->max_concurrent,
                BL_MAX_CONCURRENT);
    }
    if (o->draft_depth > BL_MAX_DRAFT) {
        BL_FAIL(err, BL_EINVAL, "draft_depth is %u, at most %u are allowed", o->draft_depth, BL_MAX_DRAFT);
    }
    return BL_OK;
}

/* Rows of a step: at least a chunk, the stripe, and one for each running sequence, with its drafts. */
static void choose_rows(const bl_engine_options *o, bl_loaded *l) {
    uint32_t n_context = l->kv.n_context;
    l->chunk_rows = BL_MIN(o->prefill_chunk > 0 ? o->prefill_chunk : BL_DEFAULT_CHUNK, n_context);
    l->size.max_rows = BL_MAX(BL_MAX(o->step_tokens, l->chunk_rows), l->kv.n_seqs);
    l->size.max_rows = BL_MAX(l->size.max_rows, BL_MIN(o->solo_stripe, n_context));
    l->size.max_rows = BL_MAX(l->size.max_rows, bl_exec_max_verified(&l->size));
    l->kv.max_rows = BL_MIN(l->size.max_rows, n_context);
}

/* And why: one of the words of bl_model_info. */
static bl_kv_storage choose_storage(const bl_engine_options *o, const char **ret_reason) {
    bool paged = o->kv_storage == BL_KV_CHOICE_PAGED, killed = paged && o->kv_paged_disabled;
    *ret_reason = killed ? "kill_switch" : o->kv_storage == BL_KV_CHOICE_AUTO ? "auto" : "asked_for";
    return paged && !killed ? BL_KV_PAGED : BL_KV_CONTIGUOUS;
}

/* The longest context, in whole tiles, whose keys and values fit. */
static uint32_t context_that_fits(const bl_kv_geometry *g, uint64_t bytes) {
    uint32_t low = 0, high = g->n_context / BL_KV_TILE;
    while (low < high) {
        uint32_t mid = low + (high - low + 1) / 2;
        if (bl_kv_seq_bytes(g, mid * BL_KV_TILE) <= bytes) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    return low * BL_KV_TILE;
}

static uint64_t choose_cache(const bl_engine_options *o, const bl_loaded *l, uint64_t room) {
    if (o->prefix_cache_bytes != BL_AUTO) {
        return o->prefix_cache_bytes;
    }
    uint64_t seq = bl_kv_seq_bytes(&l->kv, l->kv.n_context) + bl_kv_state_bytes(&l->kv), all;
    if (!bl_mul_u64(seq, AUTO_CACHE_SEQS, &all)) {
        all = UINT64_MAX;
    }
    uint64_t bytes = BL_MIN(BL_MIN(all, MAX_AUTO_CACHE), room / 8);
    return bytes >= bl_prefix_cache_node_bytes(&l->kv) ? bytes : 0;
}

/* What keys, values and the prefix cache may take: what all sessions could use, or what the memory that is
 * left beside the rest of the plan allows. A context that nobody asked for shrinks until one session of that
 * length fits; one that was asked for does not (the loader then refuses the plan). */
static bl_code choose_budget(const bl_engine_options *o, bl_loaded *l, uint64_t *ret_cache, bl_err *err) {
    bl_kv_geometry one = l->kv;
    bl_model_info fixed;
    one.capacity_bytes = bl_kv_seq_bytes(&one, BL_MIN(one.n_context, BL_KV_TILE));
    BL_TRY(bl_plan_make(l->model, l->backend, &one, &l->size, 0, &fixed, err));
    uint64_t beside = fixed.total_bytes - one.capacity_bytes;
    uint64_t limit = o->max_memory_bytes > 0 ? o->max_memory_bytes : bl_plan_available_bytes();
    uint64_t room = limit == 0 ? UINT64_MAX : limit > beside ? limit - beside : 0;
    uint64_t most = o->kv_bytes > 0 ? BL_MIN(o->kv_bytes, room) : room;
    if (o->n_context == 0 && bl_kv_seq_bytes(&l->kv, l->kv.n_context) > most) {
        l->kv.n_context = BL_MAX(context_that_fits(&l->kv, most), BL_MIN(MIN_AUTO_CONTEXT, l->kv.n_context));
        choose_rows(o, l);
    }
    uint64_t seq = bl_kv_seq_bytes(&l->kv, l->kv.n_context), want;
    if (o->kv_bytes > 0 && o->kv_bytes < seq) {
        BL_FAIL(err, BL_EINVAL,
                "the key/value budget is %llu bytes, one session of %u positions needs %llu: give it more or "
                "ask for a smaller context",
                (unsigned long long)o->kv_bytes, l->kv.n_context, (unsigned long long)seq);
    }
    *ret_cache = choose_cache(o, l, room > seq ? room - seq : 0);
    if (!bl_mul_u64(seq, l->kv.n_seqs, &want)) {
        want = UINT64_MAX;
    }
    uint64_t cache = *ret_cache > 0 ? *ret_cache + bl_prefix_cache_bookkeeping_bytes(&l->kv, *ret_cache) : 0;
    uint64_t left = room > cache ? room - cache : 0;
    l->kv.capacity_bytes = o->kv_bytes > 0 ? o->kv_bytes : BL_MAX(BL_MIN(want, left), seq);
    return BL_OK;
}

/* The checkpoint, with the head of another folder where one is given. why_no_head.msg is "" unless that one
 * cannot be used. */
static bl_code open_checkpoint(const bl_engine_options *o, bl_checkpoint **ret, bl_err *why_no_head,
                               bl_err *err) {
    *why_no_head = (bl_err){0};
    BL_TRY(bl_checkpoint_open(o->model_path, ret, err));
    bool wants = o->draft_path && o->draft_depth > 0;
    return wants && bl_checkpoint_attach_head(*ret, o->draft_path, why_no_head) == BL_ENOMEM
               ? bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "no memory for the draft head")
               : BL_OK;
}

/* A head whose folder or shard could not be opened: that says more than the tensor that is missed then. */
static void name_cause(bl_loaded *l, const char *no_head) {
    const char *left_out = bl_checkpoint_left_out(l->ckpt);
    if (no_head[0] != '\0') {
        snprintf(l->info.draft, sizeof l->info.draft, "%s", no_head);
        l->info.draft_foreign = false;
    } else if (left_out && l->model->cfg.n_draft_layers > 0 && !bl_model_has_draft(l->model)) {
        snprintf(l->info.draft, sizeof l->info.draft, "%s", left_out);
        l->info.draft_foreign = false;
    }
}

static bl_code inspect(const bl_engine_options *o, bl_loaded *l, bl_err *err) {
    bl_activations act = o->activations_f32 ? BL_ACTIVATIONS_F32 : BL_ACTIVATIONS_INT8;
    bl_cpu_options cpu = {.n_threads = o->n_threads,
                          .cpu_mask = o->cpu_mask,
                          .activations = act,
                          .attn_query_block = o->attn_query_block};
    bl_err no_head;
    BL_TRY(check_options(o, err));
    BL_TRY(open_checkpoint(o, &l->ckpt, &no_head, err));
    BL_TRY(bl_model_new(l->ckpt, act, &l->model, err));
    if (o->draft_depth == 0) {
        bl_model_drop_draft(l->model, NULL);
    }
    BL_TRY(bl_backend_cpu_open(&cpu, &l->backend, err));
    BL_TRY(bl_model_check_backend(l->model, l->backend, err));
    uint32_t trained = l->model->cfg.n_context_trained;
    if (o->n_context > trained) {
        BL_FAIL(err, BL_EINVAL, "a context of %u positions is asked for, '%s' declares %u", o->n_context,
                bl_checkpoint_name(l->ckpt), trained);
    }
    l->kv = (bl_kv_geometry){.layers = l->model->kv,
                             .n_layers = l->model->n_kv,
                             .states = l->model->states,
                             .n_states = l->model->n_states,
                             .n_context = o->n_context > 0 ? o->n_context : trained,
                             .n_seqs = o->max_concurrent > 0 ? o->max_concurrent : DEFAULT_CONCURRENT,
                             .f32 = o->activations_f32};
    l->size.max_seqs = l->kv.n_seqs;
    l->size.max_draft = bl_model_has_draft(l->model) ? o->draft_depth : 0;
    uint64_t cache = 0;
    const char *reason;
    l->kv.storage = choose_storage(o, &reason);
    choose_rows(o, l);
    BL_TRY(choose_budget(o, l, &cache, err));
    BL_TRY(bl_plan_make(l->model, l->backend, &l->kv, &l->size, cache, &l->info, err));
    name_cause(l, no_head.msg);
    l->info.max_concurrent = l->kv.n_seqs;
    l->info.kv_storage = bl_kv_storage_name(l->kv.storage);
    l->info.kv_storage_reason = reason;
    return BL_OK;
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

static bl_code load_matrices(bl_loaded *l, size_t from, size_t to, progress *p, bl_err *err) {
    for (size_t i = from; i < to; i++) {
        BL_TRY(bl_model_load_matrix(l->model, l->backend, i, part_consumed, p, err));
    }
    return BL_OK;
}

/* A head that cannot be read costs the head: the plan, made with it, holds all the more without. */
static void load_draft(bl_loaded *l, progress *p) {
    bl_model *m = l->model;
    bl_err why;
    if (!bl_model_has_draft(m) ||
        (bl_model_load_vectors(m, m->n_trunk_vectors, m->n_vectors, &why) == BL_OK &&
         load_matrices(l, m->n_trunk_matrices, m->n_matrices, p, &why) == BL_OK)) {
        return;
    }
    bl_model_drop_draft(m, l->backend);
    l->kv.n_layers = m->n_kv;
    l->kv.n_states = m->n_states;
    l->size.max_draft = l->info.draft_depth = 0;
    snprintf(l->info.draft, sizeof l->info.draft, "%s", why.msg);
}

bl_code bl_loader_load(const bl_engine_options *o, bl_loaded *l, bl_err *err) {
    bl_model *m = l->model;
    progress p = {.o = o, .ckpt = l->ckpt};
    BL_TRY(check_memory(o, l, err));
    BL_TRY(bl_model_load_vectors(m, 0, m->n_trunk_vectors, err));
    for (size_t i = 0; i < m->n_matrices; i++) {
        p.total += bl_model_matrix_file_bytes(&m->matrices[i]);
    }
    if (o->progress) {
        o->progress(o->progress_user, 0, p.total);
    }
    BL_TRY(load_matrices(l, 0, m->n_trunk_matrices, &p, err));
    load_draft(l, &p);
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
