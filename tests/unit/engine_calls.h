/* Calls of bl.h for tests that want them to work: a failure ends the test with the engine's message. Include
 * in one file per test program, behind cmocka_all.h.
 */
#ifndef BL_TESTS_UNIT_ENGINE_CALLS_H
#define BL_TESTS_UNIT_ENGINE_CALLS_H

#include "bl/bl.h"

static inline bl_engine *open_engine(const bl_engine_options *o) {
    bl_engine *e = NULL;
    bl_err err = {0};
    if (bl_engine_open(o, &e, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    return e;
}

static inline bl_session *submit(bl_engine *e, const bl_request *r) {
    bl_session *s = NULL;
    bl_err err = {0};
    if (bl_session_submit(e, r, &s, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    return s;
}

/* The next event, which comes within a minute. */
static inline bl_event next_event(bl_session *s) {
    bl_event ev;
    bool got = false;
    assert_int_equal(bl_session_next(s, 60000, &ev, &got, NULL), BL_OK);
    assert_true(got);
    return ev;
}

#endif
