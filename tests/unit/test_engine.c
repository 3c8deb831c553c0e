/* The engine through bl.h alone: events, stops, cancels, queue and context limits, seeds, and the contract
 * that nothing but weights, prompt, seed and settings moves a bit (NUMERICS.md §8.2).
 */
#include "cmocka_all.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/base.h"
#include "base/clock.h"
#include "bl/bl.h"
#include "formats/safetensors.h"
#include "engine_calls.h"
#include "tiny_model.h"

#define MAX_IDS 512

typedef struct {
    int32_t ids[MAX_IDS];
    float logprobs[MAX_IDS];
    uint32_t n;
    bl_event end;
} answer;

static const int32_t prompt[] = {5,   17,  301, 44,  9,   260, 77, 5,  480, 12, 33, 33, 34, 401, 2,   90,
                                 111, 112, 113, 200, 201, 7,   8,  19, 500, 64, 65, 66, 67, 68,  128, 256};
#define N_PROMPT BL_COUNTOF(prompt)

static bl_engine_options options_for(const char *path) {
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = path;
    o.n_threads = 1;
    o.n_context = 256;
    return o;
}

static bl_request greedy(uint32_t n) {
    bl_request r;
    bl_request_init(&r);
    r.prompt = prompt;
    r.n_prompt = N_PROMPT;
    r.max_tokens = n;
    r.sampling.temperature = 0.0f;
    return r;
}

/* Reads to the end and frees. */
static void drain(bl_session *s, answer *a) {
    *a = (answer){0};
    for (;;) {
        bl_event ev = next_event(s);
        if (ev.kind != BL_EVENT_TOKEN) {
            a->end = ev;
            break;
        }
        assert_true(a->n < MAX_IDS);
        a->logprobs[a->n] = ev.logprob;
        a->ids[a->n++] = ev.id;
    }
    bl_event ev;
    bool got = true;
    assert_int_equal(bl_session_next(s, -1, &ev, &got, NULL), BL_OK);
    assert_false(got);
    bl_session_free(s);
}

static void ask(bl_engine *e, const bl_request *r, answer *a) {
    drain(submit(e, r), a);
    if (a->end.kind == BL_EVENT_FAILED) {
        fail_msg("%s", a->end.err.msg);
    }
}

/* ---- events ------------------------------------------------------------------------------------------ */

static void test_answers_as_the_reference(void **state) {
    (void)state;
    bl_safetensors *st = NULL;
    char path[512];
    snprintf(path, sizeof path, "%s/expected.safetensors", tiny_llama);
    TINY_MUST(bl_safetensors_open(path, true, &st, NULL));
    const bl_tensor_view *p = bl_safetensors_find(st, "greedy_prompt"),
                         *t = bl_safetensors_find(st, "greedy_tokens");
    int32_t ids[16], want[40];
    memcpy(ids, p->data, sizeof ids);
    memcpy(want, t->data, sizeof want);
    bl_safetensors_free(st);
    bl_engine_options o = options_for(tiny_llama);
    o.activations_f32 = true;
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(40);
    r.prompt = ids;
    r.n_prompt = 16;
    answer a;
    ask(e, &r, &a);
    assert_int_equal(a.n, 40);
    assert_memory_equal(a.ids, want, sizeof want);
    assert_int_equal(a.end.finish, BL_FINISH_LENGTH);
    assert_int_equal(a.end.n_prompt, 16);
    assert_int_equal(a.end.n_output, 40);
    assert_true(a.end.ttft_ns >= a.end.prefill_ns && a.end.prefill_ns > 0 && a.end.decode_ns > 0);
    assert_int_equal(a.end.logit_hash, 0);
    bl_engine_stats s;
    bl_engine_get_stats(e, &s);
    assert_int_equal(s.n_finished, 1);
    assert_int_equal(s.n_prompt_tokens, 16);
    assert_int_equal(s.n_output_tokens, 40);
    assert_int_equal(s.running, 0);
    /* the third token as a stop id: it is the last event, marked */
    r.stop_ids = (const int32_t[]){511, want[2]};
    r.n_stop_ids = 2;
    bl_session *x = submit(e, &r);
    bl_event ev = next_event(x);
    uint32_t n = 1;
    while (!ev.is_stop) {
        ev = next_event(x);
        n++;
    }
    assert_int_equal(ev.id, want[2]);
    assert_int_equal(n, want[0] == want[2] ? 1 : want[1] == want[2] ? 2 : 3);
    ev = next_event(x);
    assert_int_equal(ev.kind, BL_EVENT_FINISHED);
    assert_int_equal(ev.finish, BL_FINISH_STOP);
    bl_session_free(x);
    bl_engine_close(e);
}

static void test_logprobs_are_a_distribution(void **state) {
    (void)state;
    bl_engine_options o = options_for(tiny_gemma);
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(6);
    r.logprobs = true;
    r.n_top_logprobs = 20;
    bl_session *s = submit(e, &r);
    for (int i = 0; i < 6; i++) {
        bl_event ev = next_event(s);
        assert_int_equal(ev.n_top, 20);
        assert_int_equal(ev.top[0].id, ev.id);
        assert_true(ev.top[0].logprob == ev.logprob && ev.logprob < 0.0f);
        double mass = 0.0;
        for (uint32_t k = 0; k < 20; k++) {
            mass += exp((double)ev.top[k].logprob);
            assert_true(k == 0 || ev.top[k].logprob <= ev.top[k - 1].logprob);
        }
        assert_true(mass < 1.0 && mass > 20.0 / 512);
    }
    bl_session_free(s);
    r.sampling.temperature = 1.5f;
    r.n_top_logprobs = 0;
    answer a;
    ask(e, &r, &a);
    for (uint32_t i = 0; i < a.n; i++) {
        assert_true(a.logprobs[i] < 0.0f);
    }
    bl_engine_close(e);
}

static atomic_uint notified;

static void count_notify(void *user) {
    atomic_fetch_add((atomic_uint *)user, 1);
}

static void test_notifies_and_frees_early(void **state) {
    (void)state;
    bl_engine_options o = options_for(tiny_llama);
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(10);
    r.notify = count_notify;
    r.notify_user = &notified;
    answer a;
    ask(e, &r, &a);
    assert_int_equal(atomic_load(&notified), 11);
    r.max_tokens = 200;
    for (int i = 0; i < 20; i++) { /* at any moment of its life */
        bl_session *s = submit(e, &r);
        if (i % 4 > 0) {
            next_event(s);
        }
        bl_session_free(s);
        unsigned before = atomic_load(&notified);
        usleep(500);
        assert_int_equal(atomic_load(&notified), before); /* none after free */
    }
    r.notify = NULL;
    r.max_tokens = 10;
    answer b;
    ask(e, &r, &b);
    assert_memory_equal(a.ids, b.ids, sizeof a.ids);
    bl_engine_close(e);
}

static void test_cancel_and_next_request(void **state) {
    (void)state;
    bl_engine_options o = options_for(tiny_llama);
    o.n_context = 4096;
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(10);
    answer before, after;
    ask(e, &r, &before);
    r.max_tokens = 4000;
    bl_session *s = submit(e, &r);
    for (int i = 0; i < 3; i++) {
        next_event(s);
    }
    bl_session_cancel(s);
    answer a;
    drain(s, &a);
    assert_int_equal(a.end.kind, BL_EVENT_FINISHED);
    assert_int_equal(a.end.finish, BL_FINISH_CANCELLED);
    assert_true(a.n + 3 < 4000);
    assert_int_equal(a.end.n_output, a.n + 3);
    r.max_tokens = 10;
    ask(e, &r, &after);
    assert_memory_equal(before.ids, after.ids, sizeof before.ids);
    bl_engine_close(e);
}

static void test_queue_is_bounded(void **state) {
    (void)state;
    bl_engine_options o = options_for(tiny_llama);
    o.n_context = 4096;
    o.max_queue = 2;
    o.max_concurrent = 1;
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(4000), few = greedy(2);
    bl_session *run = submit(e, &r), *wait[2], *s = NULL;
    next_event(run); /* it runs, so the queue is empty */
    wait[0] = submit(e, &few);
    wait[1] = submit(e, &few);
    bl_engine_stats st;
    bl_engine_get_stats(e, &st);
    assert_int_equal(st.waiting, 2);
    assert_int_equal(st.running, 1);
    assert_true(st.kv_bytes_in_use > 0);
    bl_err err = {0};
    assert_int_equal(bl_session_submit(e, &few, &s, &err), BL_EBUSY);
    assert_string_equal(err.msg, "2 requests wait already, 2 may");
    assert_null(s);
    bl_session_cancel(wait[0]); /* makes room at once, and ends without having run */
    s = submit(e, &few);
    answer a;
    drain(wait[0], &a);
    assert_int_equal(a.end.finish, BL_FINISH_CANCELLED);
    assert_int_equal(a.n, 0);
    bl_session_cancel(run);
    drain(run, &a);
    drain(wait[1], &a);
    assert_int_equal(a.n, 2);
    drain(s, &a);
    assert_int_equal(a.n, 2);
    bl_engine_close(e);
}

/* Places that are free are not the queue's: a burst on an idle engine is taken as far as both reach. */
static void test_a_burst_fills_the_places_first(void **state) {
    (void)state;
    bl_engine_options o = options_for(tiny_llama);
    o.n_context = 4096;
    o.max_queue = 1;
    o.max_concurrent = 4;
    bl_engine *e = open_engine(&o);
    for (int round = 0; round < 20; round++) {
        bl_request r = greedy(4000);
        bl_session *s[5], *more = NULL;
        bl_err err = {0};
        for (size_t i = 0; i < 5; i++) {
            s[i] = submit(e, &r);
        }
        assert_int_equal(bl_session_submit(e, &r, &more, &err), BL_EBUSY);
        for (size_t i = 0; i < 5; i++) {
            bl_session_cancel(s[i]);
            answer a;
            drain(s[i], &a);
        }
    }
    bl_engine_close(e);
}

static void test_close_ends_what_waits(void **state) {
    (void)state;
    bl_engine_options o = options_for(tiny_llama);
    o.n_context = 4096;
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(4000);
    bl_session *s[3];
    for (int i = 0; i < 3; i++) {
        s[i] = submit(e, &r);
    }
    next_event(s[0]);
    bl_engine_close(e);
    for (int i = 0; i < 3; i++) {
        bl_event ev;
        bool got = true;
        do {
            assert_int_equal(bl_session_next(s[i], 0, &ev, &got, NULL), BL_OK);
            assert_true(got);
        } while (ev.kind == BL_EVENT_TOKEN);
        assert_int_equal(ev.finish, BL_FINISH_CANCELLED);
        bl_session_free(s[i]);
    }
}

/* ---- limits ------------------------------------------------------------------------------------------ */

static void expect_refused(bl_engine *e, const bl_request *r, const char *want) {
    bl_session *s = NULL;
    bl_err err = {0};
    assert_int_equal(bl_session_submit(e, r, &s, &err), BL_EINVAL);
    assert_string_equal(err.msg, want);
    assert_null(s);
}

static void test_requests_are_checked(void **state) {
    (void)state;
    static int32_t longer[300];
    bl_engine_options o = options_for(tiny_llama);
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(8);
    r.prompt = longer;
    r.n_prompt = 257;
    expect_refused(e, &r, "the prompt has 257 tokens, the context holds 256");
    r.n_prompt = 0;
    expect_refused(e, &r, "the prompt is empty, at least one token is needed");
    r.n_prompt = 3;
    longer[1] = 512;
    expect_refused(e, &r, "a prompt token is outside the vocabulary of 512");
    longer[1] = -1;
    expect_refused(e, &r, "a prompt token is outside the vocabulary of 512");
    longer[1] = 0;
    r.max_tokens = 0;
    expect_refused(e, &r, "max_tokens is 0, at least 1 is needed");
    r.max_tokens = 4;
    r.sampling.temperature = -1.0f;
    expect_refused(e, &r, "temperature is -1, 0 to 1e6 is allowed");
    r.sampling.temperature = 1.0f;
    r.sampling.top_p = 1.5f;
    expect_refused(e, &r, "top_p is 1.5, 0 to 1 is allowed");
    r.sampling.top_p = 1.0f;
    r.sampling.min_p = nanf("");
    expect_refused(e, &r, "min_p is nan, 0 to 1 is allowed");
    r.sampling.min_p = 0.0f;
    r.n_top_logprobs = 21;
    expect_refused(e, &r, "top_logprobs is 21, at most 20 are allowed");
    r.n_top_logprobs = 0;
    r.n_stop_ids = 65;
    expect_refused(e, &r, "65 stop ids, at most 64 are allowed");
    r.n_stop_ids = 0;
    /* the context ends the answer: one more token than positions left, as the last needs none */
    answer a;
    r.n_prompt = 256;
    ask(e, &r, &a);
    assert_int_equal(a.n, 1);
    assert_int_equal(a.end.finish, BL_FINISH_LENGTH);
    r.n_prompt = 250;
    r.max_tokens = UINT32_MAX;
    ask(e, &r, &a);
    assert_int_equal(a.n, 7);
    assert_int_equal(a.end.finish, BL_FINISH_LENGTH);
    bl_engine_close(e);
}

static uint64_t progress_done, progress_total, progress_calls;

static void note_progress(void *user, uint64_t done, uint64_t total) {
    assert_ptr_equal(user, &progress_done);
    assert_true(done >= progress_done && done <= total);
    assert_true(progress_total == 0 || progress_total == total);
    progress_done = done;
    progress_total = total;
    progress_calls++;
}

/* Every byte of every matrix is announced once, paired rows (GGUF llama) included. */
static void test_progress_covers_the_matrices(void **state) {
    (void)state;
    static const bl_dtype types[] = {BL_DTYPE_Q8_0, BL_DTYPE_F32};
    const char *path = tiny_path("progress");
    tiny_model_write(path, &tiny_llama_dims, NULL, types, 2);
    const char *models[] = {path, tiny_gemma};
    for (int i = 0; i < 2; i++) {
        bl_engine_options o = options_for(models[i]);
        o.progress = note_progress;
        o.progress_user = &progress_done;
        progress_done = progress_total = progress_calls = 0;
        bl_engine *e = open_engine(&o);
        assert_true(progress_total > 0 && progress_done == progress_total && progress_calls > 28);
        assert_true(progress_total < bl_engine_info(e)->file_bytes);
        bl_engine_close(e);
    }
    unlink(path);
}

static void test_opening_is_checked(void **state) {
    (void)state;
    bl_engine *e = NULL;
    bl_err err = {0};
    bl_engine_options o = options_for(tiny_llama);
    o.n_context = 5000;
    assert_int_equal(bl_engine_open(&o, &e, &err), BL_EINVAL);
    assert_string_equal(err.msg, "a context of 5000 positions is asked for, 'llama-tiny' declares 4096");
    o.n_context = 4096;
    o.max_concurrent = 2;
    bl_model_info two, info;
    TINY_MUST(bl_model_inspect(&o, &two, &err));
    assert_int_equal(two.kv_bytes, 2 * two.kv_seq_bytes);
    o.max_concurrent = 1;
    TINY_MUST(bl_model_inspect(&o, &info, &err));
    assert_string_equal(info.family, "llama");
    assert_string_equal(info.container, "safetensors");
    assert_string_equal(info.quant, "BF16 29");
    assert_int_equal(info.kv_bytes_per_token, 4 * 2 * 2 * 32 * 2);
    assert_int_equal(info.kv_seq_bytes, 4096 * info.kv_bytes_per_token);
    assert_int_equal(info.kv_bytes, info.kv_seq_bytes);
    assert_int_equal(info.total_bytes,
                     info.weights_bytes + info.kv_bytes + info.scratch_bytes + info.other_bytes);
    o.max_memory_bytes = info.total_bytes - 1;
    assert_int_equal(bl_engine_open(&o, &e, &err), BL_ELIMIT);
    assert_non_null(strstr(err.msg, "'llama-tiny' needs"));
    o.max_memory_bytes = info.total_bytes;
    e = open_engine(&o);
    assert_memory_equal(&info, bl_engine_info(e), sizeof info);
    assert_non_null(strstr(bl_engine_device(e), "cpu, 1 threads"));
    bl_engine_close(e);
    o.max_concurrent = 2; /* the budget shrinks to what is there, but not below one session */
    o.max_memory_bytes = two.total_bytes - 1000;
    TINY_MUST(bl_model_inspect(&o, &info, &err));
    assert_int_equal(info.kv_bytes, two.kv_bytes - 1000);
    assert_int_equal(info.total_bytes, o.max_memory_bytes);
    o.n_context = 0; /* nobody asked for 4096: it shrinks to what fits */
    o.max_memory_bytes = two.total_bytes - two.kv_seq_bytes - two.kv_seq_bytes / 2;
    TINY_MUST(bl_model_inspect(&o, &info, &err));
    assert_int_equal(info.n_context, 2048);
    assert_true(info.total_bytes <= o.max_memory_bytes);
    o.prefill_chunk = 5000;
    assert_int_equal(bl_engine_open(&o, &e, &err), BL_EINVAL);
    o.prefill_chunk = 0;
    o.model_path = "/nonexistent/model.gguf";
    assert_int_equal(bl_engine_open(&o, &e, &err), BL_ENOTFOUND);
}

/* ---- the same answer --------------------------------------------------------------------------------- */

/* Rows whose logits nobody asked for skip the last layer's end and the head: that must not move a bit. A
 * prompt of one token has only asked-for rows, so both ways hash the same rows. */
static void expect_pruning_is_exact(bl_engine *e, const answer *all_rows) {
    bl_request r = greedy(12);
    answer a, b;
    ask(e, &r, &a);
    assert_memory_equal(a.ids, all_rows->ids, sizeof a.ids);
    r.n_prompt = 1;
    r.logit_hash = true;
    ask(e, &r, &a);
    r.hash_prompt = true;
    ask(e, &r, &b);
    assert_int_equal(a.end.logit_hash, b.end.logit_hash);
    assert_memory_equal(a.ids, b.ids, sizeof a.ids);
}

/* Every way of evaluating gives one hash, over the logits of every row of prompt and answer. */
static void expect_one_hash(const char *path, bool f32) {
    uint32_t chunks[] = {0, 7, 1}, masks[8], n_masks = 0;
    for (uint32_t m = 0; m <= BL_CPU_ALL; m = 2 * m + 1) {
        masks[n_masks++] = m;
        if (m == bl_cpu_detect()) {
            break;
        }
    }
    uint64_t first = 0;
    answer a, ref;
    for (uint32_t i = 0; i < n_masks * 6; i++) {
        bl_engine_options o = options_for(path);
        o.activations_f32 = f32;
        o.cpu_mask = masks[i / 6];
        o.n_threads = 1 + i % 2;
        o.prefill_chunk = chunks[i / 2 % 3];
        bl_engine *e = open_engine(&o);
        bl_request r = greedy(12);
        r.hash_prompt = true;
        ask(e, &r, &a);
        if (i % 6 < 2) { /* prompt in one chunk; 1 and 2 threads */
            expect_pruning_is_exact(e, &a);
        }
        bl_engine_close(e);
        if (i == 0) {
            first = a.end.logit_hash;
            ref = a;
        }
        if (a.end.logit_hash != first || memcmp(a.ids, ref.ids, sizeof a.ids) != 0) {
            fail_msg("%s: mask %u, %u threads, chunk %u: hash %016llx, the first was %016llx", path,
                     o.cpu_mask, o.n_threads, o.prefill_chunk, (unsigned long long)a.end.logit_hash,
                     (unsigned long long)first);
        }
    }
    assert_true(first != 0);
}

static void test_one_hash_for_floats(void **state) {
    (void)state;
    expect_one_hash(tiny_llama, false);
    expect_one_hash(tiny_gemma, false);
    expect_one_hash(tiny_gemma, true);
}

static void test_one_hash_for_every_weight_type(void **state) {
    (void)state;
    static const bl_dtype small[] = {BL_DTYPE_Q8_0, BL_DTYPE_Q4_0, BL_DTYPE_Q4_1,
                                     BL_DTYPE_Q5_0, BL_DTYPE_Q5_1, BL_DTYPE_F16};
    static const bl_dtype large[] = {BL_DTYPE_Q6_K, BL_DTYPE_Q4_K, BL_DTYPE_Q5_K, BL_DTYPE_Q8_0,
                                     BL_DTYPE_BF16};
    bl_checkpoint *c = NULL;
    TINY_MUST(bl_checkpoint_open(tiny_gemma, &c, NULL));
    const char *path = tiny_path("mixed");
    tiny_model_write(path, &tiny_gemma_dims, c, small, BL_COUNTOF(small));
    bl_checkpoint_free(c);
    expect_one_hash(path, false);
    expect_one_hash(path, true);
    tiny_model_write(path, &tiny_k_dims, NULL, large, BL_COUNTOF(large));
    expect_one_hash(path, false);
    expect_one_hash(path, true);
    unlink(path);
}

static void expect_equal_containers(const char *hf, const tiny_dims *d) {
    static const bl_dtype bf16[] = {BL_DTYPE_BF16};
    const char *paths[] = {hf, tiny_path("bf16")};
    bl_checkpoint *c = NULL;
    TINY_MUST(bl_checkpoint_open(hf, &c, NULL));
    tiny_model_write(paths[1], d, c, bf16, 1);
    bl_checkpoint_free(c);
    answer a[2];
    for (int i = 0; i < 2; i++) {
        bl_engine_options o = options_for(paths[i]);
        o.activations_f32 = true;
        bl_engine *e = open_engine(&o);
        bl_request r = greedy(40);
        r.hash_prompt = true;
        ask(e, &r, &a[i]);
        assert_string_equal(bl_engine_info(e)->container, i == 0 ? "safetensors" : "gguf");
        bl_engine_close(e);
    }
    unlink(paths[1]);
    assert_int_equal(a[0].end.logit_hash, a[1].end.logit_hash);
    assert_memory_equal(a[0].ids, a[1].ids, sizeof a[0].ids);
}

/* GGUF's paired rows, shifted norms and names are undone exactly. */
static void test_containers_agree_to_the_bit(void **state) {
    (void)state;
    expect_equal_containers(tiny_llama, &tiny_llama_dims);
    expect_equal_containers(tiny_gemma, &tiny_gemma_dims);
}

static const tiny_dims *edited_dims;

static void add_copy_of_embedding(tiny_gguf *g) {
    uint64_t seed = 7; /* as tiny_model_write begins: the same numbers */
    size_t n = (size_t)edited_dims->vocab * edited_dims->hidden;
    float *x = bl_alloc_array(n, sizeof *x);
    assert_non_null(x);
    tiny_weights(NULL, "", false, x, n, &seed);
    tiny_tensor(g, "output.weight", BL_DTYPE_F16, x, edited_dims->vocab, edited_dims->hidden);
    bl_free(x);
}

static void add_flat_biases(tiny_gguf *g, float value) {
    static const char *names[] = {"attn_q", "attn_k", "attn_v", "attn_output"};
    for (uint32_t l = 0; l < edited_dims->layers; l++) {
        for (uint32_t i = 0; i < 4; i++) {
            float x[128];
            char name[64];
            for (uint32_t k = 0; k < 128; k++) {
                x[k] = value;
            }
            snprintf(name, sizeof name, "blk.%u.%s.bias", l, names[i]);
            tiny_tensor(g, name, BL_DTYPE_F32, x, 0, i == 1 || i == 2 ? 64 : 128);
        }
    }
}

static void add_zero_biases(tiny_gguf *g) {
    add_flat_biases(g, 0.0f);
}

static void add_real_biases(tiny_gguf *g) {
    add_flat_biases(g, 0.25f);
}

/* A head of its own with the embedding's weights is the tied model; biases of zero are none, others are not.
 */
static void test_untied_head_and_biases(void **state) {
    (void)state;
    static const bl_dtype f16[] = {BL_DTYPE_F16};
    void (*edits[])(tiny_gguf *) = {NULL, add_copy_of_embedding, add_zero_biases, add_real_biases};
    uint64_t hash[4];
    const char *path = tiny_path("edited");
    edited_dims = &tiny_llama_dims;
    for (int i = 0; i < 4; i++) {
        tiny_model_write_edited(path, edited_dims, NULL, f16, 1, edits[i]);
        bl_engine_options o = options_for(path);
        bl_engine *e = open_engine(&o);
        assert_int_equal(bl_engine_info(e)->tied_embeddings, i != 1);
        bl_request r = greedy(10);
        r.hash_prompt = true;
        answer a;
        ask(e, &r, &a);
        hash[i] = a.end.logit_hash;
        bl_engine_close(e);
    }
    unlink(path);
    assert_int_equal(hash[0], hash[1]);
    assert_int_equal(hash[0], hash[2]);
    assert_int_not_equal(hash[0], hash[3]);
}

static void test_seeds_and_resumption(void **state) {
    (void)state;
    bl_engine_options o = options_for(tiny_gemma);
    bl_engine *e = open_engine(&o);
    bl_request r = greedy(24);
    r.sampling = (bl_sampling){.temperature = 1.3f, .top_k = 200, .top_p = 0.98f, .seed = 42};
    answer a, b, rest;
    ask(e, &r, &a);
    ask(e, &r, &b);
    assert_memory_equal(a.ids, b.ids, sizeof a.ids);
    r.sampling.seed = 43;
    ask(e, &r, &b);
    assert_memory_not_equal(a.ids, b.ids, sizeof a.ids);
    /* the prompt and the first tokens as a new prompt: the same draws follow */
    int32_t resumed[N_PROMPT + 10];
    memcpy(resumed, prompt, sizeof prompt);
    memcpy(resumed + N_PROMPT, a.ids, 10 * sizeof *resumed);
    r.sampling.seed = 42;
    r.prompt = resumed;
    r.n_prompt = N_PROMPT + 10;
    r.max_tokens = 14;
    ask(e, &r, &rest);
    assert_memory_equal(rest.ids, a.ids + 10, 14 * sizeof *rest.ids);
    bl_engine_close(e);
}

/* A prompt that begins like the last one is not evaluated twice, and gives the same bits. */
static void test_common_prefix_is_kept(void **state) {
    (void)state;
    const char *models[] = {tiny_llama, tiny_gemma};
    for (int m = 0; m < 2; m++) {
        bl_engine_options o = options_for(models[m]);
        o.prefix_cache_bytes = BL_AUTO;
        int32_t second[N_PROMPT + 40];
        bl_engine *e = open_engine(&o);
        bl_request r = greedy(30);
        answer a, warm, cold, other;
        ask(e, &r, &a);
        memcpy(second, prompt, sizeof prompt);
        memcpy(second + N_PROMPT, a.ids, 30 * sizeof *second);
        for (int i = 0; i < 10; i++) {
            second[N_PROMPT + 30 + (size_t)i] = 100 + i;
        }
        r.prompt = second;
        r.n_prompt = N_PROMPT + 40;
        r.logit_hash = true;
        bl_engine_stats s0, s1;
        bl_engine_get_stats(e, &s0);
        ask(e, &r, &warm);
        bl_engine_get_stats(e, &s1);
        assert_int_equal(s1.n_prompt_tokens - s0.n_prompt_tokens,
                         11);  /* the last token of the answer was never evaluated */
        r.prompt = second + 3; /* nothing in common */
        r.n_prompt = 20;
        ask(e, &r, &other);
        bl_engine_close(e);
        e = open_engine(&o);
        r.prompt = second;
        r.n_prompt = N_PROMPT + 40;
        ask(e, &r, &cold);
        assert_int_equal(warm.end.logit_hash, cold.end.logit_hash);
        assert_memory_equal(warm.ids, cold.ids, sizeof warm.ids);
        r.prompt = second + 3;
        r.n_prompt = 20;
        uint64_t hash = other.end.logit_hash;
        ask(e, &r, &other);
        assert_int_equal(hash, other.end.logit_hash);
        bl_engine_close(e);
    }
}

static void test_profile_names_every_operation(void **state) {
    (void)state;
    bl_engine_options o = options_for(tiny_gemma);
    bl_engine *e = open_engine(&o);
    bl_engine_set_profile(e, true);
    bl_request r = greedy(4);
    answer a;
    ask(e, &r, &a);
    char *text = bl_engine_profile_text(e);
    assert_non_null(text);
    assert_non_null(strstr(text, "attn_qkv"));
    assert_non_null(strstr(text, "attention_window"));
    assert_non_null(strstr(text, "head"));
    bl_free(text);
    bl_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_as_the_reference),
        cmocka_unit_test(test_logprobs_are_a_distribution),
        cmocka_unit_test(test_notifies_and_frees_early),
        cmocka_unit_test(test_cancel_and_next_request),
        cmocka_unit_test(test_queue_is_bounded),
        cmocka_unit_test(test_a_burst_fills_the_places_first),
        cmocka_unit_test(test_close_ends_what_waits),
        cmocka_unit_test(test_requests_are_checked),
        cmocka_unit_test(test_opening_is_checked),
        cmocka_unit_test(test_progress_covers_the_matrices),
        cmocka_unit_test(test_one_hash_for_floats),
        cmocka_unit_test(test_one_hash_for_every_weight_type),
        cmocka_unit_test(test_containers_agree_to_the_bit),
        cmocka_unit_test(test_untied_head_and_biases),
        cmocka_unit_test(test_seeds_and_resumption),
        cmocka_unit_test(test_common_prefix_is_kept),
        cmocka_unit_test(test_profile_names_every_operation),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
