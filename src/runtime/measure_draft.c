/* How often a draft head agrees with its model, over a given text (bl.h). A machine of its own: no scheduler,
 * no sessions, one sequence. Threads: the caller's, which owns all of it.
 */
#include <inttypes.h>
#include <string.h>

#include "base/base.h"
#include "bl/bl.h"
#include "runtime/exec.h"
#include "runtime/kv.h"
#include "runtime/loader.h"
#include "runtime/sampler.h"

/* Tokens of a piece. Within one the head's second step writes its keys where the first step's are, so a piece
 * starts from an empty sequence. */
#define PIECE 512u

typedef struct {
    bl_loaded l;
    bl_exec *exec;
    bl_kv_pool *pool;
    bl_kv_seq *seq;
    int32_t *best; /* [PIECE] the model's own choice behind each row */
    bool (*go_on)(void *user, uint64_t done, uint64_t total);
    void *user;
    uint64_t n_done, n_total; /* tokens of the text */
} machine;

static void close_machine(machine *m) {
    bl_free(m->best);
    bl_kv_seq_free(m->seq);
    bl_kv_pool_close(m->pool);
    bl_exec_close(m->exec);
    bl_loader_done(&m->l);
}

static bl_code check_head(const machine *m, const char *why, bl_err *err) {
    if (!bl_model_has_draft(m->l.model)) {
        BL_FAIL(err, BL_ENOTSUP, "'%.80s' has no draft head to measure%s%.160s",
                bl_checkpoint_name(m->l.ckpt), why[0] != '\0' ? ": " : "", why);
    }
    return BL_OK;
}

static bl_code open_machine(machine *m, const bl_engine_options *options, bl_err *err) {
    bl_engine_options o = *options;
    o.max_concurrent = 1;
    o.draft_depth = BL_DRAFT_MEASURED;
    o.prefill_chunk = PIECE;
    o.step_tokens = o.solo_stripe = 0;
    o.prefix_cache_bytes = 0;
    o.kv_bytes = 0;
    o.n_context = 0; /* as much as there is room for: a piece's is used */
    BL_TRY(bl_loader_inspect(&o, &m->l, err));
    BL_TRY(check_head(m, m->l.model->cfg.draft_refused, err));
    BL_TRY(bl_loader_load(&o, &m->l, err));
    BL_TRY(check_head(m, m->l.info.draft, err)); /* one that cannot be read is dropped by the loader */
    BL_TRY(bl_exec_open(m->l.model, m->l.backend, &m->l.size, &m->exec, err));
    BL_TRY(bl_kv_pool_open(&m->l.kv, &m->pool, err));
    BL_TRY(bl_kv_seq_new(m->pool, &m->seq, err));
    m->best = bl_alloc_array(PIECE, sizeof *m->best);
    if (!m->best) {
        BL_FAIL(err, BL_ENOMEM, "no memory for a piece of %u tokens", PIECE);
    }
    return BL_OK;
}

/* Asked often: a layer of a large model takes a second on a small machine. */
static bl_code check_going(const machine *m, bl_err *err) {
    if (m->go_on && !m->go_on(m->user, m->n_done, m->n_total)) {
        BL_FAIL(err, BL_ECANCEL, "interrupted after %" PRIu64 " of %" PRIu64 " tokens", m->n_done,
                m->n_total);
    }
    return BL_OK;
}

/* The trunk, a layer at a time. */
static bl_code run_trunk(machine *m, bl_err *err) {
    const bl_model *model = m->l.model;
    for (size_t from = 0, to; from < model->select_op; from = to) {
        for (to = from + 1; to < model->select_op && model->ops[to].layer == model->ops[from].layer; to++) {
        }
        BL_TRY(check_going(m, err));
        BL_TRY(bl_exec_run(m->exec, from, to, err));
    }
    return BL_OK;
}

typedef bl_code head_fn(bl_exec *x, const uint32_t *rows, uint32_t n, bl_err *err);

/* The likeliest token of every row of the step. */
static bl_code choices(machine *m, head_fn *head, uint32_t n, int32_t *ret, bl_err *err) {
    uint32_t rows[BL_EXEC_MAX_OUT], n_vocab = m->l.model->cfg.n_vocab;
    for (uint32_t r = 0; r < n; r += BL_EXEC_MAX_OUT) {
        uint32_t k = BL_MIN(n - r, BL_EXEC_MAX_OUT);
        for (uint32_t i = 0; i < k; i++) {
            rows[i] = r + i;
        }
        BL_TRY(check_going(m, err));
        BL_TRY(head(m->exec, rows, k, err));
        for (uint32_t i = 0; i < k; i++) {
            bool bad;
            ret[r + i] = (int32_t)bl_sampler_arg_max(bl_exec_logits(m->exec, i), n_vocab, &bad);
        }
    }
    return BL_OK;
}

/* Row t of step `depth` proposes token t + depth + 1, which the model chose behind row t + depth. */
static bl_code draft_step(machine *m, const int32_t *ids, uint32_t n_ids, uint32_t depth,
                          bl_draft_agreement *sum, bl_err *err) {
    int32_t drafts[PIECE];
    uint32_t n = n_ids - depth;
    bl_exec_begin(m->exec);
    bl_exec_add(m->exec, m->seq, ids + depth, n, 0);
    BL_TRY(bl_exec_draft(m->exec, err));
    BL_TRY(choices(m, bl_exec_draft_head, n, drafts, err));
    for (uint32_t t = 0; t < n; t++) {
        sum->n_agreed[depth - 1] += drafts[t] == m->best[t + depth];
    }
    sum->n_rows[depth - 1] += n;
    return BL_OK;
}

static bl_code measure_piece(machine *m, const int32_t *ids, uint32_t n, bl_draft_agreement *sum,
                             bl_err *err) {
    bl_kv_seq_cut(m->seq, 0);
    BL_TRY(bl_kv_seq_reserve(m->seq, n, err));
    bl_kv_seq_commit(m->seq, n);
    bl_exec_begin(m->exec);
    bl_exec_add(m->exec, m->seq, ids, n, 0);
    BL_TRY(run_trunk(m, err));
    BL_TRY(choices(m, bl_exec_head, n, m->best, err));
    BL_TRY(bl_exec_hidden(m->exec, err));
    for (uint32_t depth = 1; depth <= BL_DRAFT_MEASURED; depth++) {
        BL_TRY(draft_step(m, ids, n, depth, sum, err));
    }
    return BL_OK;
}

static bl_code measure(machine *m, const int32_t *tokens, size_t n, bl_draft_agreement *ret, bl_err *err) {
    uint32_t n_vocab = m->l.model->cfg.n_vocab;
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= n_vocab) {
            BL_FAIL(err, BL_EINVAL, "token %zu is %" PRId32 ", allowed are 0 to %" PRIu32, i, tokens[i],
                    n_vocab - 1);
        }
    }
    bl_draft_agreement sum = {0};
    /* what is left of the text in the end says nothing about the last depth */
    for (size_t at = 0; n - at > BL_DRAFT_MEASURED; at = (size_t)m->n_done) {
        uint32_t k = (uint32_t)BL_MIN(n - at, (size_t)BL_MIN(PIECE, m->l.size.max_rows));
        BL_TRY(measure_piece(m, tokens + at, k, &sum, err));
        m->n_done += k;
    }
    *ret = sum;
    return BL_OK;
}

bl_code bl_model_measure_draft(const bl_engine_options *o, const int32_t *tokens, size_t n,
                               bool (*go_on)(void *user, uint64_t done, uint64_t total), void *user,
                               bl_draft_agreement *ret, bl_err *err) {
    machine m = {.go_on = go_on, .user = user, .n_total = n};
    if (n <= BL_DRAFT_MEASURED) {
        BL_FAIL(err, BL_EINVAL, "a text of %zu tokens says nothing about drafts, at least %u are needed", n,
                BL_DRAFT_MEASURED + 1u);
    }
    bl_code rc = open_machine(&m, o, err);
    if (rc == BL_OK) {
        rc = measure(&m, tokens, n, ret, err);
    }
    close_machine(&m);
    return rc;
}
