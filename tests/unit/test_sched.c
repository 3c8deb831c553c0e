/* The scheduler's rules one by one (spec engine-runtime §2, invariants 1 to 6 and 8), with a memory that
 * counts positions. Random sequences against a model are in tests/prop/test_sched_model.c. */
#include "cmocka_all.h"

#include <string.h>

#include "base/base.h"
#include "runtime/sched.h"

#define N_REQS 70u

typedef struct {
    bl_sched *s;
    bl_sched_req r[N_REQS];
    bl_sched_plan plan;
    uint32_t capacity, used, held[N_REQS]; /* positions */
    uint32_t cached[N_REQS];               /* what start finds */
    bool refuse_start;
    uint32_t n_start, n_reserve, n_release, asked[16]; /* asked: the rows of the last reservations */
} fixture;

static uint32_t mem_start(void *user, bl_sched_req *r) {
    fixture *f = user;
    f->n_start++;
    if (f->refuse_start) {
        return UINT32_MAX;
    }
    f->held[r->id] = f->cached[r->id];
    f->used += f->held[r->id];
    return f->cached[r->id];
}

static bool mem_reserve(void *user, bl_sched_req *r, uint32_t n) {
    fixture *f = user;
    f->asked[f->n_reserve++ % BL_COUNTOF(f->asked)] = n;
    uint32_t want = r->n_computed + n;
    uint32_t more = want > f->held[r->id] ? want - f->held[r->id] : 0;
    if (more > f->capacity - f->used) {
        return false;
    }
    f->used += more;
    f->held[r->id] += more;
    return true;
}

static void mem_release(void *user, bl_sched_req *r) {
    fixture *f = user;
    f->n_release++;
    f->used -= f->held[r->id];
    f->held[r->id] = 0;
}

static const bl_sched_options base_options = {
    .max_running = 4, .max_waiting = 64, .step_tokens = 100, .chunk_tokens = 40, .solo_stripe = 0};

static void begin(fixture *f, const bl_sched_options *o) {
    memset(f, 0, sizeof *f);
    f->capacity = 1000000;
    for (uint32_t i = 0; i < N_REQS; i++) {
        f->r[i].id = i;
    }
    bl_sched_memory m = {f, mem_start, mem_reserve, mem_release};
    assert_int_equal(bl_sched_open(o, &m, &f->s, NULL), BL_OK);
}

static bl_sched_req *add(fixture *f, uint32_t i, uint32_t n_tokens, int32_t priority) {
    f->r[i].n_tokens = n_tokens;
    f->r[i].priority = priority;
    assert_int_equal(bl_sched_add(f->s, &f->r[i], NULL), BL_OK);
    return &f->r[i];
}

static void plan(fixture *f, uint32_t cap) {
    bl_sched_plan_step(f->s, cap, &f->plan);
}

/* Every row that reached its end gets a token, with all of its drafts refused. */
static void confirm(fixture *f) {
    for (uint32_t i = 0; i < f->plan.n_items; i++) {
        const bl_sched_item *it = &f->plan.items[i];
        bl_sched_rollback(f->s, it->req, it->n_draft);
        it->req->n_tokens += it->req->n_computed == it->req->n_tokens;
    }
}

static void step(fixture *f, uint32_t cap) {
    plan(f, cap);
    confirm(f);
}

/* Rows of request i in the plan. */
static uint32_t rows(const fixture *f, uint32_t i) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < f->plan.n_items; k++) {
        n += f->plan.items[k].req == &f->r[i] ? f->plan.items[k].n : 0;
    }
    return n;
}

/* Adds n requests that decode from the next step on. */
static void add_decoders(fixture *f, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        add(f, i, 2, 0);
    }
    step(f, 0);
    assert_int_equal(bl_sched_running(f->s), n);
    assert_int_equal(f->plan.n_items, n);
}

/* ---- open, add, remove ---- */

static void test_open_checks_its_options(void **state) {
    (void)state;
    bl_sched_memory m = {NULL, mem_start, mem_reserve, mem_release};
    bl_sched_options bad[7];
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        bad[i] = base_options;
    }
    bad[0].max_running = 0;
    bad[1].max_running = BL_SCHED_MAX_RUNNING + 1;
    bad[2].max_waiting = 0;
    bad[3].max_waiting = BL_SCHED_MAX_WAITING + 1;
    bad[4].step_tokens = 3; /* below max_running: somebody could not decode */
    bad[5].chunk_tokens = 101;
    bad[6].solo_stripe = 101;
    for (size_t i = 0; i < BL_COUNTOF(bad); i++) {
        bl_sched *s = NULL;
        bl_err err = {0};
        assert_int_equal(bl_sched_open(&bad[i], &m, &s, &err), BL_EINVAL);
        assert_null(s);
        assert_true(strlen(err.msg) > 0);
    }
    bl_sched_close(NULL);
}

/* Invariant 8: a duplicate live id is rejected with the original intact; the id is free again after. */
static void test_duplicate_id_is_refused(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    bl_sched_req *r = add(&f, 0, 50, 0);
    bl_sched_req twin = {.id = 0, .n_tokens = 9, .priority = 7};
    assert_int_equal(bl_sched_add(f.s, &twin, NULL), BL_EINVAL); /* it waits */
    plan(&f, 0);
    assert_int_equal(rows(&f, 0), 40);
    assert_int_equal(bl_sched_add(f.s, &twin, NULL), BL_EINVAL); /* it runs */
    assert_int_equal(twin.status, BL_SCHED_NONE);
    assert_int_equal(r->status, BL_SCHED_RUNNING);
    assert_int_equal(r->n_computed, 40);
    assert_int_equal(bl_sched_waiting(f.s) + bl_sched_running(f.s), 1);
    bl_sched_remove(f.s, r);
    f.used = f.held[0] = 0;
    assert_int_equal(bl_sched_add(f.s, &twin, NULL), BL_OK);
    assert_int_equal(twin.n_computed, 0);
    bl_sched_close(f.s);
}

static void test_request_without_tokens_is_refused(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    assert_int_equal(bl_sched_add(f.s, &f.r[0], NULL), BL_EINVAL);
    assert_int_equal(bl_sched_waiting(f.s), 0);
    bl_sched_close(f.s);
}

static void test_full_queue_is_busy(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.max_waiting = 2;
    begin(&f, &o);
    add(&f, 0, 5, 0);
    add(&f, 1, 5, 0);
    bl_err err = {0};
    f.r[2].n_tokens = 5;
    assert_int_equal(bl_sched_add(f.s, &f.r[2], &err), BL_EBUSY);
    assert_non_null(strstr(err.msg, "2 requests are waiting, allowed are 2"));
    assert_int_equal(f.r[2].status, BL_SCHED_NONE);
    plan(&f, 0); /* they run: there is room again */
    add(&f, 2, 5, 0);
    bl_sched_close(f.s);
}

static void test_preempted_requests_do_not_fill_the_queue(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.max_waiting = 1;
    begin(&f, &o);
    bl_sched_req *r = add(&f, 0, 5, 0);
    plan(&f, 0);
    mem_release(&f, r);
    bl_sched_requeue(f.s, r);
    assert_int_equal(bl_sched_waiting(f.s), 1);
    add(&f, 1, 5, 0);
    f.r[2].n_tokens = 5;
    assert_int_equal(bl_sched_add(f.s, &f.r[2], NULL), BL_EBUSY);
    bl_sched_remove(f.s, r); /* a preempted one leaves: still full */
    assert_int_equal(bl_sched_add(f.s, &f.r[2], NULL), BL_EBUSY);
    bl_sched_close(f.s);
}

static void test_remove_from_every_place(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.max_running = 2;
    begin(&f, &o);
    for (uint32_t i = 0; i < 4; i++) {
        add(&f, i, 5, 0);
    }
    plan(&f, 0);
    bl_sched_remove(f.s, &f.r[0]);
    bl_sched_remove(f.s, &f.r[3]);
    bl_sched_remove(f.s, &f.r[3]); /* twice is no matter */
    assert_ptr_equal(bl_sched_first_running(f.s), &f.r[1]);
    assert_null(f.r[1].next);
    assert_ptr_equal(bl_sched_first_waiting(f.s), &f.r[2]);
    assert_null(f.r[2].next);
    assert_int_equal(f.r[0].status, BL_SCHED_NONE);
    assert_int_equal(f.n_release, 0);
    bl_sched_close(f.s);
}

/* ---- who gets rows ---- */

/* Invariant 1: decode-ready iff one token remains. */
static void test_decode_ready_is_one_remaining(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add(&f, 0, 41, 0); /* the chunk leaves one */
    add(&f, 1, 1, 0);  /* a prompt of one */
    add(&f, 2, 42, 0); /* the chunk leaves two; 19 rows are left for it */
    plan(&f, 0);
    assert_int_equal(f.plan.n_items, 3);
    assert_false(f.plan.items[0].decode);
    assert_true(f.plan.items[1].decode);
    assert_false(f.plan.items[2].decode);
    assert_int_equal(f.plan.n_decode_rows, 1);
    assert_int_equal(f.plan.n_prefill_rows, 80);
    confirm(&f);
    plan(&f, 0);
    assert_true(f.plan.items[0].decode && f.plan.items[0].req == &f.r[0]);
    assert_true(f.plan.items[1].decode && f.plan.items[1].req == &f.r[1]);
    assert_false(f.plan.items[2].decode);
    bl_sched_close(f.s);
}

/* Invariant 1: the rows of a step are within its budget, those of a prompt within the chunk. */
static void test_budget_and_chunk_bound_rows(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    for (uint32_t i = 0; i < 4; i++) {
        add(&f, i, 1000, 0);
    }
    plan(&f, 0);
    assert_int_equal(rows(&f, 0), 40);
    assert_int_equal(rows(&f, 1), 40);
    assert_int_equal(rows(&f, 2), 20);
    assert_int_equal(rows(&f, 3), 0);
    assert_int_equal(f.plan.n_rows, 100);
    assert_int_equal(bl_sched_running(f.s), 3); /* no budget, no admission */
    bl_sched_close(f.s);
}

/* Invariant 1: nothing for paused, cancelled or finished rows. */
static void test_paused_cancelled_and_finished_get_nothing(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add_decoders(&f, 4);
    f.r[0].paused = true;
    f.r[1].cancelled = true;
    f.r[2].n_tokens = f.r[2].n_computed; /* waits for nothing: its token is not known yet */
    plan(&f, 0);
    assert_int_equal(f.plan.n_items, 1);
    assert_int_equal(rows(&f, 3), 1);
    confirm(&f);
    f.r[0].paused = false;
    plan(&f, 0);
    assert_int_equal(rows(&f, 0), 1);
    bl_sched_close(f.s);
}

static void test_running_rows_go_in_admission_order(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add(&f, 0, 1000, 0);
    add(&f, 1, 1000, 0);
    step(&f, 0);
    add(&f, 2, 1000, 9); /* a higher priority comes first among the waiting, not among the running */
    step(&f, 0);
    assert_ptr_equal(f.plan.items[0].req, &f.r[0]);
    assert_ptr_equal(f.plan.items[1].req, &f.r[1]);
    assert_ptr_equal(f.plan.items[2].req, &f.r[2]);
    bl_sched_close(f.s);
}

/* Prompts that were admitted first and could use up the budget do not keep decoders from their rows. */
static void test_decoders_do_not_starve_behind_prompts(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.step_tokens = 40;
    begin(&f, &o);
    add(&f, 0, 1000, 0);
    step(&f, 0);
    f.r[0].paused = true; /* lets the other one in behind it */
    add(&f, 1, 2, 0);
    step(&f, 0);
    f.r[0].paused = false;
    assert_ptr_equal(bl_sched_first_running(f.s), &f.r[0]);
    for (int i = 0; i < 10; i++) {
        step(&f, 0);
        assert_ptr_equal(f.plan.items[0].req, &f.r[1]);
        assert_int_equal(rows(&f, 1), 1);
        assert_int_equal(rows(&f, 0), 39);
    }
    bl_sched_close(f.s);
}

/* ---- drafts ---- */

static void test_drafts_are_verified_with_the_decode_row(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add_decoders(&f, 1);
    f.r[0].n_draft = 3;
    plan(&f, 0);
    assert_int_equal(f.plan.items[0].n, 4);
    assert_int_equal(f.plan.items[0].n_draft, 3);
    assert_int_equal(f.plan.n_decode_rows, 4);
    assert_int_equal(f.r[0].n_computed, 6);
    /* One accepted: two new tokens, two rows taken back. */
    f.r[0].n_tokens += 2;
    bl_sched_rollback(f.s, &f.r[0], 2);
    f.r[0].n_draft = 0;
    plan(&f, 0);
    assert_int_equal(rows(&f, 0), 1);
    bl_sched_close(f.s);
}

/* Drafts take no row from decoders behind, nor the last one from a prompt. */
static void test_drafts_leave_others_their_rows(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.step_tokens = 8;
    o.chunk_tokens = 8;
    begin(&f, &o);
    add_decoders(&f, 3);
    f.r[0].n_draft = 6;
    plan(&f, 0); /* 1 + 6 would leave one row for two */
    assert_int_equal(f.plan.n_rows, 3);
    confirm(&f);
    f.r[0].n_draft = 5;
    plan(&f, 0);
    assert_int_equal(rows(&f, 0), 6);
    assert_int_equal(f.plan.n_rows, 8);
    confirm(&f);
    add(&f, 3, 50, 0); /* wants to be admitted */
    plan(&f, 0);
    assert_int_equal(rows(&f, 0), 1);
    assert_int_equal(rows(&f, 3), 5);
    confirm(&f);
    plan(&f, 0); /* now it runs */
    assert_int_equal(rows(&f, 0), 1);
    confirm(&f);
    f.r[0].n_draft = 4;
    plan(&f, 0);
    assert_int_equal(rows(&f, 0), 5);
    assert_int_equal(rows(&f, 3), 1);
    confirm(&f);
    f.r[0].n_draft = UINT32_MAX; /* no overflow */
    plan(&f, 0);
    assert_int_equal(rows(&f, 0), 1);
    bl_sched_close(f.s);
}

/* Invariant 4: drafts are dropped before anybody is preempted for them. */
static void test_drafts_are_dropped_before_preempting(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add_decoders(&f, 2);
    f.capacity = f.used + 3;
    f.r[0].n_draft = 3;
    plan(&f, 0);
    assert_int_equal(f.plan.n_preempted, 0);
    assert_int_equal(rows(&f, 0), 1);
    assert_int_equal(f.plan.items[0].n_draft, 0);
    assert_int_equal(rows(&f, 1), 1);
    bl_sched_close(f.s);
}

/* ---- cap ---- */

/* Invariant 5: the cap bounds prompt rows of steps with decode work, never decode rows. */
static void test_cap_bounds_prompt_rows_beside_decoders(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add_decoders(&f, 2);
    add(&f, 2, 1000, 0);
    for (int i = 0; i < 5; i++) {
        step(&f, 7);
        assert_int_equal(f.plan.n_decode_rows, 2);
        assert_int_equal(rows(&f, 2), 7);
        assert_int_equal(f.plan.n_rows, 9); /* the bound on the gap: decode rows + cap */
    }
    step(&f, 1);
    assert_int_equal(f.plan.n_decode_rows, 2); /* below the number of decoders: no matter to them */
    assert_int_equal(f.plan.n_prefill_rows, 1);
    bl_sched_close(f.s);
}

static void test_cap_is_not_armed_without_decoders(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add_decoders(&f, 1);
    add(&f, 1, 1000, 0);
    f.r[0].paused = true; /* decode-ready, but not to be served */
    step(&f, 7);
    assert_int_equal(rows(&f, 1), 40);
    bl_sched_close(f.s);
}

/* Invariant 5: a row skipped for the cap leaves no side effects. */
static void test_row_skipped_for_the_cap_is_untouched(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add_decoders(&f, 1);
    add(&f, 1, 1000, 0);
    add(&f, 2, 1000, 0);
    add(&f, 3, 1000, 0);
    step(&f, 20); /* the first takes 20, and nobody behind is admitted */
    assert_int_equal(bl_sched_running(f.s), 2);
    assert_int_equal(f.r[2].status, BL_SCHED_WAITING);
    assert_int_equal(f.n_start, 2);
    step(&f, 0); /* all are admitted: 40 + 40 + 19 */
    assert_int_equal(bl_sched_running(f.s), 4);
    f.capacity = f.used + 21; /* no room for request 2 if it asked */
    uint32_t before = f.r[2].n_computed, n_reserve = f.n_reserve;
    step(&f, 20);
    assert_int_equal(rows(&f, 1), 20);
    assert_int_equal(rows(&f, 2), 0);
    assert_int_equal(f.r[2].n_computed, before);
    assert_int_equal(f.n_reserve - n_reserve, 2);
    assert_int_equal(f.plan.n_preempted, 0);
    bl_sched_close(f.s);
}

/* Invariant 5: the smallest cap still finishes every prompt. */
static void test_smallest_cap_does_not_deadlock(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add_decoders(&f, 1);
    add(&f, 1, 30, 0);
    add(&f, 2, 30, 0);
    uint32_t steps = 0;
    while (f.r[2].n_tokens == 30) {
        step(&f, 1);
        assert_true(++steps < 64);
    }
    bl_sched_close(f.s);
}

/* ---- solo stripe ---- */

static bl_sched_options striped(void) {
    bl_sched_options o = base_options;
    o.solo_stripe = 90;
    return o;
}

static void test_solo_stripe_is_armed_for_one_prompt(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = striped();
    begin(&f, &o);
    add(&f, 0, 1000, 0);
    step(&f, 0); /* from the queue */
    assert_true(f.plan.solo);
    assert_int_equal(rows(&f, 0), 90);
    step(&f, 0); /* and while it runs */
    assert_true(f.plan.solo);
    assert_int_equal(rows(&f, 0), 90);
    f.r[0].n_tokens = f.r[0].n_computed + 1;
    step(&f, 0); /* a decoder needs none */
    assert_false(f.plan.solo);
    bl_sched_close(f.s);
}

/* Invariant 6: any second request disarms the stripe, even one that does not run. */
static void test_solo_stripe_is_disarmed_by_company(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = striped();
    begin(&f, &o);
    add(&f, 0, 1000, 0);
    add(&f, 1, 10, 0)->paused = true;
    step(&f, 0);
    assert_false(f.plan.solo);
    assert_int_equal(rows(&f, 0), 40);
    bl_sched_remove(f.s, &f.r[1]);
    step(&f, 0);
    assert_true(f.plan.solo);
    assert_int_equal(rows(&f, 0), 90);
    bl_sched_close(f.s);
}

static void test_solo_stripe_needs_a_request_that_runs(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = striped();
    begin(&f, &o);
    add(&f, 0, 1000, 0)->paused = true;
    plan(&f, 0);
    assert_false(f.plan.solo);
    f.r[0].paused = false;
    f.r[0].cancelled = true;
    plan(&f, 0);
    assert_false(f.plan.solo);
    assert_int_equal(f.plan.n_items, 0);
    bl_sched_close(f.s);
}

/* Invariants 4 and 6: where memory fails the stripe shrinks once, to the chunk, before anything else. */
static void test_stripe_shrinks_once(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = striped();
    begin(&f, &o);
    add(&f, 0, 1000, 0);
    f.capacity = 60;
    step(&f, 0); /* waiting */
    assert_int_equal(rows(&f, 0), 40);
    assert_int_equal(f.n_reserve, 2);
    assert_int_equal(f.asked[0], 90);
    assert_int_equal(f.asked[1], 40);
    f.capacity = 100;
    step(&f, 0); /* running */
    assert_int_equal(rows(&f, 0), 40);
    assert_int_equal(f.n_reserve, 4);
    assert_int_equal(f.plan.n_preempted, 0);
    step(&f, 0); /* not even the chunk: 20 are left. It preempts itself after exactly two tries */
    assert_int_equal(f.n_reserve, 6);
    assert_int_equal(f.plan.n_preempted, 1);
    assert_int_equal(f.plan.n_items, 0);
    bl_sched_close(f.s);
}

static void test_waiting_stripe_shrinks_once_and_gives_up(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = striped();
    begin(&f, &o);
    add(&f, 0, 1000, 0);
    f.capacity = 39;
    plan(&f, 0);
    assert_int_equal(f.n_reserve, 2);
    assert_int_equal(f.plan.n_items, 0);
    assert_int_equal(f.r[0].status, BL_SCHED_WAITING);
    assert_int_equal(f.r[0].n_computed, 0);
    assert_int_equal(f.n_release, f.n_start);
    bl_sched_close(f.s);
}

/* ---- preemption ---- */

/* Invariant 3: lowest priority, then youngest. */
static void test_victim_is_lowest_priority_then_youngest(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add(&f, 0, 2, 5);
    add(&f, 1, 2, 1);
    add(&f, 2, 2, 1);
    add(&f, 3, 2, 5);
    step(&f, 0);
    assert_int_equal(bl_sched_running(f.s), 4);
    f.capacity = f.used; /* each needs one more: 2 goes for 0, and its two positions serve 0 and 3 */
    plan(&f, 0);
    assert_int_equal(f.plan.n_preempted, 2);
    assert_ptr_equal(f.plan.preempted[0], &f.r[2]);
    assert_ptr_equal(f.plan.preempted[1], &f.r[1]); /* then it is 1 itself that ranks lowest */
    assert_int_equal(f.plan.n_items, 2);
    assert_int_equal(rows(&f, 0) + rows(&f, 3), 2);
    bl_sched_close(f.s);
}

/* Invariant 3: the victim's assignment in the same plan is refunded; output kept, nothing computed. */
static void test_victim_is_refunded_and_requeued_in_front(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add(&f, 0, 2, 0); /* low priority, first in admission order */
    step(&f, 0);
    add(&f, 1, 2, 1);
    step(&f, 0);
    add(&f, 2, 2, 0); /* waits in the same class */
    f.r[2].paused = true;
    f.capacity = f.used + 1; /* 0 takes the last position, then 1 needs one */
    uint32_t n_tokens = f.r[0].n_tokens;
    plan(&f, 0);
    assert_int_equal(f.plan.n_preempted, 1);
    assert_ptr_equal(f.plan.preempted[0], &f.r[0]);
    assert_int_equal(f.plan.n_items, 1);
    assert_int_equal(rows(&f, 0), 0);
    assert_int_equal(rows(&f, 1), 1);
    assert_int_equal(f.plan.n_rows, 1);
    assert_int_equal(f.plan.n_decode_rows, 1);
    assert_int_equal(f.r[0].status, BL_SCHED_PREEMPTED);
    assert_int_equal(f.r[0].n_computed, 0);
    assert_int_equal(f.r[0].n_tokens, n_tokens);
    assert_int_equal(f.r[0].n_preempted, 1);
    assert_int_equal(f.held[0], 0);
    assert_ptr_equal(bl_sched_first_waiting(f.s), &f.r[0]);
    assert_ptr_equal(f.r[0].next, &f.r[2]);
    bl_sched_close(f.s);
}

/* Request 0 decodes; 1, which ranks lowest, and behind it 2 and 3 have prompt left; there is room for 0
 * and 1. */
static void begin_with_a_victim(fixture *f) {
    begin(f, &base_options);
    add(f, 0, 2, 0);
    add(f, 1, 1000, -1);
    step(f, 0);
    f->r[0].paused = true;
    add(f, 2, 1000, 0);
    add(f, 3, 1000, 0);
    step(f, 0);
    f->r[0].paused = false;
    f->capacity = f->used + 1 + 40;
}

/* Invariant 3: the rows a victim gives back can be planned anew in the same step, ... */
static void test_refunded_rows_can_be_used(void **state) {
    (void)state;
    fixture f;
    begin_with_a_victim(&f);
    plan(&f, 0); /* 40 of 1 would leave 59 rows: 40 and 19 */
    assert_int_equal(f.plan.n_preempted, 1);
    assert_ptr_equal(f.plan.preempted[0], &f.r[1]);
    assert_int_equal(rows(&f, 0), 1);
    assert_int_equal(rows(&f, 1), 0);
    assert_int_equal(rows(&f, 2), 40);
    assert_int_equal(rows(&f, 3), 40);
    assert_int_equal(f.plan.n_rows, 81);
    bl_sched_close(f.s);
}

/* ... those under the cap too. */
static void test_refunded_rows_are_under_the_cap_again(void **state) {
    (void)state;
    fixture f;
    begin_with_a_victim(&f);
    plan(&f, 50);
    assert_int_equal(f.plan.n_preempted, 1);
    assert_int_equal(rows(&f, 2), 10); /* asked for before 1 had to go */
    assert_int_equal(rows(&f, 3), 40);
    assert_int_equal(f.plan.n_prefill_rows, 50);
    assert_int_equal(f.plan.n_rows, 51);
    bl_sched_close(f.s);
}

static void test_requester_that_is_the_victim_stops_the_step(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add(&f, 0, 2, -1); /* lowest, first in order */
    step(&f, 0);
    add(&f, 1, 2, 0);
    step(&f, 0);
    add(&f, 2, 2, 9);
    f.capacity = f.used; /* nothing for 0 */
    plan(&f, 0);
    assert_int_equal(f.plan.n_preempted, 1);
    assert_ptr_equal(f.plan.preempted[0], &f.r[0]);
    assert_int_equal(f.plan.n_items, 0); /* neither 1, for which there would be room now, nor 2 */
    step(&f, 0);
    assert_int_equal(rows(&f, 1), 1); /* the next step serves it */
    bl_sched_close(f.s);
}

/* Invariant 2: no admission in a step that preempted. */
static void test_no_admission_after_preemption(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add_decoders(&f, 2);
    add(&f, 2, 1, 9);
    f.capacity = f.used;
    plan(&f, 0); /* 0 at the cost of 1: two positions are free again, and 2 would need one */
    assert_int_equal(f.plan.n_preempted, 1);
    assert_int_equal(rows(&f, 0), 1);
    assert_int_equal(f.r[2].status, BL_SCHED_WAITING);
    confirm(&f);
    f.capacity++;
    plan(&f, 0);
    assert_int_equal(f.r[2].status, BL_SCHED_RUNNING);
    bl_sched_close(f.s);
}

/* A request that is alone runs again after preempting itself, as soon as the memory holds it. */
static void test_lone_preempted_request_runs_again(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add(&f, 0, 100, 0);
    add(&f, 1, 100, 0);
    f.capacity = 110; /* one fits, with a few tokens */
    uint32_t steps = 0;
    for (uint32_t i = 0; i < 2; i++) {
        while (f.r[i].n_tokens < 110) {
            step(&f, 0);
            assert_true(++steps < 100);
        }
        mem_release(&f, &f.r[i]);
        bl_sched_remove(f.s, &f.r[i]);
    }
    bl_sched_close(f.s);
}

static void test_requeue_puts_in_front_of_its_class(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.max_running = 1;
    begin(&f, &o);
    add(&f, 0, 50, 0);
    plan(&f, 0);
    add(&f, 1, 5, 0);
    add(&f, 2, 5, 3);
    add(&f, 3, 5, -3);
    mem_release(&f, &f.r[0]);
    bl_sched_requeue(f.s, &f.r[0]);
    assert_int_equal(f.r[0].n_computed, 0);
    const bl_sched_req *w = bl_sched_first_waiting(f.s);
    const uint32_t order[] = {2, 0, 1, 3};
    for (size_t i = 0; i < BL_COUNTOF(order); i++, w = w->next) {
        assert_ptr_equal(w, &f.r[order[i]]);
    }
    assert_null(w);
    bl_sched_close(f.s);
}

static void test_rollback_of_a_step_that_did_not_run(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add(&f, 0, 50, 0);
    plan(&f, 0);
    bl_sched_rollback(f.s, &f.r[0], 40);
    assert_int_equal(f.r[0].n_computed, 0);
    assert_int_equal(f.r[0].status, BL_SCHED_RUNNING);
    plan(&f, 0);
    assert_int_equal(rows(&f, 0), 40);
    bl_sched_rollback(f.s, &f.r[0], 99); /* never below nothing */
    assert_int_equal(f.r[0].n_computed, 0);
    bl_sched_close(f.s);
}

/* ---- admission ---- */

/* Invariant 2: running < B before each admission. */
static void test_running_is_bounded(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    for (uint32_t i = 0; i < 6; i++) {
        add(&f, i, 2, 0);
    }
    step(&f, 0);
    assert_int_equal(bl_sched_running(f.s), 4);
    step(&f, 0);
    assert_int_equal(bl_sched_running(f.s), 4);
    bl_sched_remove(f.s, &f.r[1]);
    step(&f, 0);
    assert_int_equal(f.r[4].status, BL_SCHED_RUNNING);
    assert_int_equal(f.r[5].status, BL_SCHED_WAITING);
    bl_sched_close(f.s);
}

/* Invariant 2: first come, first served within a priority. */
static void test_waiting_is_fcfs_within_priority(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.max_running = 1;
    begin(&f, &o);
    const int32_t priority[] = {0, 5, 0, 5, -1, 7};
    const uint32_t order[] = {5, 1, 3, 0, 2, 4};
    for (uint32_t i = 0; i < BL_COUNTOF(priority); i++) {
        add(&f, i, 2, priority[i]);
    }
    for (uint32_t i = 0; i < BL_COUNTOF(order); i++) {
        step(&f, 0);
        assert_ptr_equal(bl_sched_first_running(f.s), &f.r[order[i]]);
        bl_sched_remove(f.s, &f.r[order[i]]);
    }
    bl_sched_close(f.s);
}

static void test_paused_waiting_row_is_skipped(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add(&f, 0, 5, 0)->paused = true;
    add(&f, 1, 5, 0);
    step(&f, 0);
    assert_int_equal(f.r[0].status, BL_SCHED_WAITING);
    assert_int_equal(rows(&f, 1), 5);
    bl_sched_close(f.s);
}

static void test_cancelled_waiting_row_stops_admission(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add(&f, 0, 5, 0)->cancelled = true;
    add(&f, 1, 5, 0);
    step(&f, 0);
    assert_int_equal(f.plan.n_items, 0);
    bl_sched_remove(f.s, &f.r[0]);
    step(&f, 0);
    assert_int_equal(rows(&f, 1), 5);
    bl_sched_close(f.s);
}

/* A waiting row whose memory fails preempts nobody, is taken back whole, and nobody overtakes it. */
static void test_waiting_row_without_memory_stops_admission(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add_decoders(&f, 1);
    add(&f, 1, 30, 9);
    add(&f, 2, 1, 0);
    f.capacity = f.used + 10;
    plan(&f, 0);
    assert_int_equal(f.plan.n_preempted, 0);
    assert_int_equal(f.plan.n_items, 1);
    assert_int_equal(f.r[1].status, BL_SCHED_WAITING);
    assert_int_equal(f.r[1].n_computed, 0);
    assert_int_equal(f.held[1], 0);
    assert_int_equal(f.r[2].status, BL_SCHED_WAITING);
    bl_sched_close(f.s);
}

static void test_start_that_says_not_now_stops_admission(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add(&f, 0, 5, 0);
    add(&f, 1, 5, 0);
    f.refuse_start = true;
    plan(&f, 0);
    assert_int_equal(f.plan.n_items, 0);
    assert_int_equal(f.n_start, 1);
    assert_int_equal(f.n_release, 0);
    f.refuse_start = false;
    plan(&f, 0);
    assert_int_equal(f.plan.n_items, 2);
    bl_sched_close(f.s);
}

static void test_cached_positions_are_not_computed(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    f.cached[0] = 128;
    f.cached[1] = 129;
    add(&f, 0, 140, 0);
    add(&f, 1, 130, 0);
    plan(&f, 0);
    assert_int_equal(rows(&f, 0), 12);
    assert_int_equal(rows(&f, 1), 1);
    assert_false(f.plan.items[0].decode);
    assert_true(f.plan.items[1].decode);
    assert_int_equal(f.r[0].n_computed, 140);
    bl_sched_close(f.s);
}

/* ---- prompts part way ---- */

static void test_one_prompt_part_way_at_a_time(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.max_partial_prefills = 1;
    begin(&f, &o);
    add(&f, 0, 100, 0);
    add(&f, 1, 100, 0);
    add(&f, 2, 5, 0);
    step(&f, 0);
    assert_int_equal(rows(&f, 0), 40);
    assert_int_equal(f.plan.n_items, 1); /* 1 would be the second; 2 may not overtake it */
    step(&f, 0);
    assert_int_equal(f.plan.n_items, 1);
    step(&f, 0); /* 0 completes, and there is room for 1 to begin, and for 2 to go through */
    assert_int_equal(rows(&f, 0), 20);
    assert_int_equal(rows(&f, 1), 40);
    assert_int_equal(rows(&f, 2), 5);
    assert_int_equal(f.n_start, 3); /* no start of a request that was not admitted */
    bl_sched_close(f.s);
}

static void test_short_prompts_pack_into_a_step(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.max_partial_prefills = 1;
    begin(&f, &o);
    for (uint32_t i = 0; i < 4; i++) {
        add(&f, i, 30, 0);
    }
    step(&f, 0);
    assert_int_equal(f.plan.n_items, 4); /* 30 + 30 + 30, and 10 of the one that is part way */
    assert_int_equal(rows(&f, 3), 10);
    bl_sched_close(f.s);
}

/* The limit holds for what start found, and a wrong guess is made once. */
static void test_wrong_guess_of_cached_positions_is_corrected(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.max_partial_prefills = 1;
    begin(&f, &o);
    add(&f, 0, 1000, 0);
    add(&f, 1, 100, 0)->n_cached_guess = 90;
    f.cached[1] = 10;
    step(&f, 0);
    assert_int_equal(f.n_start, 2);
    assert_int_equal(f.n_release, 1);
    assert_int_equal(f.r[1].status, BL_SCHED_WAITING);
    assert_int_equal(f.r[1].n_cached_guess, 10);
    step(&f, 0);
    assert_int_equal(f.n_start, 2);
    f.r[1].n_cached_guess = 90;
    f.cached[1] = 90; /* the guess is right: it goes beside the other's prompt */
    step(&f, 0);
    assert_int_equal(rows(&f, 1), 10);
    bl_sched_close(f.s);
}

/* ---- forecast ---- */

static void test_forecast_counts_whole_steps(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add_decoders(&f, 2);
    f.r[0].n_tokens_end = f.r[1].n_tokens_end = 1000;
    add(&f, 2, 100, 0)->n_tokens_end = 200;
    bl_sched_work w;
    assert_true(bl_sched_forecast(f.s, &f.r[2], 0, 0, &w)); /* 40, 40, 20 beside two decoders */
    assert_int_equal(w.steps, 3);
    assert_int_equal(w.prefill_rows, 100);
    assert_int_equal(w.decode_rows, 6);
    assert_true(bl_sched_forecast(f.s, &f.r[2], 0, 10, &w));
    assert_int_equal(w.steps, 10);
    assert_int_equal(w.decode_rows, 20);
    assert_true(bl_sched_forecast(f.s, &f.r[2], 95, 10, &w)); /* cached */
    assert_int_equal(w.steps, 1);
    assert_int_equal(w.prefill_rows, 5);
    bl_sched_close(f.s);
}

/* Queue and priorities count, of a request that is not added yet as well. */
static void test_forecast_of_a_request_to_be_added(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.max_partial_prefills = 1;
    begin(&f, &o);
    add(&f, 0, 80, 0);
    add(&f, 1, 40, -1);
    bl_sched_req r = {.id = 9, .n_tokens = 50, .priority = 0};
    bl_sched_work w;
    /* 40 of 0; 40 of 0 and 40; a token of 0, 10, and the lower one's 40, which are charged in full. */
    assert_true(bl_sched_forecast(f.s, &r, 0, 0, &w));
    assert_int_equal(w.steps, 3);
    assert_int_equal(w.prefill_rows, 170);
    assert_int_equal(w.decode_rows, 1);
    r.priority = 1; /* before the others: 40; 10, 40 of 0, 40 of 1 */
    assert_true(bl_sched_forecast(f.s, &r, 0, 0, &w));
    assert_int_equal(w.steps, 2);
    assert_int_equal(w.prefill_rows, 130);
    assert_int_equal(w.decode_rows, 0);
    assert_int_equal(r.status, BL_SCHED_NONE);
    assert_int_equal(bl_sched_waiting(f.s), 2);
    bl_sched_close(f.s);
}

/* A slot that frees by the end of a request is waited for; one that does not, makes it unbounded. */
static void test_forecast_without_an_end_cannot_be_told(void **state) {
    (void)state;
    fixture f;
    bl_sched_options o = base_options;
    o.max_running = 1;
    begin(&f, &o);
    add_decoders(&f, 1);
    add(&f, 1, 10, 0);
    bl_sched_work w = {7, 7, 7};
    assert_false(bl_sched_forecast(f.s, &f.r[1], 0, 0, &w)); /* no end known */
    f.r[0].n_tokens_end = f.r[0].n_tokens + 3;
    f.r[0].paused = true;
    assert_false(bl_sched_forecast(f.s, &f.r[1], 0, 0, &w)); /* paused, and holds the slot */
    assert_int_equal(w.steps, 7);
    f.r[0].paused = false;
    assert_true(bl_sched_forecast(f.s, &f.r[1], 0, 0, &w));
    assert_int_equal(w.steps, 4);
    assert_int_equal(w.decode_rows, 3);
    assert_int_equal(w.prefill_rows, 10);
    f.r[0].cancelled = true; /* gone by the next step */
    assert_true(bl_sched_forecast(f.s, &f.r[1], 0, 0, &w));
    assert_int_equal(w.steps, 1);
    f.r[1].paused = true;
    assert_false(bl_sched_forecast(f.s, &f.r[1], 0, 0, &w));
    bl_sched_close(f.s);
}

static void test_forecast_is_bounded(void **state) {
    (void)state;
    fixture f;
    begin(&f, &base_options);
    add_decoders(&f, 1);
    add(&f, 1, BL_SCHED_FORECAST_STEPS, 0);
    bl_sched_work w;
    assert_true(bl_sched_forecast(f.s, &f.r[1], 0, 1, &w));
    assert_int_equal(w.steps, BL_SCHED_FORECAST_STEPS);
    f.r[1].n_tokens++;
    assert_false(bl_sched_forecast(f.s, &f.r[1], 0, 1, &w));
    bl_sched_close(f.s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_checks_its_options),
        cmocka_unit_test(test_duplicate_id_is_refused),
        cmocka_unit_test(test_request_without_tokens_is_refused),
        cmocka_unit_test(test_full_queue_is_busy),
        cmocka_unit_test(test_preempted_requests_do_not_fill_the_queue),
        cmocka_unit_test(test_remove_from_every_place),
        cmocka_unit_test(test_decode_ready_is_one_remaining),
        cmocka_unit_test(test_budget_and_chunk_bound_rows),
        cmocka_unit_test(test_paused_cancelled_and_finished_get_nothing),
        cmocka_unit_test(test_running_rows_go_in_admission_order),
        cmocka_unit_test(test_decoders_do_not_starve_behind_prompts),
        cmocka_unit_test(test_drafts_are_verified_with_the_decode_row),
        cmocka_unit_test(test_drafts_leave_others_their_rows),
        cmocka_unit_test(test_drafts_are_dropped_before_preempting),
        cmocka_unit_test(test_cap_bounds_prompt_rows_beside_decoders),
        cmocka_unit_test(test_cap_is_not_armed_without_decoders),
        cmocka_unit_test(test_row_skipped_for_the_cap_is_untouched),
        cmocka_unit_test(test_smallest_cap_does_not_deadlock),
        cmocka_unit_test(test_solo_stripe_is_armed_for_one_prompt),
        cmocka_unit_test(test_solo_stripe_is_disarmed_by_company),
        cmocka_unit_test(test_solo_stripe_needs_a_request_that_runs),
        cmocka_unit_test(test_stripe_shrinks_once),
        cmocka_unit_test(test_waiting_stripe_shrinks_once_and_gives_up),
        cmocka_unit_test(test_victim_is_lowest_priority_then_youngest),
        cmocka_unit_test(test_victim_is_refunded_and_requeued_in_front),
        cmocka_unit_test(test_refunded_rows_can_be_used),
        cmocka_unit_test(test_refunded_rows_are_under_the_cap_again),
        cmocka_unit_test(test_requester_that_is_the_victim_stops_the_step),
        cmocka_unit_test(test_no_admission_after_preemption),
        cmocka_unit_test(test_lone_preempted_request_runs_again),
        cmocka_unit_test(test_requeue_puts_in_front_of_its_class),
        cmocka_unit_test(test_rollback_of_a_step_that_did_not_run),
        cmocka_unit_test(test_running_is_bounded),
        cmocka_unit_test(test_waiting_is_fcfs_within_priority),
        cmocka_unit_test(test_paused_waiting_row_is_skipped),
        cmocka_unit_test(test_cancelled_waiting_row_stops_admission),
        cmocka_unit_test(test_waiting_row_without_memory_stops_admission),
        cmocka_unit_test(test_start_that_says_not_now_stops_admission),
        cmocka_unit_test(test_cached_positions_are_not_computed),
        cmocka_unit_test(test_one_prompt_part_way_at_a_time),
        cmocka_unit_test(test_short_prompts_pack_into_a_step),
        cmocka_unit_test(test_wrong_guess_of_cached_positions_is_corrected),
        cmocka_unit_test(test_forecast_counts_whole_steps),
        cmocka_unit_test(test_forecast_of_a_request_to_be_added),
        cmocka_unit_test(test_forecast_without_an_end_cannot_be_told),
        cmocka_unit_test(test_forecast_is_bounded),
    };
    return cmocka_run_group_tests_name("sched", tests, NULL, NULL);
}
