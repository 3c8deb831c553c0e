/* The engine behind bl.h: one thread that owns model, KV and backend, a bounded queue of sessions in front of
 * it.
 *
 * The thread's loop is: take what others asked for (jobs, cancels, new sessions), run one step, hand out
 * events. A step is planned from the running sequences (one in this version) by step(); a scheduler that
 * mixes sequences replaces admit() and step(), nothing else. Lock order: engine.mu, then session.mu; no
 * callback runs under either.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "bl/bl.h"
#include "runtime/exec.h"
#include "runtime/kv.h"
#include "runtime/loader.h"
#include "runtime/logit_hash.h"
#include "runtime/sampler.h"
#include "runtime/session.h"

#define DEFAULT_QUEUE 32u
#define MAX_QUEUE     4096u
#define PROFILE_MAX   ((size_t)64 << 10)

/* What only the engine thread may do, asked for by others. */
typedef enum {
    JOB_NONE,
    JOB_READ_GBPS,
    JOB_INT8_GOPS,
    JOB_PROFILE_ON,
    JOB_PROFILE_OFF,
    JOB_PROFILE_TEXT
} job_kind;

struct bl_engine {
    /* [immutable after open] */
    bl_loaded model;
    uint32_t max_queue;
    char device[96];
    pthread_t thread;
    bool started;

    /* [engine thread] */
    bl_exec *exec;
    bl_kv_pool *pool;
    bl_kv_seq *seq;   /* of the running session, kept for the next one's common prefix */
    int32_t *history; /* [n_context]: tokens stored in seq */
    bl_sampler *sampler;
    bl_session *running;

    /* [guarded by mu] */
    pthread_mutex_t mu;
    pthread_cond_t work; /* to the engine thread */
    pthread_cond_t done; /* a job is finished */
    bl_session *first, *last;
    bool stopping;
    job_kind job;
    bool job_finished;
    double job_number;
    char *job_text;
    bl_engine_stats stats;
};

void bl_engine_options_init(bl_engine_options *o) {
    *o = (bl_engine_options){.cpu_mask = UINT32_MAX};
}

/* ---- one step [engine thread] ------------------------------------------------------------------------ */

static void finish(bl_engine *e, bl_session *s, bl_finish why) {
    uint64_t now = bl_clock_mono_ns();
    uint64_t first = s->t_first > 0 ? s->t_first : now, start = s->t_start > 0 ? s->t_start : now;
    bl_event ev = {.kind = BL_EVENT_FINISHED,
                   .finish = why,
                   .n_prompt = s->n_prompt,
                   .n_output = s->n_output,
                   .queue_ns = start - s->t_submit,
                   .prefill_ns = first > start ? first - start : 0,
                   .decode_ns = now - first,
                   .ttft_ns = s->t_first > 0 ? first - s->t_submit : 0,
                   .logit_hash = s->hash};
    pthread_mutex_lock(&e->mu);
    e->stats.running = e->running ? 1 : 0;
    e->stats.n_finished += why != BL_FINISH_CANCELLED;
    e->stats.n_cancelled += why == BL_FINISH_CANCELLED;
    pthread_mutex_unlock(&e->mu);
    bl_session_end(s, &ev);
}

static void fail(bl_engine *e, bl_session *s, const bl_err *why) {
    bl_event ev = {.kind = BL_EVENT_FAILED, .n_prompt = s->n_prompt, .n_output = s->n_output, .err = *why};
    bl_log(BL_LOG_WARN, "engine", "request_failed", "code=%s", bl_code_name(why->code));
    pthread_mutex_lock(&e->mu);
    e->stats.running = e->running ? 1 : 0;
    e->stats.n_failed++;
    pthread_mutex_unlock(&e->mu);
    bl_session_end(s, &ev);
}

/* A session becomes the running one. What it shares with the tokens stored so far need not be evaluated
 * again: by the contract the values are the same. At least one row is evaluated, for its logits. */
static void admit(bl_engine *e, bl_session *s) {
    uint32_t common = 0, max = BL_MIN(s->n_prompt - 1, bl_kv_seq_len(e->seq));
    while (!s->hash_prompt && common < max && e->history[common] == s->prompt[common]) {
        common++;
    }
    if (!bl_kv_seq_can_cut(e->seq, common)) {
        common = 0;
    }
    bl_kv_seq_cut(e->seq, common);
    s->n_done = common;
    s->t_start = bl_clock_mono_ns();
    e->running = s;
}

/* Puts n tokens of the sequence through the body up to the point where their keys and values are stored. */
static bl_code run_rows(bl_engine *e, const int32_t *tokens, uint32_t n, bl_err *err) {
    uint32_t pos = bl_kv_seq_len(e->seq);
    BL_TRY(bl_kv_seq_reserve(e->seq, n, err));
    memcpy(e->history + pos, tokens, n * sizeof *tokens);
    bl_exec_begin(e->exec);
    bl_exec_add(e->exec, e->seq, tokens, n, pos);
    BL_TRY(bl_exec_run(e->exec, 0, e->model.model->stored_op, err));
    bl_kv_seq_commit(e->seq, n);
    return BL_OK;
}

/* Logits of every row of the chunk, for a hash that covers the prompt. *ret is the last row's. */
static bl_code hash_rows(bl_engine *e, bl_session *s, uint32_t n, const float **ret, bl_err *err) {
    const bl_model *m = e->model.model;
    uint32_t rows[BL_EXEC_MAX_OUT];
    BL_TRY(bl_exec_run(e->exec, m->stored_op, m->select_op, err));
    for (uint32_t from = 0; from < n; from += BL_EXEC_MAX_OUT) {
        uint32_t k = BL_MIN(n - from, BL_EXEC_MAX_OUT);
        for (uint32_t i = 0; i < k; i++) {
            rows[i] = from + i;
        }
        BL_TRY(bl_exec_head(e->exec, rows, k, err));
        for (uint32_t i = 0; i < k; i++) {
            s->hash = bl_logit_hash_row(s->hash, bl_exec_logits(e->exec, i), e->model.info.n_vocab);
        }
        *ret = bl_exec_logits(e->exec, k - 1);
    }
    return BL_OK;
}

/* Logits of the step's last row. */
static bl_code last_row(bl_engine *e, bl_session *s, const float **ret, bl_err *err) {
    uint32_t row = bl_exec_rows(e->exec) - 1;
    BL_TRY(bl_exec_finish(e->exec, &row, 1, err));
    *ret = bl_exec_logits(e->exec, 0);
    if (s->logit_hash) {
        s->hash = bl_logit_hash_row(s->hash, *ret, e->model.info.n_vocab);
    }
    return BL_OK;
}

/* One token from the logits. True in *ret_more when the sequence goes on. */
static bl_code emit(bl_engine *e, bl_session *s, const float *logits, bool *ret_more, bl_err *err) {
    bl_token_event t = {0};
    bl_top_logprob top[BL_MAX_TOP_LOGPROBS];
    bl_pick_inputs in = bl_session_pick_inputs(s);
    BL_TRY(bl_sampler_pick(e->sampler, logits, &in, &t.id, err));
    if (s->logprobs) {
        int32_t ids[BL_MAX_TOP_LOGPROBS];
        float values[BL_MAX_TOP_LOGPROBS];
        bl_sampler_logprobs(e->sampler, logits, t.id, s->n_top, &t.logprob, ids, values);
        for (uint32_t i = 0; i < s->n_top; i++) {
            top[i] = (bl_top_logprob){ids[i], values[i]};
        }
    }
    t.is_stop = bl_session_is_stop(s, t.id);
    if (s->n_output == 0) {
        s->t_first = bl_clock_mono_ns();
    }
    bl_session_count(s, t.id);
    s->n_output++;
    s->last_id = t.id;
    *ret_more = !t.is_stop && s->n_output < s->max_output;
    bl_session_push_token(s, &t, top);
    return BL_OK;
}

static bl_code advance(bl_engine *e, bl_session *s, bool *ret_more, bl_err *err) {
    const float *logits = NULL;
    uint32_t n;
    *ret_more = true;
    if (s->n_done < s->n_prompt) {
        n = BL_MIN(s->n_prompt - s->n_done, e->model.max_rows);
        BL_TRY(run_rows(e, s->prompt + s->n_done, n, err));
        s->n_done += n;
        if (s->hash_prompt) {
            BL_TRY(hash_rows(e, s, n, &logits, err));
        } else if (s->n_done == s->n_prompt) {
            BL_TRY(last_row(e, s, &logits, err));
        }
    } else {
        n = 0;
        BL_TRY(run_rows(e, &s->last_id, 1, err));
        BL_TRY(last_row(e, s, &logits, err));
    }
    bool emitted = s->n_done == s->n_prompt;
    pthread_mutex_lock(&e->mu);
    e->stats.n_prompt_tokens += n;
    e->stats.n_output_tokens += emitted;
    e->stats.kv_bytes_in_use = bl_kv_pool_bytes_in_use(e->pool);
    pthread_mutex_unlock(&e->mu);
    return emitted ? emit(e, s, logits, ret_more, err) : BL_OK;
}

static void step(bl_engine *e) {
    bl_session *s = e->running;
    bl_err why = {0};
    bool more = true;
    if (bl_session_is_cancelled(s)) {
        e->running = NULL;
        finish(e, s, BL_FINISH_CANCELLED);
        return;
    }
    bl_code rc = advance(e, s, &more, &why);
    if (rc != BL_OK) {
        bl_kv_seq_cut(e->seq, 0); /* what is stored may be half a step */
        e->running = NULL;
        fail(e, s, &why);
    } else if (!more) {
        e->running = NULL;
        finish(e, s, bl_session_is_stop(s, s->last_id) ? BL_FINISH_STOP : BL_FINISH_LENGTH);
    }
}

/* ---- the thread -------------------------------------------------------------------------------------- */

static char *profile_text(bl_engine *e) {
    const bl_op_profile *p;
    size_t n = e->model.backend->ops->profile(e->model.backend, &p);
    bl_buf b;
    uint64_t total = 0;
    bl_buf_init(&b, PROFILE_MAX);
    for (size_t i = 0; i < n; i++) {
        total += p[i].ns;
    }
    bl_code rc = bl_buf_printf(&b, NULL, "%-18s %8s %12s %7s %10s %8s %9s\n", "operation", "calls", "ms",
                               "share", "MB read", "GB/s", "Gop/s");
    for (size_t i = 0; i < n && rc == BL_OK; i++) {
        double ns = p[i].ns > 0 ? (double)p[i].ns : 1.0;
        rc = bl_buf_printf(&b, NULL, "%-18s %8llu %12.3f %6.1f%% %10.1f %8.2f %9.2f\n", p[i].label,
                           (unsigned long long)p[i].calls, (double)p[i].ns / 1e6,
                           total > 0 ? 100.0 * (double)p[i].ns / (double)total : 0.0,
                           (double)p[i].bytes_read / 1e6, (double)p[i].bytes_read / ns,
                           (double)p[i].flops / ns);
    }
    if (rc != BL_OK) {
        bl_buf_done(&b);
        return NULL;
    }
    return bl_buf_steal(&b);
}

/* Runs the waiting job. The lock is let go of meanwhile; only this thread clears e->job. */
static void run_job_locked(bl_engine *e) {
    job_kind job = e->job;
    bool idle = !e->running && !e->first;
    bl_backend *b = e->model.backend;
    double number = 0.0;
    char *text = NULL;
    pthread_mutex_unlock(&e->mu);
    if (job == JOB_READ_GBPS && idle) {
        number = bl_backend_cpu_read_gbps(b);
    } else if (job == JOB_INT8_GOPS && idle) {
        number = bl_backend_cpu_int8_gops(b);
    } else if (job == JOB_PROFILE_ON || job == JOB_PROFILE_OFF) {
        b->ops->set_profile(b, job == JOB_PROFILE_ON);
    } else if (job == JOB_PROFILE_TEXT) {
        text = profile_text(e);
    }
    pthread_mutex_lock(&e->mu);
    e->job = JOB_NONE;
    e->job_number = number;
    e->job_text = text;
    e->job_finished = true;
    pthread_cond_broadcast(&e->done);
}

/* Takes the first waiting session that is cancelled, or the first at all. NULL when there is none. */
static bl_session *pop_locked(bl_engine *e, bool only_cancelled) {
    bl_session **at = &e->first, *prev = NULL;
    while (*at && only_cancelled && !bl_session_is_cancelled(*at)) {
        prev = *at;
        at = &(*at)->next;
    }
    bl_session *s = *at;
    if (s) {
        *at = s->next;
        if (e->last == s) {
            e->last = prev;
        }
        s->next = NULL;
        e->stats.waiting--;
    }
    return s;
}

static void *engine_main(void *arg) {
    bl_engine *e = arg;
    pthread_mutex_lock(&e->mu);
    for (;;) {
        if (e->job != JOB_NONE) {
            run_job_locked(e);
        }
        bl_session *gone = e->stopping ? pop_locked(e, false) : pop_locked(e, true);
        if (!gone && e->stopping) {
            gone = e->running;
            e->running = NULL;
        }
        if (gone) {
            pthread_mutex_unlock(&e->mu);
            finish(e, gone, BL_FINISH_CANCELLED);
            pthread_mutex_lock(&e->mu);
            continue;
        }
        if (e->stopping) {
            break;
        }
        bl_session *next = e->running ? NULL : pop_locked(e, false);
        if (!e->running && !next) {
            pthread_cond_wait(&e->work, &e->mu);
            continue;
        }
        e->stats.running = 1;
        pthread_mutex_unlock(&e->mu);
        if (next) {
            admit(e, next);
        }
        step(e);
        pthread_mutex_lock(&e->mu);
    }
    pthread_mutex_unlock(&e->mu);
    return NULL;
}

/* ---- open and close ---------------------------------------------------------------------------------- */

static bl_code open_parts(bl_engine *e, const bl_engine_options *o, bl_err *err) {
    bl_loaded *l = &e->model;
    BL_TRY(bl_loader_inspect(o, l, err));
    BL_TRY(bl_loader_load(o, l, err));
    BL_TRY(bl_exec_open(l->model, l->backend, l->max_rows, 1, &e->exec, err));
    BL_TRY(bl_kv_pool_open(&l->kv, &e->pool, err));
    BL_TRY(bl_kv_seq_new(e->pool, &e->seq, err));
    BL_TRY(bl_sampler_new(l->info.n_vocab, &e->sampler, err));
    e->history = bl_alloc_array(l->kv.n_context, sizeof *e->history);
    if (!e->history) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the history of %u tokens", l->kv.n_context);
    }
    char flags[64];
    snprintf(e->device, sizeof e->device, "%s, %u threads, %s", l->backend->ops->name,
             bl_backend_cpu_threads(l->backend), bl_cpu_flags_name(bl_backend_cpu_flags(l->backend), flags));
    if (pthread_create(&e->thread, NULL, engine_main, e) != 0) {
        BL_FAIL(err, BL_ENOMEM, "the engine thread could not be started");
    }
    e->started = true;
    return BL_OK;
}

bl_code bl_engine_open(const bl_engine_options *o, bl_engine **ret, bl_err *err) {
    if (o->max_queue > MAX_QUEUE) {
        BL_FAIL(err, BL_EINVAL, "max_queue is %u, at most %u are allowed", o->max_queue, MAX_QUEUE);
    }
    bl_engine *e = bl_alloc(sizeof *e);
    if (!e) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for the engine");
    }
    pthread_mutex_init(&e->mu, NULL);
    pthread_cond_init(&e->work, NULL);
    pthread_cond_init(&e->done, NULL);
    e->max_queue = o->max_queue > 0 ? o->max_queue : DEFAULT_QUEUE;
    bl_code rc = open_parts(e, o, err);
    if (rc != BL_OK) {
        bl_engine_close(e);
        return rc;
    }
    *ret = e;
    return BL_OK;
}

void bl_engine_close(bl_engine *e) {
    if (!e) {
        return;
    }
    if (e->started) {
        pthread_mutex_lock(&e->mu);
        e->stopping = true;
        pthread_cond_signal(&e->work);
        pthread_mutex_unlock(&e->mu);
        pthread_join(e->thread, NULL);
    }
    bl_free(e->history);
    bl_sampler_free(e->sampler);
    bl_kv_seq_free(e->seq);
    bl_kv_pool_close(e->pool);
    bl_exec_close(e->exec);
    bl_loader_done(&e->model);
    pthread_cond_destroy(&e->done);
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->mu);
    bl_free(e);
}

/* ---- from other threads ------------------------------------------------------------------------------ */

bl_code bl_session_submit(bl_engine *e, const bl_request *r, bl_session **ret, bl_err *err) {
    bl_session *s;
    BL_TRY(bl_session_new(r, e->model.info.n_vocab, e->model.info.n_context, &s, err));
    pthread_mutex_lock(&e->mu);
    uint32_t waiting = 0, all = e->stats.waiting;
    for (bl_session *q = e->first; q; q = q->next) {
        waiting += !bl_session_is_cancelled(q);
    }
    /* Cancelled ones are swept at the next step boundary; until then they do not count, but they are not
     * unbounded either. */
    bool full = waiting >= e->max_queue || all >= 4 * e->max_queue || e->stopping;
    if (!full) {
        *(e->last ? &e->last->next : &e->first) = s;
        e->last = s;
        e->stats.waiting++;
        *ret = s; /* before the engine can see it */
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->mu);
    if (full) {
        bl_session_unref(s);
        bl_session_unref(s);
        BL_FAIL(err, BL_EBUSY, "%u requests wait already, %u may", waiting, e->max_queue);
    }
    return BL_OK;
}

const bl_model_info *bl_engine_info(const bl_engine *e) {
    return &e->model.info;
}

const char *bl_engine_device(const bl_engine *e) {
    return e->device;
}

void bl_engine_get_stats(bl_engine *e, bl_engine_stats *ret) {
    pthread_mutex_lock(&e->mu);
    *ret = e->stats;
    pthread_mutex_unlock(&e->mu);
}

/* Hands a job to the engine thread and waits; jobs of several callers run one after the other. */
static double do_job(bl_engine *e, job_kind job, char **ret_text) {
    pthread_mutex_lock(&e->mu);
    while (e->job != JOB_NONE || e->job_finished) {
        pthread_cond_wait(&e->done, &e->mu);
    }
    e->job = job;
    pthread_cond_signal(&e->work);
    while (!e->job_finished) {
        pthread_cond_wait(&e->done, &e->mu);
    }
    double number = e->job_number;
    if (ret_text) {
        *ret_text = e->job_text;
    }
    e->job_text = NULL;
    e->job_finished = false;
    pthread_cond_broadcast(&e->done);
    pthread_mutex_unlock(&e->mu);
    return number;
}

double bl_engine_measure_read_gbps(bl_engine *e) {
    return do_job(e, JOB_READ_GBPS, NULL);
}

double bl_engine_measure_int8_gops(bl_engine *e) {
    return do_job(e, JOB_INT8_GOPS, NULL);
}

void bl_engine_set_profile(bl_engine *e, bool on) {
    do_job(e, on ? JOB_PROFILE_ON : JOB_PROFILE_OFF, NULL);
}

char *bl_engine_profile_text(bl_engine *e) {
    char *text = NULL;
    do_job(e, JOB_PROFILE_TEXT, &text);
    return text;
}

bl_code bl_model_inspect(const bl_engine_options *o, bl_model_info *ret, bl_err *err) {
    bl_loaded l;
    BL_TRY(bl_loader_inspect(o, &l, err));
    *ret = l.info;
    bl_loader_done(&l);
    return BL_OK;
}

const char *bl_version(void) {
    return BL_VERSION;
}
