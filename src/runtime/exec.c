#include "runtime/exec.h"

#include <string.h>

#include "base/base.h"

struct bl_exec {
    const bl_model *m;
    bl_backend *b;
    uint32_t max_rows, max_seqs;
    uint64_t backend_bytes;
    float *memory; /* all slots */
    float *slots[BL_SLOT__MAX];
    int32_t *tokens, *pos;
    uint32_t *seq;
    bl_kv_table *tables;    /* [n_kv][max_seqs] */
    const bl_kv_table **kv; /* [n_kv] */
    float **states;         /* [n_states][max_seqs] */
    float *const **state;   /* [n_states] */
    uint32_t max_out;
    uint32_t *out_rows; /* [max_out] */
    bl_step step;
};

static uint32_t max_out_of(uint32_t max_seqs) {
    return BL_MAX(BL_EXEC_MAX_OUT, max_seqs);
}

static uint64_t slot_floats(const bl_model *m, uint32_t slot, uint32_t max_rows, uint32_t max_out) {
    return (uint64_t)bl_slot_stride(m->widths[slot]) * (bl_slot_is_out(slot) ? max_out : max_rows);
}

static uint64_t all_floats(const bl_model *m, uint32_t max_rows, uint32_t max_out) {
    uint64_t n = 0; /* widths are below 2^30 and rows below 2^24: no overflow */
    for (uint32_t i = 0; i < BL_SLOT__MAX; i++) {
        n += slot_floats(m, i, max_rows, max_out);
    }
    return n;
}

bl_code bl_exec_bytes(const bl_model *m, uint32_t max_rows, uint32_t max_seqs, uint64_t *ret, bl_err *err) {
    uint32_t max_out = max_out_of(max_seqs);
    uint64_t n = all_floats(m, max_rows, max_out), bytes;
    uint64_t small = (uint64_t)max_rows * 12u + max_out * 4u +
                     (uint64_t)m->n_kv * (max_seqs * sizeof(bl_kv_table) + 8u) +
                     (uint64_t)m->n_states * (max_seqs + 1u) * 8u;
    if (!bl_mul_u64(n, sizeof(float), &bytes) || !bl_add_u64(bytes, small, &bytes)) {
        BL_FAIL(err, BL_ERANGE, "activations of %u rows overflow", max_rows);
    }
    *ret = bytes;
    return BL_OK;
}

bl_code bl_exec_open(const bl_model *m, bl_backend *b, uint32_t max_rows, uint32_t max_seqs, bl_exec **ret,
                     bl_err *err) {
    uint64_t bytes;
    uint32_t n_kv = m->n_kv, n_states = BL_MAX(m->n_states, 1u);
    BL_TRY(bl_exec_bytes(m, max_rows, max_seqs, &bytes, err));
    bl_exec *x = bl_alloc(sizeof *x);
    if (!x) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the step");
    }
    x->m = m;
    x->b = b;
    x->max_rows = max_rows;
    x->max_seqs = max_seqs;
    x->max_out = max_out_of(max_seqs);
    x->out_rows = bl_alloc_array(x->max_out, sizeof *x->out_rows);
    x->memory = bl_alloc_aligned(64, (size_t)all_floats(m, max_rows, x->max_out) * sizeof(float));
    x->tokens = bl_alloc_array(max_rows, sizeof *x->tokens);
    x->pos = bl_alloc_array(max_rows, sizeof *x->pos);
    x->seq = bl_alloc_array(max_rows, sizeof *x->seq);
    x->tables = bl_alloc_array((size_t)n_kv * max_seqs, sizeof *x->tables);
    x->kv = bl_alloc_array(n_kv, sizeof *x->kv);
    x->states = bl_alloc_array((size_t)n_states * max_seqs, sizeof *x->states);
    x->state = bl_alloc_array(n_states, sizeof *x->state);
    if (!x->out_rows || !x->states || !x->state || !x->memory || !x->tokens || !x->pos || !x->seq ||
        !x->tables || !x->kv) {
        bl_exec_close(x);
        BL_FAIL(err, BL_ENOMEM, "out of memory for activations of %u rows (%llu bytes)", max_rows,
                (unsigned long long)bytes);
    }
    float *p = x->memory;
    for (uint32_t i = 0; i < BL_SLOT__MAX; i++) {
        x->slots[i] = p;
        p += slot_floats(m, i, max_rows, x->max_out);
    }
    for (uint32_t i = 0; i < n_kv; i++) {
        x->kv[i] = x->tables + (size_t)i * max_seqs;
    }
    for (uint32_t i = 0; i < n_states; i++) {
        x->state[i] = x->states + (size_t)i * max_seqs;
    }
    bl_code rc = b->ops->prepare(b, m->ops, m->n_all_ops, max_rows, &x->backend_bytes, err);
    if (rc != BL_OK) {
        bl_exec_close(x);
        return rc;
    }
    x->step = (bl_step){.tokens = x->tokens,
                        .pos = x->pos,
                        .seq = x->seq,
                        .kv = x->kv,
                        .state = x->state,
                        .out_rows = x->out_rows,
                        .n_slots = BL_SLOT__MAX,
                        .slots = x->slots,
                        .widths = m->widths};
    *ret = x;
    return BL_OK;
}

void bl_exec_close(bl_exec *x) {
    if (!x) {
        return;
    }
    bl_free_aligned(x->memory);
    bl_free(x->out_rows);
    bl_free(x->tokens);
    bl_free(x->pos);
    bl_free(x->seq);
    bl_free(x->tables);
    bl_free(x->kv);
    bl_free(x->states);
    bl_free(x->state);
    bl_free(x);
}

uint32_t bl_exec_max_out(const bl_exec *x) {
    return x->max_out;
}

uint64_t bl_exec_backend_bytes(const bl_exec *x) {
    return x->backend_bytes;
}

void bl_exec_begin(bl_exec *x) {
    x->step.n_rows = x->step.n_seqs = x->step.n_out_rows = 0;
}

void bl_exec_add(bl_exec *x, const bl_kv_seq *seq, const int32_t *tokens, uint32_t n, uint32_t pos) {
    bl_step *st = &x->step;
    BL_ASSERT(st->n_seqs < x->max_seqs && n <= x->max_rows - st->n_rows);
    for (uint32_t i = 0; i < x->m->n_kv; i++) {
        x->tables[(size_t)i * x->max_seqs + st->n_seqs] = *bl_kv_seq_table(seq, i);
    }
    for (uint32_t i = 0; i < x->m->n_states; i++) {
        x->states[(size_t)i * x->max_seqs + st->n_seqs] = bl_kv_seq_state(seq, i);
    }
    for (uint32_t i = 0; i < n; i++) {
        x->tokens[st->n_rows + i] = tokens[i];
        x->pos[st->n_rows + i] = (int32_t)(pos + i);
        x->seq[st->n_rows + i] = st->n_seqs;
    }
    st->n_rows += n;
    st->n_seqs++;
}

uint32_t bl_exec_rows(const bl_exec *x) {
    return x->step.n_rows;
}

bl_code bl_exec_run(bl_exec *x, size_t from, size_t to, bl_err *err) {
    return x->b->ops->run(x->b, x->m->ops + from, to - from, &x->step, err);
}

bl_code bl_exec_head(bl_exec *x, const uint32_t *rows, uint32_t n, bl_err *err) {
    BL_ASSERT(n >= 1 && n <= x->max_out);
    memcpy(x->out_rows, rows, n * sizeof *rows);
    x->step.n_out_rows = n;
    return bl_exec_run(x, x->m->select_op, x->m->n_ops, err);
}

static void move_row(bl_exec *x, uint32_t slot, uint32_t to, uint32_t from) {
    size_t stride = bl_slot_stride(x->m->widths[slot]);
    if (to != from) {
        memcpy(x->slots[slot] + to * stride, x->slots[slot] + from * stride, stride * sizeof(float));
    }
}

bl_code bl_exec_finish(bl_exec *x, const uint32_t *rows, uint32_t n, bl_err *err) {
    BL_ASSERT(n >= 1 && n <= x->max_out);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < x->m->n_live; k++) {
            move_row(x, x->m->live[k], i, rows[i]);
        }
        x->tokens[i] = x->tokens[rows[i]];
        x->pos[i] = x->pos[rows[i]];
        x->seq[i] = x->seq[rows[i]];
        x->out_rows[i] = i;
    }
    x->step.n_rows = x->step.n_out_rows = n;
    return bl_exec_run(x, x->m->stored_op, x->m->n_ops, err);
}

bl_code bl_exec_hidden(bl_exec *x, bl_err *err) {
    return bl_exec_run(x, x->m->hidden_op, x->m->draft_op, err);
}

bl_code bl_exec_draft(bl_exec *x, bl_err *err) {
    return bl_exec_run(x, x->m->draft_op, x->m->draft_select_op, err);
}

bl_code bl_exec_draft_head(bl_exec *x, const uint32_t *rows, uint32_t n, bl_err *err) {
    BL_ASSERT(n >= 1 && n <= x->max_out);
    memcpy(x->out_rows, rows, n * sizeof *rows);
    x->step.n_out_rows = n;
    return bl_exec_run(x, x->m->draft_select_op, x->m->n_all_ops, err);
}

const float *bl_exec_logits(const bl_exec *x, uint32_t i) {
    return bl_exec_slot_row(x, BL_SLOT_LOGITS, i);
}

const float *bl_exec_slot_row(const bl_exec *x, uint32_t slot, uint32_t i) {
    return x->slots[slot] + (size_t)i * bl_slot_stride(x->m->widths[slot]);
}
