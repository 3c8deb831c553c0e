/* Measures drafting against none in one process: bench/mtp_curve.py makes the job and the table of it.
 *
 *   mtp_curve JOB.json
 *
 * Two engines on one checkpoint, one that drafts and one that does not and holds no head, run the same greedy
 * requests in turn, who is first alternating. The acceptance can be forced: the answer is known from the
 * engine that does not draft, so each drafted token is prescribed (bl_request.draft_script) to be the right
 * one with the wanted probability and another otherwise; the head runs all the same. One JSON object a line
 * on standard output for each pair of runs.
 *
 * JOB: {"model": DIR, "depth": 2, "fixed": true, "threads": 2, "context": 512, "tokens": 64, "rounds": 3,
 *       "settle": 0, "prompts": [[ids], ...], "rates": [null, 0.5, ...]}
 * A rate of null leaves the head's own drafts. settle: tokens that the drafting engine gives at each rate
 * before it is measured, for a depth that adapts.
 */
#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "base/rng.h"
#include "bl/bl.h"

#define MAX_TOKENS 4096u
#define MAX_PROMPT 4096u

typedef struct {
    bl_engine *on, *off;
    int32_t prompt[MAX_PROMPT], script[MAX_TOKENS], want[MAX_TOKENS], got[MAX_TOKENS];
    size_t n_prompt;
    uint32_t n_vocab;
    uint64_t rng;
} bench;

typedef struct {
    uint64_t wall_ns, cpu_ns;
} spent;

static uint32_t job_number(const json_t *job, const char *key, uint32_t most) {
    json_int_t v = json_integer_value(json_object_get(job, key));
    return v < 0 || v > (json_int_t)most ? 0 : (uint32_t)v;
}

static bl_code open_engine(const json_t *job, uint32_t depth, bl_engine **ret, bl_err *err) {
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = json_string_value(json_object_get(job, "model"));
    if (o.model_path == NULL) {
        BL_FAIL(err, BL_EINVAL, "the job has no 'model'");
    }
    o.n_threads = job_number(job, "threads", 1024);
    o.n_context = job_number(job, "context", 1u << 20);
    o.max_concurrent = 1;
    o.prefix_cache_bytes = 0;
    o.draft_depth = depth;
    o.draft_fixed = json_is_true(json_object_get(job, "fixed"));
    return bl_engine_open(&o, ret, err);
}

/* Processor time of all threads: what other programs on the machine take is not in it. */
static uint64_t cpu_ns(void) {
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* On the engine's thread, with each event: the first comes with the prompt's end. */
static void note_first(void *user) {
    _Atomic uint64_t *first = user;
    uint64_t none = 0;
    (void)atomic_compare_exchange_strong_explicit(first, &none, cpu_ns(), memory_order_relaxed,
                                                  memory_order_relaxed); /* the events order it */
}

/* The answer into `ret`, and the time from its first token to its end. */
static bl_code ask(bl_engine *e, const bl_request *asked, int32_t *ret, spent *ret_spent, bl_err *err) {
    bl_session *s = NULL;
    uint32_t n = 0;
    bl_event ev;
    bool got;
    _Atomic uint64_t first = 0;
    bl_request copy = *asked, *r = &copy;
    r->notify = note_first;
    r->notify_user = &first;
    BL_TRY(bl_session_submit(e, r, &s, err));
    for (;;) {
        bl_code rc = bl_session_next(s, -1, &ev, &got, err);
        if (rc == BL_OK && got && ev.kind == BL_EVENT_TOKEN) {
            ret[n++] = ev.id;
            continue;
        }
        uint64_t end = cpu_ns();
        bl_session_free(s);
        BL_TRY(rc);
        if (ev.kind == BL_EVENT_FAILED) {
            BL_FAIL(err, ev.err.code, "%s", ev.err.msg);
        }
        if (n != r->max_tokens) {
            BL_FAIL(err, BL_EINVAL, "an answer has %u tokens, %u were asked for", n, r->max_tokens);
        }
        *ret_spent = (spent){ev.decode_ns, end - atomic_load_explicit(&first, memory_order_relaxed)};
        return BL_OK;
    }
}

static void write_script(bench *b, uint32_t n, double rate) {
    for (uint32_t i = 0; i < n; i++) {
        bool right = (double)(bl_rng_next(&b->rng) >> 11) * 0x1p-53 < rate;
        b->script[i] = right ? b->want[i] : (int32_t)(((uint32_t)b->want[i] + 1) % b->n_vocab);
    }
}

/* Steps and drafts since `before`, in the words of the table. */
static json_t *counts(const bl_engine_stats *before, const bl_engine_stats *after) {
    json_t *proposed = json_array(), *accepted = json_array();
    for (uint32_t k = 0; k < BL_MAX_DRAFT; k++) {
        (void)json_array_append_new(
            proposed, json_integer((json_int_t)(after->draft.n_proposed[k] - before->draft.n_proposed[k])));
        (void)json_array_append_new(
            accepted, json_integer((json_int_t)(after->draft.n_accepted[k] - before->draft.n_accepted[k])));
    }
    return json_pack("{s:I, s:I, s:I, s:o, s:o}", "steps", (json_int_t)(after->n_steps - before->n_steps),
                     "drafting", (json_int_t)(after->draft.n_rounds - before->draft.n_rounds), "idle",
                     (json_int_t)(after->draft.n_idle_rounds - before->draft.n_idle_rounds), "proposed",
                     proposed, "accepted", accepted);
}

/* One pair of runs at a rate (NULL: the head's own drafts), printed. */
static bl_code measure(bench *b, bl_request r, const json_t *rate, uint32_t round, size_t prompt,
                       bl_err *err) {
    spent on = {0}, off = {0};
    bl_engine_stats before, after;
    bl_request drafted = r;
    if (json_is_number(rate)) {
        write_script(b, r.max_tokens, json_number_value(rate));
        drafted.draft_script = b->script;
        drafted.n_draft_script = r.max_tokens;
    }
    if (round % 2 == 0) {
        BL_TRY(ask(b->off, &r, b->got, &off, err));
    }
    bl_engine_get_stats(b->on, &before);
    BL_TRY(ask(b->on, &drafted, b->got, &on, err));
    bl_engine_get_stats(b->on, &after);
    if (memcmp(b->got, b->want, r.max_tokens * sizeof *b->want) != 0) {
        BL_FAIL(err, BL_EINTERNAL, "prompt %zu: the answer with drafting is another one", prompt);
    }
    if (round % 2 == 1) {
        BL_TRY(ask(b->off, &r, b->got, &off, err));
    }
    json_t *line = counts(&before, &after);
    int bad = line == NULL || json_object_set(line, "rate", (json_t *)(uintptr_t)rate) != 0 ||
              json_object_update_new(
                  line, json_pack("{s:i, s:i, s:i, s:I, s:I, s:I, s:I}", "round", (int)round, "prompt",
                                  (int)prompt, "tokens", (int)r.max_tokens - 1, "on_ns",
                                  (json_int_t)on.wall_ns, "off_ns", (json_int_t)off.wall_ns, "on_cpu_ns",
                                  (json_int_t)on.cpu_ns, "off_cpu_ns", (json_int_t)off.cpu_ns)) != 0 ||
              json_dumpf(line, stdout, JSON_COMPACT | JSON_SORT_KEYS) != 0 || putchar('\n') == EOF ||
              fflush(stdout) != 0;
    json_decref(line);
    if (bad) {
        BL_FAIL(err, BL_EIO, "a result could not be written");
    }
    return BL_OK;
}

static bl_code take_prompt(bench *b, const json_t *ids, bl_err *err) {
    b->n_prompt = json_array_size(ids);
    if (b->n_prompt == 0 || b->n_prompt > MAX_PROMPT) {
        BL_FAIL(err, BL_EINVAL, "a prompt has %zu tokens, allowed are 1 to %u", b->n_prompt, MAX_PROMPT);
    }
    for (size_t i = 0; i < b->n_prompt; i++) {
        b->prompt[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
    return BL_OK;
}

/* All rates on one prompt; the rates of a round follow each other, so that all see the same machine. */
static bl_code measure_prompt(bench *b, const json_t *job, size_t prompt, bl_err *err) {
    const json_t *rates = json_object_get(job, "rates");
    uint32_t rounds = job_number(job, "rounds", 1000), settle = job_number(job, "settle", 1u << 20);
    bl_request r;
    spent end;
    BL_TRY(take_prompt(b, json_array_get(json_object_get(job, "prompts"), prompt), err));
    bl_request_init(&r);
    r.prompt = b->prompt;
    r.n_prompt = b->n_prompt;
    r.max_tokens = job_number(job, "tokens", MAX_TOKENS);
    r.sampling.temperature = 0;
    BL_TRY(ask(b->off, &r, b->want, &end, err));
    for (uint32_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < json_array_size(rates); i++) {
            const json_t *rate = json_array_get(rates, i);
            bl_request s = r;
            for (uint32_t done = 0; done < settle; done += r.max_tokens) {
                if (json_is_number(rate)) {
                    write_script(b, r.max_tokens, json_number_value(rate));
                    s.draft_script = b->script;
                    s.n_draft_script = r.max_tokens;
                }
                BL_TRY(ask(b->on, &s, b->got, &end, err));
            }
            BL_TRY(measure(b, r, rate, round, prompt, err));
        }
    }
    return BL_OK;
}

static bl_code run(bench *b, const json_t *job, bl_err *err) {
    uint32_t depth = job_number(job, "depth", BL_MAX_DRAFT);
    BL_TRY(open_engine(job, 0, &b->off, err));
    BL_TRY(open_engine(job, depth, &b->on, err));
    const bl_model_info *info = bl_engine_info(b->on);
    if (depth == 0 || info->draft_depth != depth) {
        BL_FAIL(err, BL_EINVAL, "the engine drafts %u tokens, the job wants %u: %s", info->draft_depth, depth,
                info->draft);
    }
    b->n_vocab = info->n_vocab;
    b->rng = 1;
    fprintf(stderr, "%s\n", bl_engine_device(b->on));
    for (size_t p = 0; p < json_array_size(json_object_get(job, "prompts")); p++) {
        BL_TRY(measure_prompt(b, job, p, err));
    }
    return BL_OK;
}

int main(int argc, char **argv) {
    bl_err err = {0};
    bench *b = bl_alloc(sizeof *b);
    json_t *job = argc == 2 ? json_load_file(argv[1], JSON_REJECT_DUPLICATES, NULL) : NULL;
    bl_code rc;
    if (b == NULL || job == NULL) {
        rc = bl_err_set(&err, BL_EINVAL, __FILE__, __LINE__, "usage: mtp_curve JOB.json (a JSON object)");
    } else {
        rc = run(b, job, &err);
        bl_engine_close(b->on);
        bl_engine_close(b->off);
    }
    json_decref(job);
    bl_free(b);
    if (rc != BL_OK) {
        fprintf(stderr, "mtp_curve: %s\n", err.msg);
    }
    return rc == BL_OK ? 0 : 1;
}
