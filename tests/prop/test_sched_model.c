/* The scheduler under random operations -- requests come, end, are cancelled, paused and put back, drafts are
 * accepted in part, steps fail, memory runs out or fails at random -- against a plain model: two arrays for
 * the order of service, a naive plan for steps in which no memory failed, and the rules of docs/scheduling.md
 * checked after every plan. Then everything must drain in bounded steps. Seeds are printed on failure.
 */
#include "../unit/cmocka_all.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/rng.h"
#include "runtime/sched.h"

#define N_SLOTS 40u
#define N_SEEDS 300u
#define N_OPS   150u

typedef struct {
    bl_sched_req req; /* first */
    bool used;
    uint32_t end;    /* n_tokens at which it is finished */
    uint32_t cached; /* what start finds */
    uint32_t held;   /* positions of memory */
    bool admitted_now;
} slot;

typedef struct {
    uint64_t seed0, seed;
    uint32_t op;
    bl_sched_options o;
    bl_sched *s;
    bl_sched_plan plan;
    slot slots[N_SLOTS];
    uint64_t next_id, n_adds;
    uint32_t capacity, in_use;
    bool chaos; /* memory fails at random, too */
    /* the model */
    slot *run[BL_SCHED_MAX_RUNNING], *wait[N_SLOTS];
    uint32_t n_run, n_wait;
    /* of the plan under way */
    slot *gone[BL_SCHED_MAX_RUNNING];
    uint32_t n_gone;
    const bl_sched_req *asker;
    uint32_t asked;
    bool failed; /* some reservation or start */
    /* totals */
    uint64_t n_plans, n_exact, n_preempted, n_finished, n_solo, n_drafts, n_packed;
} world;

#define CHECK(w, cond)                                                                                       \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            fail_msg("seed %llu, operation %u: %s (line %d)", (unsigned long long)(w)->seed0, (w)->op,       \
                     #cond, __LINE__);                                                                       \
        }                                                                                                    \
    } while (0)

static uint32_t below(world *w, uint32_t n) {
    return (uint32_t)(bl_rng_next(&w->seed) % n);
}

static bool one_in(world *w, uint32_t n) {
    return below(w, n) == 0;
}

static uint32_t left(const slot *a) {
    return a->req.n_tokens > a->req.n_computed ? a->req.n_tokens - a->req.n_computed : 0;
}

static bool runnable(const slot *a) {
    return !a->req.paused && !a->req.cancelled;
}

/* ---- arrays ---- */

static uint32_t find(slot *const *list, uint32_t n, const slot *a) {
    uint32_t i = 0;
    while (i < n && list[i] != a) {
        i++;
    }
    return i;
}

static void take_out(slot **list, uint32_t *n, uint32_t i) {
    (*n)--;
    memmove(list + i, list + i + 1, (*n - i) * sizeof *list);
}

static void put_in(slot **list, uint32_t *n, uint32_t i, slot *a) {
    memmove(list + i + 1, list + i, (*n - i) * sizeof *list);
    list[i] = a;
    (*n)++;
}

/* In front of its class, or behind it. */
static void put_waiting(world *w, slot *a, bool front) {
    uint32_t i = 0;
    while (i < w->n_wait && (w->wait[i]->req.priority > a->req.priority ||
                             (!front && w->wait[i]->req.priority == a->req.priority))) {
        i++;
    }
    put_in(w->wait, &w->n_wait, i, a);
}

/* ---- memory ---- */

static void let_go(world *w, slot *a) {
    w->in_use -= a->held;
    a->held = 0;
}

static uint32_t mem_start(void *user, bl_sched_req *r) {
    world *w = user;
    slot *a = (slot *)r;
    CHECK(w, a->held == 0);
    CHECK(w, find(w->wait, w->n_wait, a) < w->n_wait && runnable(a));
    uint32_t cached = BL_MIN(a->cached, r->n_tokens - 1);
    if (cached > w->capacity - w->in_use || (w->chaos && one_in(w, 10))) {
        w->failed = true;
        return UINT32_MAX;
    }
    a->held = cached;
    w->in_use += cached;
    return cached;
}

static bool mem_reserve(void *user, bl_sched_req *r, uint32_t n) {
    world *w = user;
    slot *a = (slot *)r;
    CHECK(w, n > 0 && runnable(a));
    uint32_t want = r->n_computed + n, more = want > a->held ? want - a->held : 0;
    if (more > w->capacity - w->in_use || (w->chaos && one_in(w, 8))) {
        w->failed = true;
        w->asker = r;
        w->asked = n;
        return false;
    }
    a->held += more;
    w->in_use += more;
    return true;
}

/* A running request that is released is a victim. */
static void mem_release(void *user, bl_sched_req *r) {
    world *w = user;
    slot *a = (slot *)r;
    uint32_t at = find(w->run, w->n_run, a);
    if (at < w->n_run) {
        for (uint32_t i = 0; i < w->n_run; i++) {
            const bl_sched_req *x = &w->run[i]->req;
            CHECK(w, x->priority > r->priority || (x->priority == r->priority && x->arrival <= r->arrival));
        }
        /* What could be shrunk, was (invariant 4): the rows asked for are a decoder's one, or a plain chunk.
         */
        const slot *asker = (const slot *)w->asker;
        CHECK(w, left(asker) == 1 ? w->asked == 1 : w->asked <= w->o.chunk_tokens);
        CHECK(w, find(w->run, w->n_run, asker) < w->n_run); /* never for a waiting one */
        take_out(w->run, &w->n_run, at);
        put_waiting(w, a, true);
        w->gone[w->n_gone++] = a;
    } else {
        CHECK(w, find(w->wait, w->n_wait, a) < w->n_wait);
    }
    let_go(w, a);
}

/* ---- the naive plan ---- */

typedef struct {
    slot *a;
    uint32_t n, n_draft;
} expected;

typedef struct {
    expected rows[BL_SCHED_MAX_RUNNING];
    uint32_t n, budget, head, partial, chunk, n_run;
} naive;

static uint32_t naive_rows(const naive *p, uint32_t remaining) {
    uint32_t n = BL_MIN(remaining, p->budget);
    return remaining == 1 ? n : BL_MIN(n, BL_MIN(p->chunk, p->head));
}

static void naive_take(naive *p, slot *a, uint32_t n, uint32_t n_draft, bool prompt) {
    p->rows[p->n++] = (expected){a, n, n_draft};
    p->budget -= n;
    p->head -= prompt && p->head != UINT32_MAX ? n : 0;
}

static bool naive_admits(const world *w, const naive *p, uint32_t remaining) {
    uint32_t after = remaining - naive_rows(p, remaining);
    return after <= 1 || w->o.max_partial_prefills == 0 || p->partial < w->o.max_partial_prefills;
}

static void naive_decoders(const world *w, naive *p, uint32_t n_decoders) {
    bool prompts = false;
    for (uint32_t i = 0; i < w->n_run; i++) {
        prompts |= runnable(w->run[i]) && left(w->run[i]) > 1;
    }
    for (uint32_t i = 0; i < w->n_wait && w->n_run < w->o.max_running; i++) {
        prompts |= !w->wait[i]->req.paused;
    }
    for (uint32_t i = 0; i < w->n_run; i++) {
        slot *a = w->run[i];
        if (runnable(a) && left(a) == 1) {
            n_decoders--;
            uint32_t k = a->req.n_draft;
            k = 1 + k + n_decoders + prompts <= p->budget ? k : 0;
            naive_take(p, a, 1 + k, k, false);
        }
    }
}

/* The plan if no memory fails. */
static void naive_plan(const world *w, uint32_t cap, naive *p) {
    uint32_t n_decoders = 0;
    for (uint32_t i = 0; i < w->n_run; i++) {
        n_decoders += runnable(w->run[i]) && left(w->run[i]) == 1;
    }
    *p = (naive){.budget = w->o.step_tokens, .head = cap && n_decoders ? cap : UINT32_MAX};
    p->chunk = w->plan.solo ? BL_MAX(w->o.solo_stripe, w->o.chunk_tokens) : w->o.chunk_tokens;
    naive_decoders(w, p, n_decoders);
    for (uint32_t i = 0; i < w->n_run; i++) {
        slot *a = w->run[i];
        uint32_t n = runnable(a) && left(a) > 1 ? naive_rows(p, left(a)) : 0;
        if (n) {
            naive_take(p, a, n, 0, true);
        }
        p->partial += left(a) > 1 && left(a) - n > 1;
    }
    p->n_run = w->n_run;
    for (uint32_t i = 0; i < w->n_wait && p->budget && p->n_run < w->o.max_running; i++) {
        slot *a = w->wait[i];
        if (a->req.paused) {
            continue;
        }
        uint32_t guess = a->req.n_tokens - BL_MIN(a->req.n_cached_guess, a->req.n_tokens - 1);
        uint32_t rest = a->req.n_tokens - BL_MIN(a->cached, a->req.n_tokens - 1);
        if (a->req.cancelled || p->head == 0 || !naive_admits(w, p, guess) || !naive_admits(w, p, rest)) {
            break;
        }
        uint32_t n = naive_rows(p, rest);
        naive_take(p, a, n, 0, rest > 1);
        p->partial += rest - n > 1;
        p->n_run++;
    }
}

/* ---- plan and check ---- */

static bool want_solo(const world *w) {
    if (w->n_run + w->n_wait != 1 || w->o.solo_stripe == 0) {
        return false;
    }
    const slot *a = w->n_run ? w->run[0] : w->wait[0];
    return runnable(a) && left(a) > 1;
}

static const bl_sched_item *item_of(const world *w, const slot *a) {
    for (uint32_t i = 0; i < w->plan.n_items; i++) {
        if (w->plan.items[i].req == &a->req) {
            return &w->plan.items[i];
        }
    }
    return NULL;
}

/* The scheduler's lists are the model's. */
static void check_lists(world *w) {
    const bl_sched_req *r = bl_sched_first_running(w->s);
    for (uint32_t i = 0; i < w->n_run; i++, r = r->next) {
        CHECK(w, r == &w->run[i]->req && r->status == BL_SCHED_RUNNING);
    }
    CHECK(w, r == NULL && bl_sched_running(w->s) == w->n_run && w->n_run <= w->o.max_running);
    r = bl_sched_first_waiting(w->s);
    for (uint32_t i = 0; i < w->n_wait; i++, r = r->next) {
        CHECK(w, r == &w->wait[i]->req && r->n_computed == 0 && w->wait[i]->held == 0);
        CHECK(w, r->status == (r->n_preempted ? BL_SCHED_PREEMPTED : BL_SCHED_WAITING));
    }
    CHECK(w, r == NULL && bl_sched_waiting(w->s) == w->n_wait);
    uint32_t live = 0, held = 0;
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        live += w->slots[i].used;
        held += w->slots[i].held;
        CHECK(w, w->slots[i].used == (w->slots[i].req.status != BL_SCHED_NONE));
    }
    CHECK(w, live == w->n_run + w->n_wait && held == w->in_use);
}

/* Who was admitted: the first of the queue, paused ones passed over; the model's queue follows. */
static void check_admissions(world *w) {
    uint32_t i = 0;
    bool stopped = false;
    while (i < w->n_wait) {
        slot *a = w->wait[i];
        a->admitted_now = a->req.status == BL_SCHED_RUNNING;
        if (!a->admitted_now) {
            stopped |= !a->req.paused;
            i++;
            continue;
        }
        CHECK(w, !stopped && runnable(a) && w->n_gone == 0 && w->n_run < w->o.max_running);
        take_out(w->wait, &w->n_wait, i);
        w->run[w->n_run++] = a;
    }
}

static void check_rows(world *w, uint32_t cap, bool decoding) {
    uint32_t rows = 0, decode = 0, prompt = 0, solo_chunk = BL_MAX(w->o.solo_stripe, w->o.chunk_tokens);
    for (uint32_t i = 0; i < w->plan.n_items; i++) {
        const bl_sched_item *it = &w->plan.items[i];
        const slot *a = (const slot *)it->req;
        CHECK(w, find(w->run, w->n_run, a) < w->n_run && runnable(a) && it->n > 0);
        CHECK(w, a->held >= a->req.n_computed);
        CHECK(w, item_of(w, a) == it); /* once */
        if (it->decode) {
            CHECK(w, it->n == 1 + it->n_draft && a->req.n_computed == a->req.n_tokens + it->n_draft);
        } else {
            CHECK(w, it->n_draft == 0 && a->req.n_computed <= a->req.n_tokens);
            CHECK(w, it->n <= (w->plan.solo ? solo_chunk : w->o.chunk_tokens));
        }
        rows += it->n;
        *(it->decode ? &decode : &prompt) += it->n;
    }
    CHECK(w, rows <= w->o.step_tokens && rows == w->plan.n_rows);
    CHECK(w, decode == w->plan.n_decode_rows && prompt == w->plan.n_prefill_rows);
    CHECK(w, !decoding || cap == 0 || prompt <= cap);
}

/* Part way are not more prompts than allowed, unless they were before. */
static void check_partial(world *w, uint32_t before) {
    uint32_t n = 0;
    bool admitted = false;
    for (uint32_t i = 0; i < w->n_run; i++) {
        n += left(w->run[i]) > 1;
        admitted |= w->run[i]->admitted_now && left(w->run[i]) > 1;
        w->run[i]->admitted_now = false;
    }
    CHECK(w, w->o.max_partial_prefills == 0 || !admitted || n <= w->o.max_partial_prefills);
    CHECK(w, admitted || n <= before);
}

static void plan_and_check(world *w, uint32_t cap) {
    slot *ready[BL_SCHED_MAX_RUNNING];
    uint32_t n_ready = 0, partial = 0;
    for (uint32_t i = 0; i < w->n_run; i++) {
        if (runnable(w->run[i]) && left(w->run[i]) == 1) {
            ready[n_ready++] = w->run[i];
        }
        partial += left(w->run[i]) > 1;
    }
    bool solo = want_solo(w);
    w->n_gone = 0;
    w->failed = false;
    naive p;
    w->plan.solo = solo;
    naive_plan(w, cap, &p);
    bl_sched_plan_step(w->s, cap, &w->plan);
    w->n_plans++;
    w->n_solo += solo;
    w->n_preempted += w->n_gone;
    CHECK(w, w->plan.solo == solo && w->plan.n_preempted == w->n_gone);
    for (uint32_t i = 0; i < w->n_gone; i++) {
        CHECK(w, w->plan.preempted[i] == &w->gone[i]->req && !item_of(w, w->gone[i]));
    }
    check_admissions(w);
    check_lists(w);
    check_rows(w, cap, n_ready > 0);
    check_partial(w, partial);
    /* Whoever decodes has its row in every step that nobody was preempted in. */
    for (uint32_t i = 0; i < n_ready && w->n_gone == 0; i++) {
        CHECK(w, item_of(w, ready[i]) && item_of(w, ready[i])->decode);
    }
    if (!w->failed) {
        w->n_exact++;
        CHECK(w, w->plan.n_items == p.n);
        for (uint32_t i = 0; i < p.n; i++) {
            const bl_sched_item *it = &w->plan.items[i];
            CHECK(w,
                  it->req == &p.rows[i].a->req && it->n == p.rows[i].n && it->n_draft == p.rows[i].n_draft);
        }
        w->n_packed += p.n > 2 && w->plan.n_prefill_rows > 0;
    }
}

/* ---- the owner ---- */

static void drop(world *w, slot *a) {
    uint32_t i = find(w->run, w->n_run, a);
    if (i < w->n_run) {
        take_out(w->run, &w->n_run, i);
    } else {
        take_out(w->wait, &w->n_wait, find(w->wait, w->n_wait, a));
    }
    bl_sched_remove(w->s, &a->req);
    let_go(w, a);
    a->used = false;
}

static void run_step(world *w) {
    bool fails = one_in(w, 25);
    for (uint32_t i = 0; i < w->plan.n_items; i++) {
        const bl_sched_item *it = &w->plan.items[i];
        slot *a = (slot *)it->req;
        if (fails) {
            bl_sched_rollback(w->s, it->req, it->n);
        } else if (it->req->n_computed >= it->req->n_tokens) {
            uint32_t accepted = it->n_draft ? below(w, it->n_draft + 1) : 0;
            w->n_drafts += it->n_draft;
            it->req->n_tokens += BL_MIN(1 + accepted, a->end - it->req->n_tokens);
            bl_sched_rollback(w->s, it->req, it->req->n_computed - (it->req->n_tokens - 1));
            if (it->req->n_tokens == a->end) {
                w->n_finished++;
                drop(w, a);
            }
        }
    }
}

static void add(world *w) {
    slot *a = w->slots;
    while (a < w->slots + N_SLOTS && a->used) {
        a++;
    }
    if (a == w->slots + N_SLOTS) {
        return;
    }
    uint32_t prompt = one_in(w, 3) ? 1 + below(w, 4) : 1 + below(w, 200);
    *a = (slot){.end = prompt + 1 + below(w, 40), .cached = one_in(w, 3) ? below(w, prompt) : 0};
    a->req = (bl_sched_req){.id = w->next_id++, .priority = (int32_t)below(w, 3) - 1, .n_tokens = prompt};
    a->req.n_cached_guess = one_in(w, 2) ? a->cached : one_in(w, 2) ? below(w, 300) : 0;
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < w->n_wait; i++) {
        fresh += w->wait[i]->req.n_preempted == 0;
    }
    bl_code want = fresh < w->o.max_waiting ? BL_OK : BL_EBUSY;
    CHECK(w, bl_sched_add(w->s, &a->req, NULL) == want);
    if (want == BL_OK) {
        CHECK(w, a->req.arrival == w->n_adds++);
        a->used = true;
        put_waiting(w, a, false);
        bl_sched_req twin = {.id = a->req.id, .n_tokens = 1};
        CHECK(w, bl_sched_add(w->s, &twin, NULL) == BL_EINVAL);
    } else {
        CHECK(w, a->req.status == BL_SCHED_NONE);
    }
}

static void operate(world *w) {
    slot *a = &w->slots[below(w, N_SLOTS)];
    uint32_t what = below(w, 100);
    if (what < 25) {
        add(w);
    } else if (what < 27 && a->used) {
        drop(w, a);
    } else if (what < 30 && a->used) {
        a->req.cancelled = true; /* taken out some operations later */
    } else if (what < 36) {
        for (uint32_t i = 0; i < N_SLOTS; i++) {
            if (w->slots[i].used && w->slots[i].req.cancelled) {
                drop(w, &w->slots[i]);
            }
        }
    } else if (what < 42) {
        a->req.paused = !a->req.paused && one_in(w, 2);
    } else if (what < 50) {
        a->req.n_draft = below(w, 5);
    } else if (what < 52 && w->n_run) {
        a = w->run[below(w, w->n_run)];
        bl_sched_requeue(w->s, &a->req);
        take_out(w->run, &w->n_run, find(w->run, w->n_run, a));
        put_waiting(w, a, true);
        let_go(w, a);
    } else {
        plan_and_check(w, one_in(w, 2) ? 0 : 1 + below(w, 30));
        run_step(w);
    }
    check_lists(w);
}

/* Everybody gets through, though the memory may hold no more than one. */
static void drain(world *w) {
    w->chaos = false;
    uint64_t most = 100;
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        slot *a = &w->slots[i];
        a->req.paused = false;
        if (a->used && a->req.cancelled) {
            drop(w, a);
        } else if (a->used) {
            most += (uint64_t)a->end * (w->o.max_running + 1);
        }
    }
    uint32_t cap = below(w, 4), idle = 0;
    for (uint64_t steps = 0; w->n_run + w->n_wait > 0; steps++) {
        CHECK(w, steps < most);
        plan_and_check(w, cap);
        idle = w->plan.n_items ? 0 : idle + 1;
        CHECK(w, idle < 2); /* an empty plan only where the one that ran preempted itself */
        run_step(w);
    }
    CHECK(w, w->in_use == 0);
}

static void open_world(world *w, uint64_t seed) {
    *w = (world){.seed0 = seed, .seed = seed};
    w->o.max_running = 1 + below(w, 8);
    w->o.max_waiting = 1 + below(w, 30);
    w->o.step_tokens = w->o.max_running + below(w, 100);
    w->o.chunk_tokens = 1 + below(w, w->o.step_tokens);
    w->o.solo_stripe = one_in(w, 2) ? below(w, w->o.step_tokens + 1) : 0;
    w->o.max_partial_prefills = below(w, 3);
    /* The longest request takes 203 + 40 positions, and 4 for drafts. */
    w->capacity = one_in(w, 3) ? 100000 : 250 + below(w, 700);
    w->chaos = one_in(w, 2);
    bl_sched_memory m = {w, mem_start, mem_reserve, mem_release};
    assert_int_equal(bl_sched_open(&w->o, &m, &w->s, NULL), BL_OK);
}

static void test_random_operations(void **state) {
    (void)state;
    static world w;
    uint64_t plans = 0, exact = 0, preempted = 0, finished = 0, solo = 0, drafts = 0, packed = 0;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        open_world(&w, seed);
        for (w.op = 0; w.op < N_OPS; w.op++) {
            operate(&w);
        }
        drain(&w);
        bl_sched_close(w.s);
        plans += w.n_plans;
        exact += w.n_exact;
        preempted += w.n_preempted;
        finished += w.n_finished;
        solo += w.n_solo;
        drafts += w.n_drafts;
        packed += w.n_packed;
    }
    print_message(
        "%llu plans (%llu exact, %llu solo, %llu packed), %llu preemptions, %llu drafts, %llu finished\n",
        (unsigned long long)plans, (unsigned long long)exact, (unsigned long long)solo,
        (unsigned long long)packed, (unsigned long long)preempted, (unsigned long long)drafts,
        (unsigned long long)finished);
    /* The sequences reach what they are to test. */
    assert_true(plans > 10000 && exact > 5000 && preempted > 1000 && finished > 3000);
    assert_true(solo > 200 && drafts > 1000 && packed > 1000);
}

/* With memory for all, and ends that are known, the forecast is what happens. */
static void test_forecast_is_what_happens(void **state) {
    (void)state;
    static world w;
    uint32_t n_told = 0;
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        open_world(&w, seed ^ 0x5eed00000000u);
        w.capacity = 100000;
        w.chaos = false;
        uint32_t cap = below(&w, 20);
        slot *target = NULL;
        uint32_t warm_up = below(&w, 30);
        for (uint32_t i = 0; i < 2 + below(&w, 20); i++) {
            add(&w);
        }
        for (uint32_t i = 0; i < N_SLOTS; i++) {
            w.slots[i].req.n_cached_guess = w.slots[i].cached;
            w.slots[i].req.n_tokens_end = w.slots[i].end;
        }
        for (uint32_t i = 0; i < warm_up; i++) {
            plan_and_check(&w, cap);
            run_step(&w);
        }
        for (uint32_t i = 0; i < N_SLOTS; i++) {
            slot *a = &w.slots[i];
            target = a->used && one_in(&w, 3) ? a : target;
        }
        if (!target) {
            bl_sched_close(w.s);
            continue;
        }
        bl_sched_work told = {0}, done = {0};
        CHECK(&w, bl_sched_forecast(w.s, &target->req, target->cached, cap, &told));
        uint32_t n_tokens = target->req.n_tokens;
        while (target->used && target->req.n_tokens == n_tokens) {
            plan_and_check(&w, cap);
            done.steps++;
            done.prefill_rows += w.plan.n_prefill_rows;
            done.decode_rows += w.plan.n_decode_rows;
            for (uint32_t i = 0; i < w.plan.n_items; i++) {
                slot *a = (slot *)w.plan.items[i].req;
                if (a->req.n_computed == a->req.n_tokens && ++a->req.n_tokens == a->end) {
                    drop(&w, a);
                }
            }
        }
        CHECK(&w, memcmp(&told, &done, sizeof told) == 0);
        n_told++;
        bl_sched_close(w.s);
    }
    assert_true(n_told > 200);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_forecast_is_what_happens),
    };
    return cmocka_run_group_tests_name("sched_model", tests, NULL, NULL);
}
