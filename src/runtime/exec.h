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

/* Rows whose logits are made at once, or as many as there are sequences if that is more: a slot of 262144
 * logits is 1 MiB per row. */
#define BL_EXEC_MAX_OUT 8u

typedef struct bl_exec bl_exec;

/* Bytes of the slots and arrays; without the backend's own scratch. */
bl_code bl_exec_bytes(const bl_model *m, uint32_t max_rows, uint32_t max_seqs, uint64_t *ret,
                      bl_err *err) BL_MUST_CHECK;
/* Also prepares the backend. The model is loaded and resolved. */
bl_code bl_exec_open(const bl_model *m, bl_backend *b, uint32_t max_rows, uint32_t max_seqs, bl_exec **ret,
                     bl_err *err) BL_MUST_CHECK;
void bl_exec_close(bl_exec *x);
uint32_t bl_exec_max_out(const bl_exec *x);       /* rows that finish, head and draft_head take at most */
uint64_t bl_exec_backend_bytes(const bl_exec *x); /* scratch that prepare() reported */

/* Starts a step: no rows. */
void bl_exec_begin(bl_exec *x);
/* Adds n rows of a sequence, whose tiles for positions [pos, pos + n) exist already. */
void bl_exec_add(bl_exec *x, const bl_kv_seq *seq, const int32_t *tokens, uint32_t n, uint32_t pos);
uint32_t bl_exec_rows(const bl_exec *x);
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
/* After bl_exec_draft: logits of the n <= max_out given rows (ascending); may be repeated. */
bl_code bl_exec_draft_head(bl_exec *x, const uint32_t *rows, uint32_t n, bl_err *err) BL_MUST_CHECK;
/* Row i of the last finish, head or draft_head; n_vocab floats. */
const float *bl_exec_logits(const bl_exec *x, uint32_t i);
/* Row i of any slot, for tests and traces. */
const float *bl_exec_slot_row(const bl_exec *x, uint32_t slot, uint32_t i);

#endif
