/* One step: rows of some sequences in, logits of some rows out. Owns the activation slots and the step's
 * arrays; sized at open, allocates nothing afterwards. Rows are gathered by the scheduler.
 *
 * The op list runs in parts, because most rows of a prompt need no logits: storing the last layer's keys and
 * values is the last thing they are needed for, so the rest of that layer and the head, the largest product
 * of small models, run for the wanted rows only. Threads: [engine thread].
 */
#ifndef BL_RUNTIME_EXEC_H
#define BL_RUNTIME_EXEC_H

#include <stdint.h>

#include "backend/backend.h"
#include "bl/bl_err.h"
#include "model/model.h"
#include "runtime/kv.h"

/* Rows whose logits are made at once, or as many as there are sequences if that is more, or, where tokens are
 * drafted, as many as all sequences can have verified (up to a bound): a slot of 262144 logits is 1 MiB per
 * row. */
#define BL_EXEC_MAX_OUT      8u
#define BL_EXEC_MAX_VERIFIED 64u

typedef struct {
    uint32_t max_rows, max_seqs;
    uint32_t max_draft; /* tentative rows of a sequence behind its known one; 0 without a draft head */
} bl_exec_size;

typedef struct bl_exec bl_exec;

/* Rows that all sequences together can have verified in a step; 0 without a draft head. */
uint32_t bl_exec_max_verified(const bl_exec_size *size);
/* Bytes of the slots and arrays; without the backend's own scratch. */
bl_code bl_exec_bytes(const bl_model *m, const bl_exec_size *size, uint64_t *ret, bl_err *err) BL_MUST_CHECK;
/* Also prepares the backend. The model is loaded and resolved. */
bl_code bl_exec_open(const bl_model *m, bl_backend *b, const bl_exec_size *size, bl_exec **ret,
                     bl_err *err) BL_MUST_CHECK;
void bl_exec_close(bl_exec *x);
uint32_t bl_exec_max_out(const bl_exec *x);       /* rows that finish, head and draft_head take at most */
uint64_t bl_exec_backend_bytes(const bl_exec *x); /* scratch that prepare() reported */

/* Starts a step: no rows. */
void bl_exec_begin(bl_exec *x);
/* Adds n rows of a sequence, whose tiles for positions [pos, pos + n) exist already. */
void bl_exec_add(bl_exec *x, const bl_kv_seq *seq, const int32_t *tokens, uint32_t n, uint32_t pos);
uint32_t bl_exec_rows(const bl_exec *x);
/* The same for rows of which some may not count (their tokens are drafts): the sequence's recurrent states
 * stay as they are, until bl_exec_keep says how many of the rows happened. n <= 1 + max_draft. */
void bl_exec_add_tentative(bl_exec *x, const bl_kv_seq *seq, const int32_t *tokens, uint32_t n, uint32_t pos);
/* After [0, stored_op) and before the next begin: of the i-th tentative sequence of the step (in the order of
 * adding) the first n rows count. */
void bl_exec_keep(bl_exec *x, uint32_t i, uint32_t n);
/* Takes the states of all tentative sequences to behind their kept rows: the recurrences run again over what
 * their layers were given, which was set aside. The step is over; its HIDDEN rows stay. */
bl_code bl_exec_settle(bl_exec *x, bl_err *err) BL_MUST_CHECK;
/* Runs ops [from, to) over all rows. [0, model->stored_op) stores every key and value, [stored_op, select_op)
 * completes the residuals. */
bl_code bl_exec_run(bl_exec *x, size_t from, size_t to, bl_err *err) BL_MUST_CHECK;
/* After [0, stored_op): logits of the n <= max_out given rows (ascending), which become the only rows
 * of the step. */
bl_code bl_exec_finish(bl_exec *x, const uint32_t *rows, uint32_t n, bl_err *err) BL_MUST_CHECK;
/* After [0, select_op): logits of the n <= max_out given rows (ascending); may be repeated for
 * others. */
bl_code bl_exec_head(bl_exec *x, const uint32_t *rows, uint32_t n, bl_err *err) BL_MUST_CHECK;
/* After [0, select_op): every row's final norm to BL_SLOT_HIDDEN, where the draft head reads it. The model
 * has a draft head, here and below. */
bl_code bl_exec_hidden(bl_exec *x, bl_err *err) BL_MUST_CHECK;
/* One step of the draft head over the rows of the step (which bl_exec_begin and bl_exec_add have set anew:
 * row i is the token after the one whose hidden lies in row i of BL_SLOT_HIDDEN, its position that of the
 * hidden; their tiles exist already). Leaves each row's own hidden in BL_SLOT_HIDDEN: the next step's. */
bl_code bl_exec_draft(bl_exec *x, bl_err *err) BL_MUST_CHECK;
/* Its first part: the head's keys and values of these rows are stored, and no more. */
bl_code bl_exec_draft_store(bl_exec *x, bl_err *err) BL_MUST_CHECK;
/* A sequence's state holds the hidden of its last position, because the head's row for it waits for the token
 * that follows (spec models.md §5.2).
 * resume: the state becomes row i of BL_SLOT_HIDDEN. shift: row `from` becomes row i <= from. */
void bl_exec_resume(bl_exec *x, const bl_kv_seq *seq, uint32_t i);
void bl_exec_shift(bl_exec *x, uint32_t i, uint32_t from);
/* Adds the head's rows for positions [from, to) of a sequence to a step that was begun, where the last
 * evaluated step held positions [pos, pos + n) in its rows row0 ...: from is pos or pos - 1, to <= pos + n,
 * to - from <= n; ids: the sequence's tokens by position. Sequences come in the order of their rows. Then
 * keeps the hidden of position pos + n - 1 in that state. */
void bl_exec_add_pairs(bl_exec *x, const bl_kv_seq *seq, const int32_t *ids, uint32_t from, uint32_t to,
                       uint32_t pos, uint32_t n, uint32_t row0);
/* After bl_exec_draft: logits of the n <= max_out given rows (ascending); may be repeated. */
bl_code bl_exec_draft_head(bl_exec *x, const uint32_t *rows, uint32_t n, bl_err *err) BL_MUST_CHECK;
/* Row i of the last finish, head or draft_head; n_vocab floats. */
const float *bl_exec_logits(const bl_exec *x, uint32_t i);
/* Row i of any slot, for tests and traces. */
const float *bl_exec_slot_row(const bl_exec *x, uint32_t slot, uint32_t i);

#endif
