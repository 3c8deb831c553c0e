/* One step of the batch: which rows run is the scheduler's choice, what memory they need is the key/value
 * pool's and the prefix cache's, and the tokens that come out go to their sessions. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/log.h"
#include "runtime/engine.h"
#include "runtime/logit_hash.h"
#include "runtime/plan.h"

#define DEFAULT_GAP_MS  250u
#define MIN_PREFILL     16u /* prompt rows beside decoding ones at least: a prompt always advances */
#define FIRST_PREFILL   32u /* until the speed is known */
#define MAX_EMPTY_PLANS 3u
#define MAX_DENIED      3u        /* a request starts again for want of the machine's memory ... */
#define DENIED_NS       60000000u /* ... for so long at least, before it fails */
#define MEAN_WEIGHT     0.2       /* of a new observation */
#define HAIRCUT         0.5       /* forecasts count on half of the measured speed */

/* ---- sessions that end ------------------------------------------------------------------------------- */

/* Takes the session out; its last event goes out in hand_out, without the lock. */
static void end_locked(bl_engine *e, bl_session *s, const bl_event *ev) {
    bl_sched_remove(e->sched, &s->sched);
    bl_kv_seq_free(s->seq);
    s->seq = NULL;
    s->last = *ev;
    s->last.n_prompt = s->n_prompt;
    s->last.n_output = s->n_output;
    s->next_ended = e->ended;
    e->ended = s;
}

static void finish_locked(bl_engine *e, bl_session *s, bl_finish why) {
    uint64_t now = bl_clock_mono_ns();
    uint64_t first = s->t_first > 0 ? s->t_first : now, start = s->t_start > 0 ? s->t_start : now;
    bl_event ev = {.kind = BL_EVENT_FINISHED,
                   .finish = why,
                   .n_cached = s->n_cached,
                   .n_preempted = s->sched.n_preempted,
                   .n_drafted = s->n_drafted,
                   .n_accepted = s->n_accepted,
                   .queue_ns = start - s->t_submit,
                   .prefill_ns = first > start ? first - start : 0,
                   .decode_ns = now - first,
                   .ttft_ns = s->t_first > 0 ? first - s->t_submit : 0,
                   .max_gap_ns = s->max_gap_ns,
                   .logit_hash = s->hash};
    e->stats.n_finished += why != BL_FINISH_CANCELLED;
    e->stats.n_cancelled += why == BL_FINISH_CANCELLED;
    end_locked(e, s, &ev);
}

static void fail_locked(bl_engine *e, bl_session *s, const bl_err *why) {
    bl_event ev = {.kind = BL_EVENT_FAILED, .err = *why};
    bl_log(BL_LOG_WARN, "engine", "request_failed", "code=%s", bl_code_name(why->code));
    e->stats.n_failed++;
    end_locked(e, s, &ev);
}

void bl_batch_hand_out(bl_engine *e) {
    while (e->ended) {
        bl_session *s = e->ended;
        e->ended = s->next_ended;
        bl_session_end(s, &s->last);
    }
}

static void expire_locked(bl_engine *e, bl_session *s, bl_lease_cause cause) {
    bl_err why;
    (void)bl_err_set(&why, BL_EBUSY, __FILE__, __LINE__,
                     "%s: %u of %u prompt tokens evaluated, %u tokens given", bl_lease_cause_name(cause),
                     BL_MIN(s->sched.n_computed, s->n_prompt), s->n_prompt, s->n_output);
    e->stats.n_expired++;
    fail_locked(e, s, &why);
}

static void sweep_list_locked(bl_engine *e, bl_sched_req *first, uint64_t now) {
    for (bl_sched_req *r = first, *next; r; r = next) {
        bl_session *s = bl_session_of(r);
        next = r->next;
        bl_lease_cause cause = bl_lease_check(&s->lease, &e->leases, now);
        if (e->stopping || bl_session_is_cancelled(s)) {
            finish_locked(e, s, BL_FINISH_CANCELLED);
        } else if (cause != BL_LEASE_OK) {
            expire_locked(e, s, cause);
        }
    }
}

void bl_batch_sweep_locked(bl_engine *e) {
    uint64_t now = bl_clock_mono_ns();
    sweep_list_locked(e, bl_sched_first_running(e->sched), now);
    sweep_list_locked(e, bl_sched_first_waiting(e->sched), now);
}

/* ---- memory, as the scheduler asks for it [guarded by mu] -------------------------------------------- */

static uint32_t mem_start(void *user, bl_sched_req *r) {
    bl_engine *e = user;
    bl_session *s = bl_session_of(r);
    uint32_t n = 0;
    /* Let in for its first chunk only, it would soon be preempted. */
    uint64_t needs = bl_kv_seq_bytes(&e->model.kv, r->n_tokens);
    bool others = bl_sched_running(e->sched) > 0;
    if (others && needs > bl_kv_pool_capacity(e->pool) - bl_kv_pool_bytes_in_use(e->pool)) {
        return UINT32_MAX;
    }
    if (bl_kv_seq_new(e->pool, &s->seq, NULL) != BL_OK) {
        return UINT32_MAX;
    }
    if (e->cache && !s->no_prefix_cache && !s->hash_prompt) {
        pthread_mutex_lock(&e->cache_mu);
        n = bl_prefix_cache_load(e->cache, s->tenant, s->ids, r->n_tokens - 1, s->seq);
        pthread_mutex_unlock(&e->cache_mu);
    }
    s->n_paired = n > 0 ? n - 1 : 0; /* the last one's is with a token that may be another here */
    if (s->t_start == 0) {
        uint64_t now = bl_clock_mono_ns();
        s->t_start = now;
        s->n_cached = n;
        e->stats.n_cached_tokens += n;
        bl_histogram_add(&e->stats.queue, (double)(now - s->t_submit) / 1e9);
    }
    bl_lease_admitted(&s->lease, bl_clock_mono_ns());
    return n;
}

static bool mem_reserve(void *user, bl_sched_req *r, uint32_t n) {
    bl_engine *e = user;
    bl_session *s = bl_session_of(r);
    bl_code rc = bl_kv_seq_reserve(s->seq, n, NULL);
    if (rc == BL_ENOMEM) {
        e->denied = s;
    } else if (rc == BL_OK && e->denied == s) {
        e->denied = NULL;
    }
    return rc == BL_OK;
}

/* What a preempted request had is worth keeping: its second prefill then costs a copy. */
static void mem_release(void *user, bl_sched_req *r) {
    bl_engine *e = user;
    bl_session *s = bl_session_of(r);
    if (e->cache && !s->no_prefix_cache && bl_kv_seq_len(s->seq) > 0) {
        pthread_mutex_lock(&e->cache_mu);
        bl_prefix_cache_store(e->cache, s->tenant, s->ids, s->seq, true);
        pthread_mutex_unlock(&e->cache_mu);
    }
    bl_kv_seq_free(s->seq);
    s->seq = NULL;
}

static bool drafts(const bl_engine *e) {
    return e->model.size.max_draft > 0;
}

/* ---- planning ---------------------------------------------------------------------------------------- */

/* Prompt rows that a step may hold beside decoding ones, so that it takes about token_gap_ms. */
static uint32_t prefill_cap(const bl_engine *e) {
    if (e->prefill_cap > 0) {
        return e->prefill_cap;
    }
    if (e->row_ns <= 0) {
        return FIRST_PREFILL;
    }
    double rows = ((double)e->token_gap_ms * 1e6 - e->step_ns) / e->row_ns;
    return rows < MIN_PREFILL ? MIN_PREFILL : rows > 1e6 ? 1000000u : (uint32_t)rows;
}

uint32_t bl_batch_cached(bl_engine *e, const bl_session *s) {
    if (!e->cache || s->no_prefix_cache || s->hash_prompt) {
        return 0;
    }
    pthread_mutex_lock(&e->cache_mu);
    uint32_t n = bl_prefix_cache_peek(e->cache, s->tenant, s->ids, s->n_prompt - 1);
    pthread_mutex_unlock(&e->cache_mu);
    return n;
}

bool bl_batch_meets_deadline_locked(bl_engine *e, const bl_session *s, uint64_t *ret_forecast_ms) {
    bl_sched_work w;
    *ret_forecast_ms = 0;
    if (e->row_ns <= 0) {
        return true; /* nothing was measured yet: the deadline itself still holds */
    }
    if (!bl_sched_forecast(e->sched, &s->sched, s->sched.n_cached_guess, prefill_cap(e), &w) ||
        (w.decode_rows > 0 && e->step_ns <= 0)) { /* tokens of others come first, and nobody timed one yet */
        *ret_forecast_ms = UINT32_MAX;
        return false;
    }
    double ns = ((double)w.prefill_rows * e->row_ns + (double)w.steps * e->step_ns) / HAIRCUT;
    *ret_forecast_ms = (uint64_t)(ns / 1e6);
    return ns <= (double)s->lease.first_content_ns - (double)bl_clock_mono_ns();
}

static void fail_for_memory_locked(bl_engine *e, bl_session *s) {
    bl_err why;
    (void)bl_err_set(&why, BL_ENOMEM, __FILE__, __LINE__,
                     "no memory for keys and values: %llu bytes are in use, the budget is %llu",
                     (unsigned long long)bl_kv_pool_bytes_in_use(e->pool),
                     (unsigned long long)bl_kv_pool_capacity(e->pool));
    fail_locked(e, s, &why);
}

/* A request gave way although nobody it could take from is left: the machine does not give what the budget
 * promised. Begun again it can get as far as before, in memory that is there, and stop at the same place for
 * ever; so there is an end to that. */
static void count_denied_locked(bl_engine *e, bl_session *s, uint64_t now) {
    s->t_denied = s->n_denied == 0 ? now : s->t_denied;
    if (++s->n_denied > MAX_DENIED && now - s->t_denied >= DENIED_NS) {
        fail_for_memory_locked(e, s);
    }
}

/* Drafts of the requests that decode next: as many as pay, as there is room to verify, and as the answer can
 * still hold. */
static void wish_drafts_locked(bl_engine *e) {
    uint32_t n = 0, max = bl_exec_max_out(e->exec);
    for (bl_sched_req *r = bl_sched_first_running(e->sched); r; r = r->next) {
        r->n_draft = 0;
        n += r->n_tokens - r->n_computed == 1;
    }
    e->depth = n > 0 ? bl_draft_depth_choose(&e->draft_depth, n) : 0;
    e->depth = n > 0 ? BL_MIN(e->depth, max / n - 1) : 0;
    for (bl_sched_req *r = bl_sched_first_running(e->sched); r; r = r->next) {
        const bl_session *s = bl_session_of(r);
        if (r->n_tokens - r->n_computed == 1 && !s->no_draft && r->n_computed > 0) {
            r->n_draft = BL_MIN(e->depth, s->max_output - s->n_output - 1);
        }
    }
}

bool bl_batch_plan_locked(bl_engine *e) {
    e->denied = NULL;
    if (drafts(e)) {
        wish_drafts_locked(e);
    }
    bl_sched_plan_step(e->sched, prefill_cap(e), &e->plan);
    uint64_t now = bl_clock_mono_ns();
    for (uint32_t i = 0; i < e->plan.n_preempted; i++) {
        bl_session *s = bl_session_of(e->plan.preempted[i]);
        bl_lease_preempted(&s->lease, now);
        if (s == e->denied) {
            count_denied_locked(e, s, now);
        }
    }
    e->stats.n_preempted += e->plan.n_preempted;
    e->n_empty_plans = e->plan.n_items > 0 ? 0 : e->n_empty_plans;
    return e->plan.n_items > 0;
}

bool bl_batch_is_stuck_locked(bl_engine *e) {
    if (++e->n_empty_plans < 2) {
        return e->denied != NULL;
    }
    bl_sched_req *first = bl_sched_first_waiting(e->sched);
    if (e->n_empty_plans > MAX_EMPTY_PLANS && first) {
        fail_for_memory_locked(e, bl_session_of(first));
        e->n_empty_plans = 0;
    }
    return true;
}

/* ---- tokens ------------------------------------------------------------------------------------------ */

/* Draws the session's next token from the logits. */
static bl_code draw(bl_session *s, bl_sampler *sampler, const float *logits, bl_drawn *ret, bl_err *err) {
    bl_pick_inputs in;
    int32_t id;
    BL_TRY(bl_session_pick_inputs(s, &in, err));
    BL_TRY(bl_sampler_pick(sampler, logits, &in, &id, err));
    if (s->logprobs) {
        int32_t ids[BL_MAX_TOP_LOGPROBS];
        float values[BL_MAX_TOP_LOGPROBS];
        bl_sampler_logprobs(sampler, logits, id, s->n_top, &ret->t.logprob, ids, values);
        for (uint32_t i = 0; i < s->n_top; i++) {
            ret->top[i] = (bl_top_logprob){ids[i], values[i]};
        }
    }
    ret->t.is_stop = bl_session_is_stop(s, id);
    bl_session_count(s, id);
    s->ids[s->n_prompt + s->n_output] = id;
    s->n_output++;
    return BL_OK;
}

/* Is the answer complete with its last token? *ret_stop: because it says so, not for its length. */
static bool is_over(const bl_session *s, bool *ret_stop) {
    *ret_stop = s->n_output > 0 &&
                (bl_session_is_stop(s, s->ids[s->n_prompt + s->n_output - 1]) || bl_session_is_complete(s));
    return *ret_stop || s->n_output == s->max_output;
}

/* The row's token; the rows behind it happen only if it is the one that was drafted, and not the last. */
static bl_code draw_judged(bl_session *s, const bl_wanted_row *w, bl_sampler *sampler, const float *logits,
                           bl_drawn *ret, bl_err *err) {
    int32_t *at = &s->ids[s->n_prompt + s->n_output], drafted = w->judges ? *at : -1;
    bool stop;
    BL_TRY(draw(s, sampler, logits, ret, err));
    if (w->judges) {
        ret->judged = true;
        ret->right = *at == drafted;
        s->n_drafted++;
        s->n_accepted += ret->right;
    }
    ret->t.n_drafted = s->n_drafted;
    ret->t.n_accepted = s->n_accepted;
    s->refused = !w->judges || !ret->right || is_over(s, &stop);
    return BL_OK;
}

typedef struct {
    bl_engine *e;
    const bl_wanted_row *w;
    uint32_t n;
} draw_job;

/* A session whose logits are no numbers fails alone. */
static void draw_row(bl_engine *e, const bl_wanted_row *w, uint32_t i, uint32_t thread) {
    bl_session *s = w->s;
    const float *logits = bl_exec_logits(e->exec, i);
    e->drawn[i] = (bl_drawn){0};
    if (s->failed || (w->draws && s->refused)) {
        return;
    }
    if (s->logit_hash) {
        s->n_hashed = w->pos + 1;
        s->hash = bl_logit_hash_row(s->hash, logits, e->model.info.n_vocab);
    }
    if (w->draws) {
        s->n_kept = w->nth + 1;
        s->failed = draw_judged(s, w, e->samplers[thread], logits, &e->drawn[i], &s->last.err) != BL_OK;
        e->drawn[i].given = !s->failed;
    }
}

/* All rows of the session whose first is row i, in their order. */
static void draw_rows(void *user, uint32_t i, uint32_t thread) {
    const draw_job *j = user;
    bool first = i == 0 || j->w[i - 1].s != j->w[i].s;
    for (uint32_t k = i; first && k < j->n && j->w[k].s == j->w[i].s; k++) {
        draw_row(j->e, &j->w[k], k, thread);
    }
}

/* Rows of one head call: hashes and draws, then the tokens go out. */
static void take_logits(bl_engine *e, const bl_wanted_row *w, uint32_t n) {
    draw_job j = {e, w, n};
    if (e->n_samplers > 1) {
        bl_backend_cpu_each(e->model.backend, n, draw_rows, &j);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (e->n_samplers == 1) {
            draw_row(e, &w[i], i, 0);
        }
        if (e->drawn[i].given) {
            bl_session_push_token(w[i].s, &e->drawn[i].t, e->drawn[i].top);
        }
        if (e->drawn[i].judged) {
            e->judged[w[i].nth]++;
            e->right[w[i].nth] += e->drawn[i].right;
        }
    }
}

/* ---- the step ---------------------------------------------------------------------------------------- */

/* Rows of the plan into the step; *ret_all: a hash covers rows that draw nothing. */
static uint32_t gather(bl_engine *e, bool *ret_all) {
    uint32_t n_wanted = 0, row = 0;
    *ret_all = false;
    bl_exec_begin(e->exec);
    for (uint32_t i = 0; i < e->plan.n_items; i++) {
        const bl_sched_item *it = &e->plan.items[i];
        bl_session *s = bl_session_of(it->req);
        uint32_t pos = s->sched.n_computed - it->n, frontier = s->sched.n_tokens - 1;
        bool hashes = false;
        s->refused = false;
        s->n_kept = it->n;
        if (it->n_draft > 0) {
            bl_exec_add_tentative(e->exec, s->seq, s->ids + pos, it->n, pos);
        } else {
            bl_exec_add(e->exec, s->seq, s->ids + pos, it->n, pos);
        }
        for (uint32_t k = 0; k < it->n; k++) {
            bool draws = pos + k >= frontier;
            bool hashed = s->hash_prompt && pos + k < s->n_prompt && pos + k >= s->n_hashed;
            if (draws || hashed) {
                e->wanted[n_wanted++] = (bl_wanted_row){.row = row + k,
                                                        .pos = pos + k,
                                                        .nth = k,
                                                        .s = s,
                                                        .draws = draws,
                                                        .judges = draws && k + 1 < it->n};
            }
            hashes = hashes || hashed;
        }
        *ret_all = *ret_all || hashes;
        row += it->n;
    }
    return n_wanted;
}

/* Logits of the wanted rows. Rows that nobody asks about leave after the last stored key; only a hash over
 * the whole prompt, and a draft head, keep them all. */
static bl_code run_head(bl_engine *e, uint32_t n_wanted, bool all, bl_err *err) {
    const bl_model *m = e->model.model;
    uint32_t max = bl_exec_max_out(e->exec);
    for (uint32_t i = 0; i < n_wanted; i++) {
        e->wanted_rows[i] = e->wanted[i].row;
    }
    if (!all && n_wanted <= max && !drafts(e)) {
        if (n_wanted > 0) {
            BL_TRY(bl_exec_finish(e->exec, e->wanted_rows, n_wanted, err));
            take_logits(e, e->wanted, n_wanted);
        }
        return BL_OK;
    }
    BL_TRY(bl_exec_run(e->exec, m->stored_op, m->select_op, err));
    for (uint32_t from = 0; from < n_wanted; from += max) {
        uint32_t n = BL_MIN(n_wanted - from, max);
        BL_TRY(bl_exec_head(e->exec, e->wanted_rows + from, n, err));
        take_logits(e, e->wanted + from, n);
    }
    return BL_OK;
}

static bool gave_token(const bl_session *s) {
    return s->n_output > s->sched.n_tokens - s->n_prompt;
}

/* ---- drafting (spec models.md §5.2) ------------------------------------------------------------------- */

/* The nth draft of a session, made in row i, goes where its token will stand if it is right. */
static void write_draft(bl_engine *e, bl_session *s, uint32_t nth, uint32_t i) {
    uint32_t k = s->n_output + nth;
    bool bad; /* drafts may be anything: the model judges them */
    uint32_t best = bl_sampler_arg_max(bl_exec_logits(e->exec, i), e->model.info.n_vocab, &bad);
    s->ids[s->n_prompt + k] = k < s->n_script ? s->script[k] : (int32_t)best;
}

/* The nth draft of every item that wants so many: from the hidden of its last position and the token behind
 * it, or from what the head made of those. `rows` holds the item of each row of the step before. */
static bl_code draft_once(bl_engine *e, uint32_t nth, uint32_t *rows, uint32_t *n_rows, bl_err *err) {
    uint32_t n = 0, from[BL_SCHED_MAX_RUNNING];
    bl_exec_begin(e->exec);
    for (uint32_t i = 0; i < *n_rows; i++) {
        const bl_sched_item *it = &e->plan.items[rows[i]];
        if (it->n_draft <= nth) {
            continue;
        }
        const bl_session *s = bl_session_of(it->req);
        uint32_t pos = s->sched.n_computed - it->n; /* of its last known token */
        if (nth == 0) {
            bl_exec_resume(e->exec, s->seq, n);
        } else {
            bl_exec_shift(e->exec, n, i);
        }
        bl_exec_add(e->exec, s->seq, s->ids + pos + nth, 1, pos + nth - 1);
        from[n] = n;
        rows[n++] = rows[i];
    }
    *n_rows = n;
    if (n == 0) {
        return BL_OK;
    }
    BL_TRY(bl_exec_draft(e->exec, err));
    BL_TRY(bl_exec_draft_head(e->exec, from, n, err));
    for (uint32_t i = 0; i < n; i++) {
        write_draft(e, bl_session_of(e->plan.items[rows[i]].req), nth, i);
    }
    return BL_OK;
}

static bl_code draft(bl_engine *e, bl_err *err) {
    uint32_t rows[BL_SCHED_MAX_RUNNING], n = e->plan.n_items;
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = i;
    }
    for (uint32_t nth = 0; nth < e->depth && n > 0; nth++) {
        BL_TRY(draft_once(e, nth, rows, &n, err));
    }
    return BL_OK;
}

/* After the tokens are drawn: states go back to behind the rows that happened, and the head's keys and values
 * of those rows are stored, so that its history is whole. A row whose next token was just drawn waits for the
 * next step, which makes it anyway when it drafts; the rows of a prompt do not wait. */
static bl_code settle_drafts(bl_engine *e, bl_err *err) {
    uint32_t row = 0, nth = 0;
    BL_TRY(bl_exec_hidden(e->exec, err));
    for (uint32_t i = 0; i < e->plan.n_items; i++) {
        if (e->plan.items[i].n_draft > 0) {
            bl_exec_keep(e->exec, nth++, bl_session_of(e->plan.items[i].req)->n_kept);
        }
    }
    BL_TRY(bl_exec_settle(e->exec, err));
    bl_exec_begin(e->exec);
    for (uint32_t i = 0; i < e->plan.n_items; i++) {
        const bl_sched_item *it = &e->plan.items[i];
        bl_session *s = bl_session_of(it->req);
        uint32_t pos = s->sched.n_computed - it->n, from = it->n_draft > 0 ? pos : s->n_paired;
        bool waits = it->decode || from < pos;
        uint32_t to = pos + s->n_kept - (waits ? 1 : 0);
        bl_exec_add_pairs(e->exec, s->seq, s->ids, from, to, pos, s->n_kept, row);
        s->n_paired = to;
        row += it->n;
    }
    return bl_exec_rows(e->exec) > 0 ? bl_exec_draft_store(e->exec, err) : BL_OK;
}

/* ---- the step ---------------------------------------------------------------------------------------- */

/* The cache gets whole tiles as they come, and what is left over when a prompt or an answer is complete. A
 * snapshot of recurrent state goes with the end of a prompt chunk: that is where others may part. Copying
 * takes time, so engine.mu is not held. A draft head's row for a tile's last position may wait for the token
 * behind it: so the tile does. */
static void remember(bl_engine *e, bl_session *s) {
    uint32_t len = bl_kv_seq_len(s->seq), before = len - s->n_kept, waits = drafts(e) ? 1 : 0;
    bool stop, prompt = len <= s->n_prompt, over = gave_token(s) && is_over(s, &stop);
    bool tile = (len - waits) / BL_KV_TILE > (before - BL_MIN(waits, before)) / BL_KV_TILE;
    if (e->cache && !s->no_prefix_cache && (prompt || over || tile)) {
        pthread_mutex_lock(&e->cache_mu);
        bl_prefix_cache_store(e->cache, s->tenant, s->ids, s->seq, over || prompt);
        pthread_mutex_unlock(&e->cache_mu);
    }
}

/* What a step did to one of its sessions. */
static void settle_locked(bl_engine *e, const bl_sched_item *it, uint64_t now) {
    bl_session *s = bl_session_of(it->req);
    uint32_t pos = s->sched.n_computed - it->n;
    bl_sched_rollback(e->sched, &s->sched, it->n - s->n_kept);
    bl_lease_computed(&s->lease, now, s->sched.n_computed);
    e->stats.n_prompt_tokens += pos < s->n_prompt ? BL_MIN(it->n, s->n_prompt - pos) : 0;
    if (s->failed) {
        bl_err why = s->last.err;
        fail_locked(e, s, &why);
        return;
    }
    if (!gave_token(s)) {
        return;
    }
    uint32_t n = s->n_output - (s->sched.n_tokens - s->n_prompt);
    e->stats.n_output_tokens += n;
    s->n_denied = 0;
    bl_lease_token(&s->lease, now);
    if (s->t_first == 0) {
        s->t_first = now;
        bl_histogram_add(&e->stats.ttft, (double)(now - s->t_submit) / 1e9);
    } else {
        s->max_gap_ns = BL_MAX(s->max_gap_ns, now - s->t_last);
        bl_histogram_add(&e->stats.token_gap, (double)(now - s->t_last) / 1e9);
    }
    s->t_last = now;
    s->sched.n_tokens += n;
    bool stop;
    if (is_over(s, &stop)) {
        finish_locked(e, s, stop ? BL_FINISH_STOP : BL_FINISH_LENGTH);
    }
}

/* The judged drafts of the step, and what it cost to have them. */
static void observe_drafts_locked(bl_engine *e, uint64_t ns) {
    bl_draft_stats *d = &e->stats.draft;
    uint32_t n_decode = 0, n_full = 0, n_drafting = 0;
    for (uint32_t i = 0; i < e->plan.n_items; i++) {
        const bl_sched_item *it = &e->plan.items[i];
        n_decode += it->decode;
        n_full += it->decode && (it->n_draft == e->depth || bl_session_of(it->req)->no_draft);
        n_drafting += it->n_draft > 0;
        d->n_idle_rounds += it->decode && e->depth == 0 && !bl_session_of(it->req)->no_draft;
    }
    d->n_rounds += n_drafting;
    for (uint32_t k = 0; k < BL_MAX_DRAFT; k++) {
        d->n_proposed[k] += e->judged[k];
        d->n_accepted[k] += e->right[k];
    }
    d->depth = n_decode > 0 ? e->depth : d->depth;
    bool telling = e->depth == 0 ? n_decode > 0 : n_drafting > 0;
    if (e->plan.n_prefill_rows == 0 && n_full == n_decode && telling) {
        bl_draft_depth_observe(&e->draft_depth, n_decode, e->depth, ns, e->judged, e->right);
    }
}

static void observe_locked(bl_engine *e, uint64_t ns) {
    const bl_sched_plan *p = &e->plan;
    if (p->n_prefill_rows == 0) {
        e->step_ns += ((double)ns - e->step_ns) * (e->step_ns > 0 ? MEAN_WEIGHT : 1.0);
    } else if (p->n_prefill_rows >= MIN_PREFILL) {
        double row = (double)ns / p->n_rows;
        e->row_ns += (row - e->row_ns) * (e->row_ns > 0 ? MEAN_WEIGHT : 1.0);
    }
}

/* A copy, so that nobody waits for cache_mu to look at statistics. Only this thread changes the cache. */
static void count_cache_locked(bl_engine *e) {
    if (e->cache) {
        bl_prefix_cache_stats c;
        bl_prefix_cache_get_stats(e->cache, &c);
        e->stats.cache_lookups = c.n_lookups;
        e->stats.cache_hits = c.n_hits;
        e->stats.cache_tokens_hit = c.n_tokens_hit;
        e->stats.cache_evicted = c.n_evicted_nodes;
        e->stats.cache_bytes_in_use = c.bytes_in_use;
        e->stats.cache_bytes_max = c.max_bytes;
    }
}

static void settle_all_locked(bl_engine *e, bl_code rc, const bl_err *why, uint64_t start_ns) {
    uint64_t now = bl_clock_mono_ns();
    bl_engine_stats *st = &e->stats;
    for (uint32_t i = 0; i < e->plan.n_items; i++) {
        if (rc == BL_OK) {
            settle_locked(e, &e->plan.items[i], now);
        } else { /* what is stored may be half a step */
            fail_locked(e, bl_session_of(e->plan.items[i].req), why);
        }
    }
    st->n_steps++;
    bl_histogram_add(&st->step, (double)(now - start_ns) / 1e9);
    count_cache_locked(e);
    bl_attn_scores scores = bl_backend_cpu_attn_scores(e->model.backend);
    st->attn_scores_executed = scores.executed;
    st->attn_scores_useful = scores.useful;
}

static bl_code run_step(bl_engine *e, bl_err *err) {
    bool all;
    if (drafts(e)) {
        memset(e->judged, 0, sizeof e->judged);
        memset(e->right, 0, sizeof e->right);
        BL_TRY(draft(e, err));
    }
    uint32_t n_wanted = gather(e, &all);
    BL_TRY(bl_exec_run(e->exec, 0, e->model.model->stored_op, err));
    BL_TRY(run_head(e, n_wanted, all, err));
    return drafts(e) ? settle_drafts(e, err) : BL_OK;
}

void bl_batch_run(bl_engine *e) {
    bl_err why = {0};
    uint64_t start = bl_clock_mono_ns();
    bl_watchdog_step(e, e->plan.n_rows);
    bl_code rc = run_step(e, &why);
    uint64_t took = bl_clock_mono_ns() - start;
    bl_watchdog_rest(e);
    for (uint32_t i = 0; i < e->plan.n_items && rc == BL_OK; i++) {
        bl_session *s = bl_session_of(e->plan.items[i].req);
        bl_kv_seq_commit(s->seq, s->n_kept);
        if (!s->failed) {
            remember(e, s);
        }
    }
    pthread_mutex_lock(&e->mu);
    observe_locked(e, took);
    if (rc == BL_OK && drafts(e)) {
        observe_drafts_locked(e, took);
    }
    settle_all_locked(e, rc, &why, start);
    pthread_mutex_unlock(&e->mu);
}

/* ---- open and close ---------------------------------------------------------------------------------- */

static bl_code open_samplers(bl_engine *e, bl_err *err) {
    uint32_t n = bl_plan_samplers(e->model.backend, e->model.kv.n_seqs);
    e->drawn = bl_alloc_array(bl_exec_max_out(e->exec), sizeof *e->drawn);
    e->samplers = bl_alloc_array(n, sizeof *e->samplers);
    if (!e->drawn || !e->samplers) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for %u samplers", n);
    }
    for (; e->n_samplers < n; e->n_samplers++) {
        BL_TRY(bl_sampler_new(e->model.info.n_vocab, &e->samplers[e->n_samplers], err));
    }
    return BL_OK;
}

static void init_histograms(bl_engine_stats *st) {
    static const double bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                    0.5,   1,      2.5,   5,    10,    25,   60,  120};
    bl_histogram *all[] = {&st->queue, &st->ttft, &st->token_gap, &st->step};
    for (size_t i = 0; i < BL_COUNTOF(all); i++) {
        bl_histogram_init(all[i], bounds, BL_COUNTOF(bounds));
    }
}

bl_code bl_batch_open(bl_engine *e, const bl_engine_options *o, bl_err *err) {
    const bl_loaded *l = &e->model;
    e->max_queue = o->max_queue > 0 ? o->max_queue : BL_DEFAULT_QUEUE;
    bl_sched_options so = {.max_running = l->kv.n_seqs,
                           .max_waiting = BL_MIN(4 * e->max_queue + l->kv.n_seqs, BL_SCHED_MAX_WAITING),
                           .step_tokens = l->size.max_rows,
                           .chunk_tokens = l->chunk_rows,
                           .solo_stripe = o->solo_stripe > 0 ? BL_MIN(o->solo_stripe, l->size.max_rows) : 0,
                           .max_partial_prefills = o->max_partial_prefills == UINT32_MAX
                                                       ? 0
                                                       : BL_MAX(o->max_partial_prefills, 1u)};
    bl_sched_memory memory = {e, mem_start, mem_reserve, mem_release};
    init_histograms(&e->stats);
    bl_lease_options_init(&e->leases);
    if (o->admission_timeout_ms > 0) {
        e->leases.admission_ms = o->admission_timeout_ms;
    }
    if (o->stall_timeout_ms > 0) {
        e->leases.prefill_ms = e->leases.decode_ms = o->stall_timeout_ms;
    }
    bl_draft_depth_init(&e->draft_depth, l->size.max_draft, o->draft_fixed);
    e->stats.draft.max_depth = l->size.max_draft;
    e->prefill_cap = o->prefill_cap;
    e->token_gap_ms = o->token_gap_ms > 0 ? o->token_gap_ms : DEFAULT_GAP_MS;
    BL_TRY(bl_exec_open(l->model, l->backend, &l->size, &e->exec, err));
    BL_TRY(bl_kv_pool_open(&l->kv, &e->pool, err));
    if (l->info.prefix_cache_bytes > 0) {
        BL_TRY(bl_prefix_cache_open(&l->kv, l->info.prefix_cache_bytes, &e->cache, err));
    }
    BL_TRY(bl_sched_open(&so, &memory, &e->sched, err));
    BL_TRY(open_samplers(e, err));
    e->wanted = bl_alloc_array(l->size.max_rows, sizeof *e->wanted);
    e->wanted_rows = bl_alloc_array(l->size.max_rows, sizeof *e->wanted_rows);
    if (!e->wanted || !e->wanted_rows) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for a step of %u rows", l->size.max_rows);
    }
    count_cache_locked(e);                                        /* nobody else is there yet */
    BL_ASSERT(bl_kv_pool_can_ever_fit(e->pool, l->kv.n_context)); /* the scheduler counts on it */
    return BL_OK;
}

void bl_batch_close(bl_engine *e) {
    bl_free(e->wanted);
    bl_free(e->wanted_rows);
    for (uint32_t i = 0; i < e->n_samplers; i++) {
        bl_sampler_free(e->samplers[i]);
    }
    bl_free(e->samplers);
    bl_free(e->drawn);
    bl_sched_close(e->sched);
    bl_prefix_cache_close(e->cache);
    bl_kv_pool_close(e->pool);
    bl_exec_close(e->exec);
}
