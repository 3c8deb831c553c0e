#include "runtime/exec.h"

#include <string.h>

#include "base/base.h"

/* Rows of one sequence of which some may not count. */
typedef struct {
    const bl_kv_seq *seq;
    uint32_t row0, n, n_kept;
    uint32_t taped; /* row of the tape */
} tentative;

/* A recurrent layer: its convolution and its delta rule, next to each other in the list. */
typedef struct {
    size_t op;
    uint32_t state;
} recurrence;

/* What a recurrence reads beside its state. */
static const uint8_t taped_slots[] = {BL_SLOT_DELTA_RAW, BL_SLOT_DELTA_BETA, BL_SLOT_DELTA_DECAY};
#define OPS_OF_RECURRENCE 2u

struct bl_exec {
    const bl_model *m;
    bl_backend *b;
    bl_exec_size size;
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
    /* tentative rows; nothing of it without a draft head */
    tentative *tentatives; /* [max_seqs] */
    uint32_t n_tentatives, n_taped;
    recurrence *recurrences; /* [n_recurrences] */
    uint32_t n_recurrences;
    size_t passing_stride, tape_stride;
    float *passing; /* [max_seqs][passing_stride]: of the layer that runs */
    float *tape;    /* [n_recurrences][max_out][tape_stride] */
    float *last;    /* one row of HIDDEN */
};

uint32_t bl_exec_max_verified(const bl_exec_size *z) {
    return z->max_draft > 0 ? BL_MIN(z->max_seqs * (1u + z->max_draft), BL_EXEC_MAX_VERIFIED) : 0;
}

static uint32_t max_out_of(const bl_exec_size *z) {
    return BL_MAX(BL_MAX(BL_EXEC_MAX_OUT, z->max_seqs), bl_exec_max_verified(z));
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

/* ---- sizes of what tentative rows need ------------------------------------------------------------------
 */

static uint32_t count_recurrences(const bl_model *m) {
    uint32_t n = 0;
    for (size_t i = 0; i < m->n_ops; i++) {
        n += m->ops[i].kind == BL_OP_CONV;
    }
    return n;
}

static uint64_t taped_floats(const bl_model *m) {
    uint64_t n = 0;
    for (size_t i = 0; i < BL_COUNTOF(taped_slots); i++) {
        n += bl_slot_stride(m->widths[taped_slots[i]]);
    }
    return n;
}

static uint64_t widest_state(const bl_model *m) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->n_states; i++) {
        n = BL_MAX(n, m->states[i].n_floats);
    }
    return n;
}

static uint64_t tentative_floats(const bl_model *m, const bl_exec_size *z, uint64_t *ret_tape) {
    if (z->max_draft == 0) {
        return *ret_tape = 0;
    }
    *ret_tape = count_recurrences(m) * max_out_of(z) * taped_floats(m);
    return widest_state(m) * z->max_seqs + bl_slot_stride(m->widths[BL_SLOT_HIDDEN]);
}

bl_code bl_exec_bytes(const bl_model *m, const bl_exec_size *z, uint64_t *ret, bl_err *err) {
    uint32_t max_out = max_out_of(z);
    uint64_t tape, bytes, n = all_floats(m, z->max_rows, max_out) + tentative_floats(m, z, &tape);
    uint64_t small = (uint64_t)z->max_rows * 12u + max_out * 4u +
                     (uint64_t)m->n_kv * (z->max_seqs * sizeof(bl_kv_table) + 8u) +
                     (uint64_t)m->n_states * (z->max_seqs + 1u) * 8u + z->max_seqs * sizeof(tentative);
    if (!bl_mul_u64(n + tape, sizeof(float), &bytes) || !bl_add_u64(bytes, small, &bytes)) {
        BL_FAIL(err, BL_ERANGE, "activations of %u rows overflow", z->max_rows);
    }
    *ret = bytes;
    return BL_OK;
}

/* ---- open and close ------------------------------------------------------------------------------------ */

static bool alloc_step(bl_exec *x) {
    const bl_model *m = x->m;
    const bl_exec_size *z = &x->size;
    uint32_t n_states = BL_MAX(m->n_states, 1u);
    x->out_rows = bl_alloc_array(x->max_out, sizeof *x->out_rows);
    x->memory = bl_alloc_aligned(64, (size_t)all_floats(m, z->max_rows, x->max_out) * sizeof(float));
    x->tokens = bl_alloc_array(z->max_rows, sizeof *x->tokens);
    x->pos = bl_alloc_array(z->max_rows, sizeof *x->pos);
    x->seq = bl_alloc_array(z->max_rows, sizeof *x->seq);
    x->tables = bl_alloc_array((size_t)m->n_kv * z->max_seqs, sizeof *x->tables);
    x->kv = bl_alloc_array(m->n_kv, sizeof *x->kv);
    x->states = bl_alloc_array((size_t)n_states * z->max_seqs, sizeof *x->states);
    x->state = bl_alloc_array(n_states, sizeof *x->state);
    return x->out_rows && x->states && x->state && x->memory && x->tokens && x->pos && x->seq && x->tables &&
           x->kv;
}

static bool alloc_tentative(bl_exec *x) {
    const bl_model *m = x->m;
    uint64_t tape;
    if (x->size.max_draft == 0) {
        return true;
    }
    (void)tentative_floats(m, &x->size, &tape);
    uint32_t n = count_recurrences(m);
    x->passing_stride = (size_t)widest_state(m);
    x->tape_stride = (size_t)taped_floats(m);
    x->tentatives = bl_alloc_array(x->size.max_seqs, sizeof *x->tentatives);
    x->recurrences = bl_alloc_array(n, sizeof *x->recurrences);
    x->passing = bl_alloc_aligned(64, x->passing_stride * x->size.max_seqs * sizeof(float));
    x->tape = bl_alloc_aligned(64, BL_MAX((size_t)tape, 16u) * sizeof(float));
    x->last = bl_alloc_aligned(64, bl_slot_stride(m->widths[BL_SLOT_HIDDEN]) * sizeof(float));
    if (!x->tentatives || !x->recurrences || !x->passing || !x->tape || !x->last) {
        return false;
    }
    for (size_t i = 0; i < m->n_ops; i++) {
        if (m->ops[i].kind == BL_OP_CONV) {
            BL_ASSERT(i + 1 < m->n_ops && m->ops[i + 1].kind == BL_OP_DELTA &&
                      m->ops[i + 1].state_layer == m->ops[i].state_layer);
            x->recurrences[x->n_recurrences++] = (recurrence){i, m->ops[i].state_layer};
        }
    }
    return true;
}

static void lay_out(bl_exec *x) {
    const bl_model *m = x->m;
    float *p = x->memory;
    for (uint32_t i = 0; i < BL_SLOT__MAX; i++) {
        x->slots[i] = p;
        p += slot_floats(m, i, x->size.max_rows, x->max_out);
    }
    for (uint32_t i = 0; i < m->n_kv; i++) {
        x->kv[i] = x->tables + (size_t)i * x->size.max_seqs;
    }
    for (uint32_t i = 0; i < BL_MAX(m->n_states, 1u); i++) {
        x->state[i] = x->states + (size_t)i * x->size.max_seqs;
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
}

bl_code bl_exec_open(const bl_model *m, bl_backend *b, const bl_exec_size *z, bl_exec **ret, bl_err *err) {
    uint64_t bytes;
    BL_TRY(bl_exec_bytes(m, z, &bytes, err));
    bl_exec *x = bl_alloc(sizeof *x);
    if (!x) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the step");
    }
    x->m = m;
    x->b = b;
    x->size = *z;
    x->max_out = max_out_of(z);
    if (!alloc_step(x) || !alloc_tentative(x)) {
        bl_exec_close(x);
        BL_FAIL(err, BL_ENOMEM, "out of memory for activations of %u rows (%llu bytes)", z->max_rows,
                (unsigned long long)bytes);
    }
    lay_out(x);
    bl_code rc = b->ops->prepare(b, m->ops, m->n_all_ops, z->max_rows, &x->backend_bytes, err);
    if (rc != BL_OK) {
        bl_exec_close(x);
        return rc;
    }
    *ret = x;
    return BL_OK;
}

void bl_exec_close(bl_exec *x) {
    if (!x) {
        return;
    }
    bl_free_aligned(x->memory);
    bl_free_aligned(x->passing);
    bl_free_aligned(x->tape);
    bl_free_aligned(x->last);
    bl_free(x->tentatives);
    bl_free(x->recurrences);
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

/* ---- rows ---------------------------------------------------------------------------------------------- */

void bl_exec_begin(bl_exec *x) {
    x->step.n_rows = x->step.n_seqs = x->step.n_out_rows = 0;
    x->n_tentatives = x->n_taped = 0;
}

void bl_exec_add(bl_exec *x, const bl_kv_seq *seq, const int32_t *tokens, uint32_t n, uint32_t pos) {
    bl_step *st = &x->step;
    uint32_t max_seqs = x->size.max_seqs;
    BL_ASSERT(st->n_seqs < max_seqs && n <= x->size.max_rows - st->n_rows);
    for (uint32_t i = 0; i < x->m->n_kv; i++) {
        x->tables[(size_t)i * max_seqs + st->n_seqs] = *bl_kv_seq_table(seq, i);
    }
    for (uint32_t i = 0; i < x->m->n_states; i++) {
        x->states[(size_t)i * max_seqs + st->n_seqs] = bl_kv_seq_state(seq, i);
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

static bl_code run_ops(bl_exec *x, size_t from, size_t to, bl_err *err) {
    return x->b->ops->run(x->b, x->m->ops + from, to - from, &x->step, err);
}

/* ---- tentative rows (spec models.md §5.5) ---------------------------------------------------------------
 */

static float *row_of(const bl_exec *x, uint32_t slot, uint32_t i) {
    return x->slots[slot] + (size_t)i * bl_slot_stride(x->m->widths[slot]);
}

void bl_exec_add_tentative(bl_exec *x, const bl_kv_seq *seq, const int32_t *tokens, uint32_t n,
                           uint32_t pos) {
    uint32_t i = x->step.n_seqs;
    BL_ASSERT(n >= 1 && n <= 1u + x->size.max_draft && n <= x->max_out - x->n_taped);
    x->tentatives[x->n_tentatives++] = (tentative){seq, x->step.n_rows, n, n, x->n_taped};
    x->n_taped += n;
    bl_exec_add(x, seq, tokens, n, pos);
    for (uint32_t k = 0; k < x->n_recurrences; k++) {
        x->states[(size_t)x->recurrences[k].state * x->size.max_seqs + i] =
            x->passing + x->passing_stride * i;
    }
}

/* Sets aside what a recurrence is about to read of the tentative rows, or puts the kept of it in place. */
static void copy_taped(bl_exec *x, uint32_t layer, bool play) {
    float *tape = x->tape + (size_t)layer * x->max_out * x->tape_stride;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < x->n_tentatives; i++) {
        const tentative *t = &x->tentatives[i];
        float *p = tape + t->taped * x->tape_stride;
        for (size_t k = 0; k < BL_COUNTOF(taped_slots); k++) {
            size_t floats = bl_slot_stride(x->m->widths[taped_slots[k]]);
            if (play) {
                memcpy(row_of(x, taped_slots[k], kept), p, floats * t->n_kept * sizeof(float));
            } else {
                memcpy(p, row_of(x, taped_slots[k], t->row0), floats * t->n * sizeof(float));
            }
            p += floats * t->n;
        }
        kept += t->n_kept;
    }
}

static void copy_states(bl_exec *x, const recurrence *r) {
    for (uint32_t i = 0; i < x->n_tentatives; i++) {
        const tentative *t = &x->tentatives[i];
        memcpy(x->states[(size_t)r->state * x->size.max_seqs + x->seq[t->row0]],
               bl_kv_seq_state(t->seq, r->state), x->m->states[r->state].n_floats * sizeof(float));
    }
}

bl_code bl_exec_run(bl_exec *x, size_t from, size_t to, bl_err *err) {
    for (uint32_t i = 0; i < x->n_recurrences && x->n_tentatives > 0; i++) {
        const recurrence *r = &x->recurrences[i];
        if (r->op >= from && r->op < to) {
            BL_TRY(run_ops(x, from, r->op, err));
            copy_taped(x, i, false);
            copy_states(x, r);
            from = r->op;
        }
    }
    return run_ops(x, from, to, err);
}

void bl_exec_keep(bl_exec *x, uint32_t i, uint32_t n) {
    BL_ASSERT(i < x->n_tentatives && n >= 1 && n <= x->tentatives[i].n);
    x->tentatives[i].n_kept = n;
}

bl_code bl_exec_settle(bl_exec *x, bl_err *err) {
    uint32_t n = x->n_tentatives;
    bl_exec_begin(x);
    for (uint32_t i = 0; i < n; i++) {
        const tentative *t = &x->tentatives[i];
        bl_exec_add(x, t->seq, x->tokens + t->row0, t->n_kept, 0);
    }
    x->n_tentatives = n;
    for (uint32_t i = 0; i < x->n_recurrences && n > 0; i++) {
        copy_taped(x, i, true);
        BL_TRY(run_ops(x, x->recurrences[i].op, x->recurrences[i].op + OPS_OF_RECURRENCE, err));
    }
    x->n_tentatives = 0;
    return BL_OK;
}

/* ---- the parts of the list ------------------------------------------------------------------------------
 */

bl_code bl_exec_head(bl_exec *x, const uint32_t *rows, uint32_t n, bl_err *err) {
    BL_ASSERT(n >= 1 && n <= x->max_out);
    memcpy(x->out_rows, rows, n * sizeof *rows);
    x->step.n_out_rows = n;
    return bl_exec_run(x, x->m->select_op, x->m->n_ops, err);
}

static void move_row(bl_exec *x, uint32_t slot, uint32_t to, uint32_t from) {
    if (to != from) {
        memcpy(row_of(x, slot, to), row_of(x, slot, from),
               bl_slot_stride(x->m->widths[slot]) * sizeof(float));
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

/* ---- the draft head -------------------------------------------------------------------------------------
 */

bl_code bl_exec_hidden(bl_exec *x, bl_err *err) {
    return bl_exec_run(x, x->m->hidden_op, x->m->draft_op, err);
}

bl_code bl_exec_draft(bl_exec *x, bl_err *err) {
    return bl_exec_run(x, x->m->draft_op, x->m->draft_select_op, err);
}

bl_code bl_exec_draft_store(bl_exec *x, bl_err *err) {
    return bl_exec_run(x, x->m->draft_op, x->m->draft_stored_op, err);
}

void bl_exec_resume(bl_exec *x, const bl_kv_seq *seq, uint32_t i) {
    memcpy(row_of(x, BL_SLOT_HIDDEN, i), bl_kv_seq_state(seq, x->m->draft_state),
           bl_slot_stride(x->m->widths[BL_SLOT_HIDDEN]) * sizeof(float));
}

void bl_exec_shift(bl_exec *x, uint32_t i, uint32_t from) {
    move_row(x, BL_SLOT_HIDDEN, i, from);
}

void bl_exec_add_pairs(bl_exec *x, const bl_kv_seq *seq, const int32_t *ids, uint32_t from, uint32_t to,
                       uint32_t pos, uint32_t n, uint32_t row0) {
    size_t stride = bl_slot_stride(x->m->widths[BL_SLOT_HIDDEN]);
    uint32_t at = x->step.n_rows, resumed = from < pos ? 1 : 0;
    BL_ASSERT(at <= row0 && from + resumed == pos && from <= to && to - from <= n);
    memcpy(x->last, row_of(x, BL_SLOT_HIDDEN, row0 + n - 1), stride * sizeof(float));
    if (to > pos) {
        memmove(row_of(x, BL_SLOT_HIDDEN, at + resumed), row_of(x, BL_SLOT_HIDDEN, row0),
                (to - pos) * stride * sizeof(float));
    }
    if (resumed > 0) {
        bl_exec_resume(x, seq, at);
    }
    if (to > from) {
        bl_exec_add(x, seq, ids + from + 1, to - from, from);
    }
    memcpy(bl_kv_seq_state(seq, x->m->draft_state), x->last, stride * sizeof(float));
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
    return row_of(x, slot, i);
}
