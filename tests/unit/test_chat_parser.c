/* chat/parser: what each dialect's answers say, odd and cut-off markup included; the same for every way of
 * cutting the stream, and nothing lost. */
#include "cmocka_all.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/rng.h"
#include "chat/parser.h"

#define N BL_DIALECT_PLAIN
#define J BL_DIALECT_QWEN_JSON
#define X BL_DIALECT_QWEN_XML
#define G BL_DIALECT_GEMMA4
#define H BL_DIALECT_HARMONY

/* "C[...]" content, "R[...]" reasoning, "T[name]{...}" a call; texts of one kind joined. */
typedef struct {
    bl_buf shown, all;
    bl_parsed_kind last;
    bool open;
    uint32_t n_calls;
} record;

static void record_init(record *r) {
    bl_buf_init(&r->shown, 64 << 20);
    bl_buf_init(&r->all, 64 << 20);
    r->last = BL_PARSED_MARKUP;
    r->open = false;
    r->n_calls = 0;
}

static void record_done(record *r) {
    bl_buf_done(&r->shown);
    bl_buf_done(&r->all);
}

static void add(bl_buf *b, const char *s, size_t n) {
    assert_int_equal(bl_buf_append(b, s, n, NULL), BL_OK);
}

static void close_text(record *r) {
    if (r->open) {
        add(&r->shown, "]", 1);
    }
    r->open = false;
}

static bl_code note(void *user, const bl_parsed *ev, bl_err *err) {
    record *r = user;
    (void)err;
    switch (ev->kind) {
    case BL_PARSED_MARKUP:
        assert_true(ev->n > 0);
        add(&r->all, ev->text, ev->n);
        return BL_OK;
    case BL_PARSED_CONTENT:
    case BL_PARSED_REASONING:
        assert_true(ev->n > 0);
        if (!r->open || r->last != ev->kind) {
            close_text(r);
            add(&r->shown, ev->kind == BL_PARSED_CONTENT ? "C[" : "R[", 2);
            r->open = true;
        }
        add(&r->shown, ev->text, ev->n);
        add(&r->all, ev->text, ev->n);
        break;
    case BL_PARSED_CALL_BEGIN:
        assert_int_equal(ev->call, r->n_calls);
        close_text(r);
        add(&r->shown, "T[", 2);
        add(&r->shown, ev->text, ev->n);
        add(&r->shown, "]", 1);
        break;
    case BL_PARSED_CALL_ARGUMENTS: {
        json_t *v = json_loadb(ev->text, ev->n, JSON_DECODE_INT_AS_REAL, NULL);
        assert_int_equal(r->last, BL_PARSED_CALL_BEGIN);
        if (!json_is_object(v)) {
            fail_msg("arguments: %.*s", (int)ev->n, ev->text);
        }
        json_decref(v);
        add(&r->shown, ev->text, ev->n);
        break;
    }
    case BL_PARSED_CALL_END:
        assert_int_equal(r->last, BL_PARSED_CALL_ARGUMENTS);
        r->n_calls++;
        break;
    }
    r->last = ev->kind;
    return BL_OK;
}

static bl_parser *open_parser(bl_dialect d, bl_parser_start start, bool calls, const json_t *tools,
                              uint32_t control, record *r) {
    bl_parser_options o = {.dialect = d, .start = start, .calls = calls, .tools = tools, .control = control};
    bl_parser *p = NULL;
    o.sink = note;
    o.user = r;
    assert_int_equal(bl_parser_new(&o, &p, NULL), BL_OK);
    return p;
}

typedef struct {
    bl_dialect d;
    bl_parser_start start;
    bool calls;
    const char *text, *want;
} row;

static json_t *tools;

/* Feeds `n` bytes in pieces: piece lengths from `cuts`, which repeats; 0 ends the list. */
static void parse(const row *t, uint32_t control, const char *text, size_t n, const size_t *cuts, record *r) {
    record_init(r);
    bl_parser *p = open_parser(t->d, t->start, t->calls, tools, control, r);
    for (size_t i = 0, k = 0; i < n; k++) {
        size_t len = BL_MIN(cuts[k], n - i);
        len = len == 0 ? n - i : len;
        assert_int_equal(bl_parser_feed(p, text + i, len, NULL), BL_OK);
        i += len;
    }
    assert_int_equal(bl_parser_finish(p, NULL), BL_OK);
    assert_int_equal(bl_parser_n_calls(p), r->n_calls);
    bl_parser_free(p);
    close_text(r);
}

static void strip(bl_buf *b) {
    size_t n = 0;
    for (size_t i = 0; i < b->len; i++) {
        b->data[n] = b->data[i];
        n += (unsigned char)b->data[i] != BL_PARSER_CONTROL;
    }
    b->len = n;
    if (b->data) {
        b->data[n] = '\0';
    }
}

static void check(const row *t, uint32_t control, const char *text, size_t n, const size_t *cuts,
                  const char *want) {
    record r;
    parse(t, control, text, n, cuts, &r);
    if (want && strcmp(bl_buf_str(&r.shown), want) != 0) {
        fail_msg("%s of %s (control %x, cut at %zu, %zu)\n got  %s\n want %s", bl_dialect_name(t->d), text,
                 control, cuts[0], cuts[1], bl_buf_str(&r.shown), want);
    }
    bl_buf plain;
    bl_buf_init(&plain, 64 << 20);
    add(&plain, text, n);
    strip(&plain);
    strip(&r.all);
    if (strcmp(bl_buf_str(&plain), bl_buf_str(&r.all)) != 0) {
        fail_msg("%s of %s: lost something: %s", bl_dialect_name(t->d), text, bl_buf_str(&r.all));
    }
    bl_buf_done(&plain);
    record_done(&r);
}

/* Every single cut, byte by byte, and random ones. */
static void check_cuts(const row *t, uint32_t control, const char *text, const char *want) {
    const size_t n = strlen(text), one[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    uint64_t rng = 42;
    for (size_t i = 0; i <= n; i++) {
        const size_t cuts[] = {i, 0};
        check(t, control, text, n, cuts, want);
    }
    size_t *all = bl_alloc_array(n + 2, sizeof *all);
    for (size_t i = 0; i < n; i++) {
        all[i] = one[0];
    }
    check(t, control, text, n, all, want);
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < n; i++) {
            all[i] = 1 + bl_rng_next(&rng) % (round % 2 ? 4 : 20);
        }
        check(t, control, text, n, all, want);
    }
    bl_free(all);
}

/* The text with each marker as the control token that a tokenizer may have. */
static char *as_control(bl_dialect d, const char *text) {
    size_t n = 0;
    const char *const *markers = bl_dialect_markers(d, &n);
    bl_buf b;
    bl_buf_init(&b, 1 << 20);
    for (size_t i = 0; text[i];) {
        size_t m = 0;
        while (m < n && strncmp(text + i, markers[m], strlen(markers[m])) != 0) {
            m++;
        }
        if (m < n) {
            add(&b, "\xff", 1);
        }
        size_t len = m < n ? strlen(markers[m]) : 1;
        add(&b, text + i, len);
        i += len;
    }
    (void)bl_buf_str(&b);
    return b.data ? bl_buf_steal(&b) : bl_strdup("");
}

static void run_rows(const row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t n_markers = 0;
        (void)bl_dialect_markers(rows[i].d, &n_markers);
        check_cuts(&rows[i], 0, rows[i].text, rows[i].want);
        char *control = as_control(rows[i].d, rows[i].text);
        check_cuts(&rows[i], (1u << n_markers) - 1, control, rows[i].want);
        bl_free(control);
    }
}

#define TEXT   BL_START_TEXT
#define INSIDE BL_START_REASONING
#define HEAD   BL_START_HEADER

static void plain_answers(void **state) {
    (void)state;
    static const row rows[] = {
        {N, TEXT, true, "", ""},
        {N, TEXT, true, "Hello <think>x</think> <tool_call>\n\n",
         "C[Hello <think>x</think> <tool_call>\n\n]"},
        {N, TEXT, true, "<|channel>thought\nh\xc3\xa9<channel|>",
         "C[<|channel>thought\nh\xc3\xa9<channel|>]"},
    };
    run_rows(rows, BL_COUNTOF(rows));
}

#define XCALL(name, params) "<tool_call>\n<function=" name ">\n" params "</function>\n</tool_call>"
#define XP(key, value)      "<parameter=" key ">\n" value "\n</parameter>\n"

static void qwen_answers(void **state) {
    (void)state;
    static const row rows[] = {
        /* no markers */
        {X, TEXT, true, "", ""},
        {X, TEXT, true, "Hello\n\nworld\n", "C[Hello\n\nworld\n]"},
        {X, TEXT, true, "a < b <- c <t <think", "C[a < b <- c <t <think]"},
        {X, INSIDE, true, "just thoughts\n", "R[just thoughts\n]"},
        /* reasoning */
        {X, TEXT, true, "<think>\nhm, 1 < 2\n</think>\n\nYes.", "R[hm, 1 < 2]C[Yes.]"},
        {X, INSIDE, true, "hm\n\nso\n</think>\n\nYes.\n", "R[hm\n\nso]C[Yes.\n]"},
        {X, INSIDE, true, "\n</think>\n\nYes.", "C[Yes.]"},
        {X, TEXT, true, "<think>\n\n</think>\n\nYes.", "C[Yes.]"},
        {X, TEXT, true, "\n<think>a</think>b", "R[a]C[b]"},
        {J, TEXT, true, "<think>a", "R[a]"},
        {J, INSIDE, true, "a<think>b</think>c", "R[a<think>b]C[c]"},
        {J, INSIDE, true, "a </think", "R[a </think]"},
        /* later the opening tag is a word, and a stray closing one too */
        {X, TEXT, true, "The <think> tag. </think> x", "C[The <think> tag. </think> x]"},
        /* a call is not looked for in reasoning */
        {X, INSIDE, true, "I <tool_call>\n</think>b", "R[I <tool_call>]C[b]"},
        /* tools, XML */
        {X, TEXT, true, XCALL("noop", ""), "T[noop]{}"},
        {X, TEXT, true, "Let me see.\n\n" XCALL("f", XP("n", "3") XP("s", "3")),
         "C[Let me see.]T[f]{\"n\": 3, \"s\": \"3\"}"},
        {X, INSIDE, true, "hm\n</think>\n\n" XCALL("f", XP("s", "a\nb \"q\" \\ \t\x01")),
         "R[hm]T[f]{\"s\": \"a\\nb \\\"q\\\" \\\\ \\t\\u0001\"}"},
        {X, TEXT, true, XCALL("f", XP("n", "x") XP("b", "True") XP("o", "{\"a\": [1, null]}") XP("u", "")),
         "T[f]{\"n\": \"x\", \"b\": true, \"o\": {\"a\": [1, null]}, \"u\": \"\"}"},
        {X, TEXT, true, XCALL("f", XP("unknown", "12345678901234567890") XP("z", "00")),
         "T[f]{\"unknown\": 12345678901234567890, \"z\": \"00\"}"},
        {X, TEXT, true, XCALL("f", XP("opt", "null") XP("opt2", "12") XP("any", "12") XP("e", "5")),
         "T[f]{\"opt\": null, \"opt2\": \"12\", \"any\": \"12\", \"e\": \"5\"}"},
        {X, TEXT, true, XCALL("unheard", XP("a", "1") XP("b", "[1,") XP("c", "None")),
         "T[unheard]{\"a\": 1, \"b\": \"[1,\", \"c\": null}"},
        {X, TEXT, true, "<tool_call><function=f><parameter=s>x</parameter></function></tool_call>",
         "T[f]{\"s\": \"x\"}"},
        {X, TEXT, true, XCALL("f", "<parameter=s>\n\n\nx\n\n\n</parameter>\n"),
         "T[f]{\"s\": \"\\n\\nx\\n\\n\"}"},
        /* several, and text between and behind */
        {X, TEXT, true, XCALL("a", "") "\n" XCALL("b", XP("n", "1")), "T[a]{}T[b]{\"n\": 1}"},
        {X, TEXT, true, XCALL("a", "") "\nand\n" XCALL("b", "") "\n\n", "T[a]{}C[and]T[b]{}"},
        {X, TEXT, true, XCALL("a", "") "\n<think>\nhm\n</think>\n" XCALL("b", ""), "T[a]{}R[hm]T[b]{}"},
        /* tags inside values */
        {X, TEXT, true, XCALL("f", XP("s", "</tool_call><tool_call></function><think>")),
         "T[f]{\"s\": \"</tool_call><tool_call></function><think>\"}"},
        {X, TEXT, true, XCALL("f", XP("s", "a</parameter>b") XP("t", "</parameter>")),
         "T[f]{\"s\": \"a</parameter>b\", \"t\": \"</parameter>\"}"},
        /* odd and missing markup is content as it stands */
        {X, TEXT, true, "<tool_call>", "C[<tool_call>]"},
        {X, TEXT, true, "a\n<tool_call>\nno call", "C[a\n<tool_call>\nno call]"},
        {X, TEXT, true, "<tool_call>\n<function=>\n</function>\n</tool_call>",
         "C[<tool_call>\n<function=>\n</function>\n</tool_call>]"},
        {X, TEXT, true, "<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n</tool_call>",
         "C[<tool_call>\n<function=f>\n<parameter=s>\nx\n</function>\n</tool_call>]"},
        {X, TEXT, true, "<tool_call>\n<function=f>\n</function>",
         "C[<tool_call>\n<function=f>\n</function>]"},
        {X, TEXT, true, "<tool_call>\n<function=f>\n</function>x</tool_call>\n",
         "C[<tool_call>\n<function=f>\n</function>x</tool_call>\n]"},
        {X, TEXT, true, XCALL("f", XP("s", "1") XP("s", "2")),
         "C[" XCALL("f", XP("s", "1") XP("s", "2")) "]"},
        {X, TEXT, true, "<tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
         "C[<tool_call>]T[f]{}"},
        {X, TEXT, true, "<tool_call>x" XCALL("f", ""), "C[<tool_call>x]T[f]{}"},
        {X, TEXT, true, "<tool_call>\n<function=a\tb>\n</function>\n</tool_call>",
         "C[<tool_call>\n<function=a\tb>\n</function>\n</tool_call>]"},
        {X, TEXT, true, "</tool_call></function>", "C[</tool_call></function>]"},
        {X, TEXT, true, "<tool_cal<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "C[<tool_cal]T[f]{}"},
        /* no tools were offered */
        {X, TEXT, false, "<think>\na\n</think>\n" XCALL("f", ""), "R[a]C[" XCALL("f", "") "]"},
        /* JSON */
        {J, TEXT, true, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1.0}}\n</tool_call>",
         "T[f]{\"a\": 1.0}"},
        {J, TEXT, true,
         "<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": "
         "{}}\n</tool_call>",
         "T[f]{}T[g]{}"},
        {J, TEXT, true, "<tool_call>\n{\"name\": \"f\", \"arguments\": \"x\"}\n</tool_call>",
         "C[<tool_call>\n{\"name\": \"f\", \"arguments\": \"x\"}\n</tool_call>]"},
        {J, TEXT, true, "<tool_call>\n{\"name\": 5}\n</tool_call>",
         "C[<tool_call>\n{\"name\": 5}\n</tool_call>]"},
        {J, TEXT, true, "<tool_call>\n{\"name\": \"f\",}\n</tool_call>!",
         "C[<tool_call>\n{\"name\": \"f\",}\n</tool_call>!]"},
        {J, TEXT, true, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"cut",
         "C[<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"cut]"},
    };
    run_rows(rows, BL_COUNTOF(rows));
}

#define Q "<|\"|>"

static void gemma_answers(void **state) {
    (void)state;
    static const row rows[] = {
        {G, TEXT, true, "", ""},
        {G, TEXT, true, "Hi <b>x</b> <|", "C[Hi <b>x</b> <|]"},
        {G, TEXT, true, "<|channel>thought\nhm\n<channel|>Yes.\n", "R[hm]C[Yes.\n]"},
        {G, TEXT, true, "<|channel>thought\n<channel|>Yes.", "C[Yes.]"},
        {G, TEXT, true, "<|channel>thought<channel|>Yes.", "C[Yes.]"},
        {G, INSIDE, true, "hm<channel|>Yes.", "R[hm]C[Yes.]"},
        {G, TEXT, true, "a<|channel>thought\nb<channel|>c", "C[a]R[b]C[c]"},
        {G, TEXT, true, "<|channel>thought\nnever closed", "R[never closed]"},
        {G, TEXT, true, "<|tool_call>call:noop{}<tool_call|>", "T[noop]{}"},
        {G, TEXT, true,
         "<|channel>thought\nneed it\n<channel|><|tool_call>call:get_weather{city:" Q
         "Z\xc3\xbcrich \"a\"\n" Q ",days:3}<tool_call|>",
         "R[need it]T[get_weather]{\"city\": \"Z\xc3\xbcrich \\\"a\\\"\\n\", \"days\": 3}"},
        {G, TEXT, true, "<|tool_call>call:f{a:{b:[1,-2.5e3,true,false,null,{}],c:" Q Q "},d:[]}<tool_call|>",
         "T[f]{\"a\": {\"b\": [1, -2.5e3, true, false, null, {}], \"c\": \"\"}, \"d\": []}"},
        {G, TEXT, true, "<|tool_call>call:f{" Q "k k" Q ":1, x y : 2}<tool_call|>",
         "T[f]{\"k k\": 1, \"x y\": 2}"},
        {G, TEXT, true, "<|tool_call>call:f{\"a\": \"b}\\\"\", c:1}<tool_call|>",
         "T[f]{\"a\": \"b}\\\"\", \"c\": 1}"},
        {G, TEXT, true, "Both.\n<|tool_call>call:a{}<tool_call|><|tool_call>call:b{n:1}<tool_call|>",
         "C[Both.]T[a]{}T[b]{\"n\": 1}"},
        {G, TEXT, true, "<|tool_call>call:a{}<tool_call|>\nthen", "T[a]{}C[then]"},
        /* markers inside strings */
        {G, TEXT, true, "<|tool_call>call:f{s:" Q "}<tool_call|><|channel>{" Q "}<tool_call|>",
         "T[f]{\"s\": \"}<tool_call|><|channel>{\"}"},
        /* odd */
        {G, TEXT, true, "<|channel>final\nx<channel|>", "C[<|channel>final\nx<channel|>]"},
        {G, TEXT, true, "<channel|>x", "C[<channel|>x]"},
        {G, TEXT, true, "<|tool_call>call:f{a:1", "C[<|tool_call>call:f{a:1]"},
        {G, TEXT, true, "<|tool_call>call:f{a:1}x<tool_call|>", "C[<|tool_call>call:f{a:1}x<tool_call|>]"},
        {G, TEXT, true, "<|tool_call>call:f{a:word}<tool_call|>",
         "C[<|tool_call>call:f{a:word}<tool_call|>]"},
        {G, TEXT, true, "<|tool_call>call:f{a:1]<tool_call|>", "C[<|tool_call>call:f{a:1]<tool_call|>]"},
        {G, TEXT, true, "<|tool_call>call:{}<tool_call|>", "C[<|tool_call>call:{}<tool_call|>]"},
        {G, TEXT, true, "<|tool_call>cool<|tool_call>call:f{}<tool_call|>", "C[<|tool_call>cool]T[f]{}"},
        {G, TEXT, true, "<|tool_call>call:f{s:" Q "open}<tool_call|>",
         "C[<|tool_call>call:f{s:" Q "open}<tool_call|>]"},
        {G, TEXT, false, "<|tool_call>call:f{}<tool_call|>", "C[<|tool_call>call:f{}<tool_call|>]"},
    };
    run_rows(rows, BL_COUNTOF(rows));
}

#define MSG(channel, body) "<|channel|>" channel "<|message|>" body
#define NEXT               "<|end|><|start|>assistant"

static void harmony_answers(void **state) {
    (void)state;
    static const row rows[] = {
        {H, HEAD, true, "", ""},
        {H, HEAD, true, "plain text", "C[plain text]"},
        {H, HEAD, true, " the text", "C[ the text]"},
        {H, TEXT, true, "text\n<", "C[text\n<]"},
        {H, HEAD, true, MSG("final", "Yes.\n"), "C[Yes.\n]"},
        {H, HEAD, true, MSG("final", "Yes.<|return|>"), "C[Yes.]"},
        {H, HEAD, true, MSG("analysis", "hm") NEXT MSG("final", "Yes.<|return|>"), "R[hm]C[Yes.]"},
        {H, HEAD, true, MSG("analysis", "hm<|end|>") MSG("final", "Yes."), "R[hm]C[Yes.]"},
        {H, HEAD, true, MSG("analysis", "a") NEXT MSG("analysis", "b") NEXT MSG("commentary", "c"),
         "R[ab]C[c]"},
        {H, HEAD, true, "<|start|>assistant" MSG("final", "x"), "C[x]"},
        {H, HEAD, true, "<|message|>x", "C[x]"},
        {H, HEAD, true, MSG("analysis", "never closed"), "R[never closed]"},
        {H, HEAD, true, MSG("analysis", "a<|start|>assistant") MSG("final", "b"), "R[a]C[b]"},
        /* calls: the recipient on either side of the channel */
        {H, HEAD, true,
         MSG("analysis", "hm") NEXT " to=functions.get_weather" MSG("commentary json", "{\"a\": 1}<|call|>"),
         "R[hm]T[get_weather]{\"a\": 1}"},
        {H, HEAD, true, MSG("commentary to=functions.f <|constrain|>json", "{\"a\":\"x\"}<|call|>"),
         "T[f]{\"a\":\"x\"}"},
        {H, HEAD, true, " to=functions.f" MSG("commentary <|constrain|>json", "\n{}\n<|call|>"), "T[f]{}"},
        {H, HEAD, true, " to=functions.f" MSG("analysis code", "<|call|>"), "T[f]{}"},
        {H, HEAD, true,
         MSG("commentary", "Both.") NEXT
         " to=functions.a" MSG("commentary", "{}<|call|>") "<|start|>assistant to=functions.b" MSG(
             "commentary", "{\"n\":1}<|end|>"),
         "C[Both.]T[a]{}T[b]{\"n\":1}"},
        /* odd and missing */
        {H, HEAD, true, MSG("weird", "x<|end|>"), "C[<|channel|>weird<|message|>x]"},
        {H, HEAD, true, "<|channel|>final", "C[<|channel|>final]"},
        {H, HEAD, true, "<|channel|>final two words<|message|>x",
         "C[<|channel|>final two words<|message|>x]"},
        {H, HEAD, true, "<|channel|>a<|channel|>final<|message|>x",
         "C[<|channel|>a<|channel|>final<|message|>x]"},
        {H, HEAD, true, " to=python" MSG("analysis code", "1+1<|call|>"),
         "C[ to=python<|channel|>analysis code<|message|>1+1]"},
        {H, HEAD, true, " to=functions.f" MSG("commentary", "{bad}<|call|>"),
         "C[ to=functions.f<|channel|>commentary<|message|>{bad}]"},
        {H, HEAD, true, " to=functions.f" MSG("commentary", "{\"a\": 1"),
         "C[ to=functions.f<|channel|>commentary<|message|>{\"a\": 1]"},
        {H, HEAD, true, " to=functions.f" MSG("commentary", "{\"a\": 1}<|start|>assistant") MSG("final", "x"),
         "C[ to=functions.f<|channel|>commentary<|message|>{\"a\": 1}x]"},
        {H, HEAD, true, MSG("analysis", "a<|start|>user<|message|>b<|end|>"),
         "R[a]C[<|start|>user<|message|>b]"},
        {H, HEAD, true, MSG("final", "a<|end|><|end|>b"), "C[ab]"},
        {H, HEAD, true, MSG("final", "a<|channel|>b"), "C[a<|channel|>b]"},
        {H, HEAD, false, " to=functions.f" MSG("commentary", "{}<|call|>"),
         "C[ to=functions.f<|channel|>commentary<|message|>{}]"},
    };
    run_rows(rows, BL_COUNTOF(rows));
}

/* Where a marker is a control token, its characters in a text are text. */
static void spelled_markers_are_text(void **state) {
    (void)state;
    static const size_t whole[] = {0, 0};
    static const struct {
        row r;
        uint32_t control;
    } cases[] = {
        {{G, TEXT, true, "<|tool_call>call:f{}<tool_call|>\xff<|channel>thought\nx\xff<channel|>y",
          "C[<|tool_call>call:f{}<tool_call|>]R[x]C[y]"},
         31},
        {{H, HEAD, true, "\xff<|channel|>final\xff<|message|>the <|end|> token\xff<|return|>",
          "C[the <|end|> token]"},
         127},
        /* in a string of arguments too, where a control token ends the message all the same */
        {{H, HEAD, true,
          " to=functions.f\xff<|channel|>commentary\xff<|message|>{\"s\":\"<|call|>\"}\xff<|call|>",
          "T[f]{\"s\":\"<|call|>\"}"},
         127},
        {{H, HEAD, true,
          " to=functions.f\xff<|channel|>commentary\xff<|message|>{\"s\":\"\xff<|end|>\xff<|start|>assistant"
          "\xff<|channel|>final\xff<|message|>x",
          "C[ to=functions.f<|channel|>commentary<|message|>{\"s\":\"x]"},
         127},
        {{H, HEAD, true, " to=functions.f" MSG("commentary", "{\"s\":\"<|call|> \\\" <|end|>\"}<|call|>"),
          "T[f]{\"s\":\"<|call|> \\\" <|end|>\"}"},
         0},
        {{J, TEXT, true,
          "<tool_call>{\"arguments\":{\"q\":\"}</tool_call>\\\"{\"},\"name\":\"g\"}</tool_call>",
          "T[g]{\"q\":\"}</tool_call>\\\"{\"}"},
         0},
        {{G, TEXT, true, "a\xff\xff<b", "C[a<b]"}, 31},
        {{X, TEXT, true, "a\xff<think>b", "C[a<think>b]"}, 0},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        check(&cases[i].r, cases[i].control, cases[i].r.text, strlen(cases[i].r.text), whole,
              cases[i].r.want);
        check_cuts(&cases[i].r, cases[i].control, cases[i].r.text, cases[i].r.want);
    }
}

/* ---- limits ---- */

static void long_markup_is_text(void **state) {
    (void)state;
    static const size_t whole[] = {0, 0}, odd[] = {4097, 1, 70000, 0};
    static const struct {
        bl_dialect d;
        bl_parser_start start;
        const char *head, *tail;
    } cases[] = {
        {X, TEXT, "<tool_call>\n<function=f>\n<parameter=s>\n", "\n</parameter>\n</function>\n</tool_call>"},
        {J, TEXT, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"", "\"}}</tool_call>"},
        {G, TEXT, "<|tool_call>call:f{a:<|\"|>", "<|\"|>}<tool_call|>"},
        {H, HEAD, " to=functions.f<|channel|>commentary<|message|>{\"a\":\"", "\"}<|call|>"},
    };
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        for (int over = 0; over < 2; over++) {
            bl_buf b;
            bl_buf_init(&b, 8 << 20);
            add(&b, cases[i].head, strlen(cases[i].head));
            size_t rest = strlen(cases[i].head) + strlen(cases[i].tail);
            for (size_t k = 0; k < BL_PARSER_MAX_CALL - rest + (size_t)over; k++) {
                add(&b, "y", 1);
            }
            add(&b, cases[i].tail, strlen(cases[i].tail));
            const row t = {cases[i].d, cases[i].start, true, "long", NULL};
            record r;
            parse(&t, 0, b.data, b.len, whole, &r);
            assert_int_equal(r.n_calls, over ? 0 : 1);
            record_done(&r);
            check(&t, 0, b.data, b.len, odd, NULL);
            bl_buf_done(&b);
        }
    }
    /* newlines in front of a marker, and a header */
    char text[600];
    memset(text, '\n', 500);
    memcpy(text, "a", 1);
    memcpy(text + 400, "<tool_call>{\"name\":\"f\"}</tool_call>", 36);
    const row t = {J, TEXT, true, text, NULL};
    record r;
    parse(&t, 0, text, 435, whole, &r);
    assert_int_equal(r.n_calls, 1);
    assert_int_equal(r.shown.len, strlen("C[a]T[f]{}") + 399 - BL_PARSER_MAX_NEWLINES);
    record_done(&r);
    memset(text, ' ', 500);
    memcpy(text + 400, "<|channel|>final<|message|>x", 29);
    const row h = {H, HEAD, true, text, NULL};
    parse(&h, 0, text, 428, whole, &r);
    assert_int_equal(r.shown.len, 428 + 3);
    record_done(&r);
}

/* Many rejected beginnings cost time in proportion to their length. */
static void rejecting_is_linear(void **state) {
    (void)state;
    static const size_t whole[] = {0, 0};
    static const struct {
        bl_dialect d;
        const char *unit;
    } cases[] = {{X, "<tool_call>\n<function=f>\n<parameter=x>\n"},
                 {J, "<tool_call>{\"<tool_call>{\":\"<tool_call>{\","},
                 {X, "<tool_call>\n<"},
                 {G, "<|tool_call>call:f{a:<|\"|>"},
                 {G, "<|channel>thoug"},
                 {H, "<|start|>assistant to=functions.f<|message|>{\"a\":\""},
                 {H, "<|start|>assistant<|channel|>"}};
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_buf b;
        bl_buf_init(&b, 8 << 20);
        while (b.len < (4u << 20)) {
            add(&b, cases[i].unit, strlen(cases[i].unit));
        }
        const row t = {cases[i].d, TEXT, true, "many", NULL};
        check(&t, 0, b.data, b.len, whole, NULL);
        bl_buf_done(&b);
    }
}

/* ---- random answers ---- */

/* Pieces of markup in any order: whatever comes of it is one thing for all cuts. */
static void random_markup(void **state) {
    (void)state;
    static const char *const bits[] = {"<think>",
                                       "</think>",
                                       "<tool_call>",
                                       "</tool_call>",
                                       "<function=f>",
                                       "</function>",
                                       "<parameter=a>",
                                       "</parameter>",
                                       "{\"name\":\"f\",\"arguments\":",
                                       "{",
                                       "}",
                                       "\"",
                                       "\\",
                                       "\n",
                                       "\n\n",
                                       " ",
                                       "a",
                                       "x=1",
                                       "<|channel>",
                                       "<channel|>",
                                       "thought\n",
                                       "<|tool_call>",
                                       "<tool_call|>",
                                       "call:f{",
                                       "k:",
                                       "<|\"|>",
                                       ",",
                                       "1",
                                       "true",
                                       "<|start|>",
                                       "assistant",
                                       "<|channel|>",
                                       "<|message|>",
                                       "<|end|>",
                                       "<|call|>",
                                       "<|return|>",
                                       "analysis",
                                       "final",
                                       "commentary",
                                       " to=functions.f",
                                       "<|constrain|>",
                                       "json",
                                       "<",
                                       "<|",
                                       ">",
                                       "\xff",
                                       "<tool_call>{\"name\":\"f\"}</tool_call>",
                                       "<|tool_call>call:f{a:1}<tool_call|>",
                                       " to=functions.f<|message|>{}<|call|>",
                                       "\xff<|end|>",
                                       "\xc3\xa9",
                                       "\xff<|channel>",
                                       "\xff<channel|>"};
    static const bl_dialect dialects[] = {X, J, G, H, N};
    static const bl_parser_start starts[] = {TEXT, INSIDE, HEAD};
    uint64_t rng = 20261130;
    size_t n_calls = 0;
    for (int round = 0; round < 6000; round++) {
        bl_buf b;
        bl_buf_init(&b, 1 << 20);
        size_t n = 1 + bl_rng_next(&rng) % 24;
        for (size_t i = 0; i < n; i++) {
            const char *bit = bits[bl_rng_next(&rng) % BL_COUNTOF(bits)];
            add(&b, bit, strlen(bit));
        }
        const row t = {dialects[bl_rng_next(&rng) % 5], starts[bl_rng_next(&rng) % 3],
                       bl_rng_next(&rng) % 4 > 0, b.data, NULL};
        uint32_t control = bl_rng_next(&rng) % 2 ? 127 : 0;
        static const size_t whole[] = {0, 0};
        record r;
        parse(&t, control, b.data, b.len, whole, &r);
        n_calls += r.n_calls;
        size_t *cuts = bl_alloc_array(b.len + 1, sizeof *cuts);
        for (int k = 0; k < 4; k++) {
            for (size_t i = 0; i < b.len; i++) {
                cuts[i] = k == 0 ? 1 : 1 + bl_rng_next(&rng) % 9;
            }
            check(&t, control, b.data, b.len, cuts, bl_buf_str(&r.shown));
        }
        bl_free(cuts);
        record_done(&r);
        bl_buf_done(&b);
    }
    assert_true(n_calls > 0);
}

/* ---- the sink's failures ---- */

static bl_code refuse(void *user, const bl_parsed *ev, bl_err *err) {
    (void)ev;
    ++*(int *)user;
    BL_FAIL(err, BL_ELIMIT, "enough");
}

static void a_failing_sink_ends_it(void **state) {
    (void)state;
    int n = 0;
    bl_parser_options o = {.dialect = X, .sink = refuse, .user = &n};
    bl_parser *p;
    bl_err err;
    assert_int_equal(bl_parser_new(&o, &p, NULL), BL_OK);
    assert_int_equal(bl_parser_feed(p, "abc", 3, &err), BL_ELIMIT);
    assert_int_equal(bl_parser_feed(p, "abc", 3, &err), BL_OK);
    assert_int_equal(bl_parser_finish(p, &err), BL_OK);
    assert_int_equal(n, 1);
    bl_parser_free(p);
    bl_parser_free(NULL);
}

static int make_tools(void **state) {
    (void)state;
    static const char text[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"other\",\"parameters\":{\"properties\":{\"n\":{"
        "\"type\":\"string\"}}}}},{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
        "\"type\":"
        "\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},\"s\":{\"type\":\"string\"},\"t\":{\"type\":"
        "\"string\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"opt\":{\"type\":[\"string\","
        "\"null\"]},\"opt2\":{\"type\":[\"string\",\"null\"]},\"any\":{\"anyOf\":[{\"type\":\"null\"},{"
        "\"type\":"
        "\"string\"}]},\"e\":{\"enum\":[\"5\",\"6\"]}}}}}]";
    tools = json_loads(text, 0, NULL);
    return tools ? 0 : -1;
}

static int drop_tools(void **state) {
    (void)state;
    json_decref(tools);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_answers),
        cmocka_unit_test(qwen_answers),
        cmocka_unit_test(gemma_answers),
        cmocka_unit_test(harmony_answers),
        cmocka_unit_test(spelled_markers_are_text),
        cmocka_unit_test(long_markup_is_text),
        cmocka_unit_test(rejecting_is_linear),
        cmocka_unit_test(random_markup),
        cmocka_unit_test(a_failing_sink_ends_it),
    };
    return cmocka_run_group_tests(tests, make_tools, drop_tools);
}
