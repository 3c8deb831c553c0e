/* One step is planned in three passes: running rows that decode, running rows with prompt left, waiting
 * requests. Decode rows come first because the budget is handed out in order: with prompts in between, a few
 * requests that were admitted earlier and still prefill would take the whole budget of step after step, and
 * those behind them would wait for their next token as long as these prompts last. One row each is what
 * step_tokens >= max_running always leaves.
 */
#include "runtime/sched.h"

#include <inttypes.h>

#include "base/base.h"

#define NO_LIMIT UINT32_MAX

typedef struct {
    bl_sched_req *head, *tail;
    uint32_t n;
} req_list;

struct bl_sched {
    bl_sched_options o;
    bl_sched_memory m;
    req_list running; /* in the order of admission */
    req_list waiting; /* by priority, in a class by arrival but for those put in front */
    uint32_t n_fresh; /* waiting ones that were never preempted */
    uint64_t n_arrivals;
};

/* A step in the making. */
typedef struct {
    bl_sched *s;
    bl_sched_plan *plan;
    uint32_t budget;   /* rows left */
    uint32_t headroom; /* prompt rows left under the cap */
    uint32_t chunk;    /* most prompt rows of one request: the plain chunk or the stripe */
    bool stopped;      /* a request preempted itself: memory is short, leave it to those that have it */
} planning;

/* ---- lists ---- */

static void insert_before(req_list *l, bl_sched_req *at, bl_sched_req *r) {
    r->next = at;
    r->prev = at ? at->prev : l->tail;
    *(r->prev ? &r->prev->next : &l->head) = r;
    *(at ? &at->prev : &l->tail) = r;
    l->n++;
}

static void unlink_req(req_list *l, bl_sched_req *r) {
    *(r->prev ? &r->prev->next : &l->head) = r->next;
    *(r->next ? &r->next->prev : &l->tail) = r->prev;
    r->prev = r->next = NULL;
    l->n--;
}

static bl_sched_req *find_id(const req_list *l, uint64_t id) {
    bl_sched_req *r = l->head;
    while (r && r->id != id) {
        r = r->next;
    }
    return r;
}

/* ---- life ---- */

bl_code bl_sched_open(const bl_sched_options *o, const bl_sched_memory *m, bl_sched **ret, bl_err *err) {
    if (o->max_running == 0 || o->max_running > BL_SCHED_MAX_RUNNING) {
        BL_FAIL(err, BL_EINVAL, "scheduler: max_running is %" PRIu32 ", allowed are 1 to %u", o->max_running,
                BL_SCHED_MAX_RUNNING);
    }
    if (o->max_waiting == 0 || o->max_waiting > BL_SCHED_MAX_WAITING) {
        BL_FAIL(err, BL_EINVAL, "scheduler: max_waiting is %" PRIu32 ", allowed are 1 to %u", o->max_waiting,
                BL_SCHED_MAX_WAITING);
    }
    if (o->step_tokens < o->max_running) {
        BL_FAIL(err, BL_EINVAL, "scheduler: step_tokens is %" PRIu32 ", at least max_running (%" PRIu32 ")",
                o->step_tokens, o->max_running);
    }
    if (o->chunk_tokens == 0 || o->chunk_tokens > o->step_tokens) {
        BL_FAIL(err, BL_EINVAL, "scheduler: chunk_tokens is %" PRIu32 ", allowed are 1 to %" PRIu32,
                o->chunk_tokens, o->step_tokens);
    }
    if (o->solo_stripe > o->step_tokens) {
        BL_FAIL(err, BL_EINVAL, "scheduler: solo_stripe is %" PRIu32 ", at most step_tokens (%" PRIu32 ")",
                o->solo_stripe, o->step_tokens);
    }
    bl_sched *s = bl_alloc(sizeof *s);
    if (!s) {
        BL_FAIL(err, BL_ENOMEM, "scheduler: no memory for %zu bytes", sizeof *s);
    }
    s->o = *o;
    s->m = *m;
    *ret = s;
    return BL_OK;
}

void bl_sched_close(bl_sched *s) {
    bl_free(s);
}

bl_code bl_sched_add(bl_sched *s, bl_sched_req *r, bl_err *err) {
    if (find_id(&s->running, r->id) || find_id(&s->waiting, r->id)) {
        BL_FAIL(err, BL_EINVAL, "scheduler: request %" PRIu64 " is live already", r->id);
    }
    if (r->n_tokens == 0) {
        BL_FAIL(err, BL_EINVAL, "scheduler: request %" PRIu64 " has no tokens, at least 1", r->id);
    }
    if (s->n_fresh >= s->o.max_waiting) {
        BL_FAIL(err, BL_EBUSY, "scheduler: %" PRIu32 " requests are waiting, allowed are %" PRIu32,
                s->n_fresh, s->o.max_waiting);
    }
    r->status = BL_SCHED_WAITING;
    r->n_computed = 0;
    r->n_preempted = 0;
    r->arrival = s->n_arrivals++;
    bl_sched_req *last = s->waiting.tail;
    while (last && last->priority < r->priority) {
        last = last->prev;
    }
    insert_before(&s->waiting, last ? last->next : s->waiting.head, r);
    s->n_fresh++;
    return BL_OK;
}

void bl_sched_remove(bl_sched *s, bl_sched_req *r) {
    if (r->status == BL_SCHED_NONE) {
        return;
    }
    unlink_req(r->status == BL_SCHED_RUNNING ? &s->running : &s->waiting, r);
    s->n_fresh -= r->status == BL_SCHED_WAITING;
    r->status = BL_SCHED_NONE;
}

void bl_sched_requeue(bl_sched *s, bl_sched_req *r) {
    BL_ASSERT(r->status == BL_SCHED_RUNNING);
    unlink_req(&s->running, r);
    bl_sched_req *at = s->waiting.head;
    while (at && at->priority > r->priority) {
        at = at->next;
    }
    insert_before(&s->waiting, at, r);
    r->status = BL_SCHED_PREEMPTED;
    r->n_computed = 0;
    r->n_preempted++;
}

void bl_sched_rollback(bl_sched *s, bl_sched_req *r, uint32_t n) {
    (void)s;
    /* Nothing is left to take back of a request that was preempted since. */
    r->n_computed -= BL_MIN(n, r->n_computed);
}

uint32_t bl_sched_running(const bl_sched *s) {
    return s->running.n;
}

uint32_t bl_sched_waiting(const bl_sched *s) {
    return s->waiting.n;
}

bl_sched_req *bl_sched_first_running(const bl_sched *s) {
    return s->running.head;
}

bl_sched_req *bl_sched_first_waiting(const bl_sched *s) {
    return s->waiting.head;
}

/* ---- rules that planning and forecast share ---- */

static bool can_run(const bl_sched_req *r) {
    return !r->paused && !r->cancelled;
}

static uint32_t remaining(const bl_sched_req *r) {
    return r->n_tokens > r->n_computed ? r->n_tokens - r->n_computed : 0;
}

/* A row that is decode-ready after the step needs no more of a step than a decoder does. */
static bool is_partial(uint32_t left) {
    return left > 1;
}

/* Rows of a request with `left` to go, as prompt unless it is decode-ready. */
static uint32_t rows_of(uint32_t left, uint32_t chunk, uint32_t budget, uint32_t headroom) {
    if (left == 1) {
        return BL_MIN(1u, budget);
    }
    return BL_MIN(BL_MIN(left, chunk), BL_MIN(budget, headroom));
}

static uint32_t chunk_rows(const bl_sched *s, bool solo) {
    return solo ? BL_MAX(s->o.chunk_tokens, s->o.solo_stripe) : s->o.chunk_tokens;
}

/* May one more prompt be part way? */
static bool partial_fits(const bl_sched *s, uint32_t n_partial) {
    return s->o.max_partial_prefills == 0 || n_partial < s->o.max_partial_prefills;
}

/* ---- planning ---- */

static bool ranks_below(const bl_sched_req *a, const bl_sched_req *b) {
    return a->priority < b->priority || (a->priority == b->priority && a->arrival > b->arrival);
}

static bool reserve(planning *p, bl_sched_req *r, uint32_t n) {
    return p->s->m.reserve(p->s->m.user, r, n);
}

static void take(planning *p, bl_sched_req *r, uint32_t n, uint32_t n_draft, bool decode) {
    bl_sched_plan *plan = p->plan;
    plan->items[plan->n_items++] = (bl_sched_item){r, n, n_draft, decode};
    plan->n_rows += n;
    *(decode ? &plan->n_decode_rows : &plan->n_prefill_rows) += n;
    p->budget -= n;
    if (!decode && p->headroom != NO_LIMIT) {
        p->headroom -= n;
    }
    r->n_computed += n;
}

/* Gives back what the plan holds for r. */
static void refund(planning *p, const bl_sched_req *r) {
    bl_sched_plan *plan = p->plan;
    uint32_t i = 0;
    while (i < plan->n_items && plan->items[i].req != r) {
        i++;
    }
    if (i == plan->n_items) {
        return;
    }
    bl_sched_item it = plan->items[i];
    plan->n_rows -= it.n;
    *(it.decode ? &plan->n_decode_rows : &plan->n_prefill_rows) -= it.n;
    p->budget += it.n;
    if (!it.decode && p->headroom != NO_LIMIT) {
        p->headroom += it.n;
    }
    for (plan->n_items--; i < plan->n_items; i++) {
        plan->items[i] = plan->items[i + 1];
    }
}

/* Paused and cancelled requests are victims like others: what they hold is memory too. */
static bl_sched_req *find_victim(const bl_sched *s) {
    bl_sched_req *v = s->running.head;
    for (bl_sched_req *r = v; r; r = r->next) {
        v = ranks_below(r, v) ? r : v;
    }
    return v;
}

/* Room for n rows of running request r at the cost of those that rank below it. False: r itself had to go. */
static bool make_room(planning *p, bl_sched_req *r, uint32_t n) {
    while (!reserve(p, r, n)) {
        bl_sched_req *v = find_victim(p->s);
        refund(p, v);
        p->s->m.release(p->s->m.user, v);
        bl_sched_requeue(p->s, v);
        p->plan->preempted[p->plan->n_preempted++] = v;
        if (v == r) {
            p->stopped = true;
            return false;
        }
    }
    return true;
}

static uint32_t count_decoders(const bl_sched_req *from) {
    uint32_t n = 0;
    for (const bl_sched_req *r = from; r; r = r->next) {
        n += can_run(r) && remaining(r) == 1;
    }
    return n;
}

/* Is there a prompt, running or to be admitted, that wants rows of this step? */
static bool prompt_work(const bl_sched *s) {
    for (const bl_sched_req *r = s->running.head; r; r = r->next) {
        if (can_run(r) && remaining(r) > 1) {
            return true;
        }
    }
    const bl_sched_req *w = s->running.n < s->o.max_running ? s->waiting.head : NULL;
    while (w && w->paused) {
        w = w->next;
    }
    return w != NULL;
}

static void plan_decode_rows(planning *p) {
    uint32_t for_prompts = prompt_work(p->s) ? 1 : 0;
    for (bl_sched_req *r = p->s->running.head; r && !p->stopped; r = r->next) {
        if (!can_run(r) || remaining(r) != 1 || p->budget == 0) {
            continue;
        }
        /* Drafts take what nobody else has a claim to: a row for each decoder behind, one for prompts. */
        uint32_t claimed = r->n_draft ? 1 + count_decoders(r->next) + for_prompts : 0;
        uint32_t n_draft =
            r->n_draft && p->budget >= claimed && r->n_draft <= p->budget - claimed ? r->n_draft : 0;
        if (n_draft && reserve(p, r, 1 + n_draft)) {
            take(p, r, 1 + n_draft, n_draft, true);
        } else if (make_room(p, r, 1)) {
            take(p, r, 1, 0, true);
        }
        if (p->stopped) {
            return; /* r is in the other list now */
        }
    }
}

static void plan_prompt_rows(planning *p) {
    for (bl_sched_req *r = p->s->running.head; r && !p->stopped; r = r->next) {
        uint32_t left = remaining(r);
        uint32_t n = can_run(r) && left > 1 ? rows_of(left, p->chunk, p->budget, p->headroom) : 0;
        if (n == 0) {
            continue;
        }
        if (n <= p->s->o.chunk_tokens || !reserve(p, r, n)) {
            n = BL_MIN(n, p->s->o.chunk_tokens);
            if (!make_room(p, r, n)) {
                return;
            }
        }
        take(p, r, n, 0, false);
    }
}

/* Would r, with `left` to go, be one prompt too many part way after this step? */
static bool too_many_partial(const planning *p, uint32_t n_partial, uint32_t left) {
    uint32_t n = rows_of(left, p->chunk, p->budget, p->headroom);
    return is_partial(left - n) && !partial_fits(p->s, n_partial);
}

/* False: r cannot be admitted now, and in the order of service nobody behind it may be. */
static bool admit(planning *p, bl_sched_req *r, uint32_t *n_partial) {
    bl_sched *s = p->s;
    if (r->cancelled || p->headroom == 0 ||
        too_many_partial(p, *n_partial, r->n_tokens - BL_MIN(r->n_cached_guess, r->n_tokens - 1))) {
        return false;
    }
    uint32_t n_cached = s->m.start(s->m.user, r);
    if (n_cached == UINT32_MAX) {
        return false;
    }
    BL_ASSERT(n_cached < r->n_tokens);
    uint32_t left = r->n_tokens - n_cached;
    uint32_t n = rows_of(left, p->chunk, p->budget, p->headroom);
    r->n_cached_guess = n_cached;
    r->n_computed = n_cached;
    bool ok = !too_many_partial(p, *n_partial, left);
    if (ok && !reserve(p, r, n)) {
        ok = n > s->o.chunk_tokens && reserve(p, r, s->o.chunk_tokens);
        n = s->o.chunk_tokens;
    }
    if (!ok) {
        r->n_computed = 0;
        s->m.release(s->m.user, r);
        return false;
    }
    unlink_req(&s->waiting, r);
    s->n_fresh -= r->status == BL_SCHED_WAITING;
    insert_before(&s->running, NULL, r);
    r->status = BL_SCHED_RUNNING;
    take(p, r, n, 0, left == 1);
    *n_partial += is_partial(left - n);
    return true;
}

static void plan_waiting(planning *p) {
    bl_sched *s = p->s;
    uint32_t n_partial = 0;
    for (const bl_sched_req *r = s->running.head; r; r = r->next) {
        n_partial += is_partial(remaining(r));
    }
    bl_sched_req *r = s->waiting.head;
    while (r && p->budget > 0 && s->running.n < s->o.max_running) {
        bl_sched_req *next = r->next;
        if (!r->paused && !admit(p, r, &n_partial)) {
            return;
        }
        r = next;
    }
}

static bool is_solo(const bl_sched *s) {
    if (s->o.solo_stripe == 0 || s->running.n + s->waiting.n != 1) {
        return false;
    }
    const bl_sched_req *r = s->running.n ? s->running.head : s->waiting.head;
    return can_run(r) && remaining(r) > 1;
}

void bl_sched_plan_step(bl_sched *s, uint32_t prefill_cap, bl_sched_plan *ret) {
    *ret = (bl_sched_plan){.solo = is_solo(s)};
    planning p = {.s = s,
                  .plan = ret,
                  .budget = s->o.step_tokens,
                  .headroom = prefill_cap && count_decoders(s->running.head) ? prefill_cap : NO_LIMIT,
                  .chunk = chunk_rows(s, ret->solo)};
    plan_decode_rows(&p);
    plan_prompt_rows(&p);
    if (!p.stopped && ret->n_preempted == 0) {
        plan_waiting(&p);
    }
}

/* ---- forecast ---- */

typedef struct {
    uint32_t left;       /* rows to go until its next token */
    uint32_t tokens;     /* that it may still be given; 0: without end */
    bool paused, target; /* target: its next token is what the forecast is about */
} sim_row;

typedef struct {
    const bl_sched *s;
    const bl_sched_req *r;
    uint32_t n_cached; /* of r */
    sim_row rows[BL_SCHED_MAX_RUNNING];
    uint32_t n_rows;
    const bl_sched_req *next; /* in the queue */
    bool r_due;               /* r is not in the queue, but will be behind its class */
    uint32_t n_live;
} simulation;

static uint32_t tokens_to_come(const bl_sched_req *r, uint32_t n_tokens) {
    if (r->n_tokens_end == 0) {
        return 0;
    }
    return r->n_tokens_end > n_tokens ? r->n_tokens_end - n_tokens : 1;
}

static void sim_begin(simulation *f) {
    const bl_sched *s = f->s;
    f->next = s->waiting.head;
    f->r_due = f->r->status == BL_SCHED_NONE;
    f->n_live = f->r_due ? 1 : 0;
    for (const bl_sched_req *w = s->waiting.head; w; w = w->next) {
        f->n_live += !w->cancelled;
    }
    /* Cancelled requests are gone before the next step. */
    for (const bl_sched_req *r = s->running.head; r; r = r->next) {
        if (!r->cancelled) {
            uint32_t left = BL_MAX(1u, remaining(r));
            f->rows[f->n_rows++] = (sim_row){left, tokens_to_come(r, r->n_tokens), r->paused, r == f->r};
            f->n_live++;
        }
    }
}

/* The request to be admitted next, or NULL. */
static const bl_sched_req *sim_first_waiting(simulation *f) {
    while (f->next && !can_run(f->next)) {
        f->next = f->next->next;
    }
    if (f->r_due && (!f->next || f->next->priority < f->r->priority)) {
        return f->r;
    }
    return f->next;
}

static void sim_admit(simulation *f, uint32_t chunk, uint32_t *budget, uint32_t *headroom,
                      bl_sched_work *step) {
    uint32_t n_partial = 0;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        n_partial += is_partial(f->rows[i].left);
    }
    const bl_sched_req *w;
    while (*budget > 0 && *headroom > 0 && f->n_rows < f->s->o.max_running && (w = sim_first_waiting(f))) {
        uint32_t cached = w == f->r ? f->n_cached : w->n_cached_guess;
        uint32_t left = w->n_tokens - BL_MIN(cached, w->n_tokens - 1);
        uint32_t n = rows_of(left, chunk, *budget, *headroom);
        if (is_partial(left - n) && !partial_fits(f->s, n_partial)) {
            return;
        }
        n_partial += is_partial(left - n);
        f->rows[f->n_rows++] = (sim_row){left - n, tokens_to_come(w, w->n_tokens), false, w == f->r};
        *budget -= n;
        if (left > 1 && *headroom != NO_LIMIT) {
            *headroom -= n;
        }
        *(left == 1 ? &step->decode_rows : &step->prefill_rows) += n;
        if (f->r_due && w == f->r) {
            f->r_due = false;
        } else {
            f->next = w->next;
        }
    }
}

/* Rows of one step, in the passes of bl_sched_plan_step. Afterwards left == 0 where a token comes. */
static bl_sched_work sim_plan(simulation *f, uint32_t prefill_cap) {
    bl_sched_work step = {0, 0, 1};
    uint32_t budget = f->s->o.step_tokens, headroom = NO_LIMIT;
    bool solo = f->n_live == 1 && f->s->o.solo_stripe > 0;
    uint32_t chunk = chunk_rows(f->s, solo);
    for (uint32_t i = 0; i < f->n_rows; i++) {
        sim_row *row = &f->rows[i];
        if (!row->paused && row->left == 1) {
            row->left = 0;
            budget--;
            step.decode_rows++;
        }
    }
    if (prefill_cap && step.decode_rows) {
        headroom = prefill_cap;
    }
    for (uint32_t i = 0; i < f->n_rows; i++) {
        sim_row *row = &f->rows[i];
        if (!row->paused && row->left > 1) {
            uint32_t n = rows_of(row->left, chunk, budget, headroom);
            row->left -= n;
            budget -= n;
            headroom -= headroom != NO_LIMIT ? n : 0;
            step.prefill_rows += n;
        }
    }
    sim_admit(f, chunk, &budget, &headroom, &step);
    return step;
}

/* Hands out the step's tokens. True: the target has its own. */
static bool sim_finish(simulation *f) {
    uint32_t kept = 0;
    bool reached = false;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        sim_row row = f->rows[i];
        if (row.left == 0) {
            reached |= row.target;
            row.left = 1;
            if (row.tokens == 1) {
                f->n_live--;
                continue;
            }
            row.tokens -= row.tokens != 0;
        }
        f->rows[kept++] = row;
    }
    f->n_rows = kept;
    return reached;
}

bool bl_sched_forecast(const bl_sched *s, const bl_sched_req *r, uint32_t n_cached, uint32_t prefill_cap,
                       bl_sched_work *ret) {
    if (!can_run(r) || r->n_tokens == 0) {
        return false;
    }
    simulation f = {.s = s, .r = r, .n_cached = n_cached};
    bl_sched_work total = {0};
    sim_begin(&f);
    while (total.steps < BL_SCHED_FORECAST_STEPS) {
        bl_sched_work step = sim_plan(&f, prefill_cap);
        if (step.prefill_rows + step.decode_rows == 0) {
            return false;
        }
        total.prefill_rows += step.prefill_rows;
        total.decode_rows += step.decode_rows;
        total.steps++;
        if (sim_finish(&f)) {
            *ret = total;
            return true;
        }
    }
    return false;
}
