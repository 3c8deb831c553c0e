/* A prompt of 32,000 tokens: keys and values take what the plan says to the byte, the process grows by no
 * more than that and what the request itself holds, and nothing that the backend works in grows with the
 * context.
 */
#include "cmocka_all.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "bl/bl.h"
#include "runtime/exec.h"
#include "runtime/loader.h"
#include "tiny_model.h"

#define N_PROMPT 32000u
#define CHUNK    512u

/* Layer 6 of 7 sees everything, the others 512 positions. (Of the last layer only rows that are asked for get
 * past the stored keys.) */
static const tiny_dims dims = {"gemma3", 64, 7, 1, 1, 64, 64, 512, 40000, 512, 1e6f};
static const char *path;

static int make_model(void **state) {
    (void)state;
    static const bl_dtype types[] = {BL_DTYPE_Q8_0};
    path = tiny_path("long");
    tiny_model_write(path, &dims, NULL, types, 1);
    return 0;
}

static int remove_model(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

static bl_engine_options options(uint32_t n_context) {
    bl_engine_options o;
    bl_engine_options_init(&o);
    o.model_path = path;
    o.n_threads = 2;
    o.n_context = n_context;
    o.max_concurrent = 1;
    o.prefill_chunk = CHUNK;
    return o;
}

static uint64_t resident_bytes(void) {
    uint64_t kib = 0;
    assert_true(bl_file_read_number("/proc/self/status", "VmRSS:", &kib));
    return kib << 10;
}

static bl_event ask(bl_engine *e, const int32_t *ids, uint32_t n, uint32_t max_tokens, uint64_t *ret_peak) {
    bl_request r;
    bl_session *s = NULL;
    bl_request_init(&r);
    r.prompt = ids;
    r.n_prompt = n;
    r.max_tokens = max_tokens;
    r.sampling.temperature = 0.0f;
    TINY_MUST(bl_session_submit(e, &r, &s, NULL));
    for (;;) {
        bl_event ev;
        bool got = false;
        TINY_MUST(bl_session_next(s, 5, &ev, &got, NULL));
        *ret_peak = BL_MAX(*ret_peak, resident_bytes());
        if (got && ev.kind != BL_EVENT_TOKEN) {
            bl_session_free(s);
            assert_int_equal(ev.kind, BL_EVENT_FINISHED);
            return ev;
        }
    }
}

static void test_memory_is_as_planned(void **state) {
    (void)state;
    bl_engine_options o = options(N_PROMPT + 64); /* a whole number of tiles */
    bl_model_info plan;
    TINY_MUST(bl_model_inspect(&o, &plan, NULL));
    o.n_context = 40000;
    bl_engine *e = NULL;
    TINY_MUST(bl_engine_open(&o, &e, NULL));
    int32_t *ids = bl_alloc_array(N_PROMPT, sizeof *ids);
    assert_non_null(ids);
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        ids[i] = (int32_t)((i * 7919u + i / 11u) % 500u);
    }
    uint64_t peak = 0;
    (void)ask(e, ids, 600, 2, &peak); /* buffers and stacks that any request touches */
    bl_engine_stats st;
    bl_engine_get_stats(e, &st);
    uint64_t before = resident_bytes(), committed = st.kv_bytes_committed;
    bl_event ev = ask(e, ids, N_PROMPT, 2, &peak);
    assert_int_equal(ev.n_output, 2);
    bl_engine_get_stats(e, &st);
    assert_int_equal(st.kv_bytes_in_use, 0);
    /* 501 tiles of the layer that sees everything, a window's and a chunk's of the others */
    assert_int_equal(st.kv_bytes_committed, plan.kv_seq_bytes);
    uint64_t grown = peak - before, planned = plan.kv_seq_bytes - committed;
    print_message("keys and values: %llu bytes planned and committed; the process grew by %llu\n",
                  (unsigned long long)plan.kv_seq_bytes, (unsigned long long)grown);
    /* beside the tiles: the request's tokens, twice, tables of tiles, and pages of the angle table */
    uint64_t beside = 2 * N_PROMPT * sizeof *ids + ((uint64_t)2 << 20);
    assert_true(grown <= planned + beside);
    assert_true(grown + ((uint64_t)1 << 20) >= planned); /* it was really there */
    bl_free(ids);
    bl_engine_close(e);
}

/* What the backend works in, attention included, for a context of 1,024 and of 32,064 positions and a chunk
 * that is the same; the plan's number too. */
static void test_work_areas_do_not_grow_with_the_context(void **state) {
    (void)state;
    static const uint32_t contexts[] = {1024, N_PROMPT + 64};
    uint64_t backend[2], planned[2];
    for (size_t i = 0; i < 2; i++) {
        bl_engine_options o = options(contexts[i]);
        bl_loaded l;
        bl_exec *x = NULL;
        TINY_MUST(bl_loader_inspect(&o, &l, NULL));
        TINY_MUST(bl_loader_load(&o, &l, NULL));
        assert_int_equal(l.size.max_rows, CHUNK);
        TINY_MUST(bl_exec_open(l.model, l.backend, &l.size, &x, NULL));
        backend[i] = bl_exec_backend_bytes(x);
        planned[i] = l.info.scratch_bytes;
        bl_exec_close(x);
        bl_loader_done(&l);
    }
    assert_true(backend[0] > 0);
    assert_int_equal(backend[0], backend[1]);
    assert_int_equal(planned[0], planned[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_as_planned),
        cmocka_unit_test(test_work_areas_do_not_grow_with_the_context),
    };
    return cmocka_run_group_tests_name("long_prompt", tests, make_model, remove_model);
}
