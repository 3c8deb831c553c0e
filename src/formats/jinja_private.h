/* What the jinja_*.c files share: syntax tree, values, and the state of one render. Private to formats/jinja.
 *
 * Flow: jinja_lex.c (text -> tokens) -> jinja_parse.c (tokens -> tree) -> jinja_scope.c (names -> slots, as
 * jinja2's compiler scopes them) -> jinja_eval.c / jinja_exec.c (tree + context -> text). The tree is
 * immutable once compiled; all values of a render live in that render's arena and are never freed one by one.
 *
 * Every string byte has an origin: the template's own text, or the input (the conversation). The origin
 * travels through concatenation, slicing, trimming, joining and replacing, so that the rendered text says
 * which of its bytes may be read as control tokens. It never changes what a template computes.
 */
#ifndef BL_FORMATS_JINJA_PRIVATE_H
#define BL_FORMATS_JINJA_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/base.h"
#include "formats/jinja.h"

/* Ceilings of compiling. Real templates: under 60 KiB, 300 names, 4,000 nodes, nesting 40. */
#define BL_JN_MAX_SOURCE        (1u << 20)
#define BL_JN_MAX_COMPILE_BYTES (128u << 20)
#define BL_JN_MAX_NAMES         4096u
#define BL_JN_MAX_NESTING       200u
#define BL_JN_MAX_ARGS          64u
#define BL_JN_MAX_RANGE         100000 /* as jinja2's sandbox */

/* ---- values ---- */

typedef enum {
    BL_JN_MISSING, /* an unset slot or argument; never seen by a template */
    BL_JN_UNDEF,
    BL_JN_NONE,
    BL_JN_BOOL,
    BL_JN_INT,
    BL_JN_FLOAT,
    BL_JN_STR,
    BL_JN_LIST,
    BL_JN_TUPLE,
    BL_JN_DICT,
    BL_JN_VIEW, /* dict.items(), keys(), values() */
    BL_JN_RANGE,
    BL_JN_ITER, /* one-shot iterator (generator) */
    BL_JN_NS,   /* namespace() */
    BL_JN_MACRO,
    BL_JN_FUNC,   /* global function */
    BL_JN_METHOD, /* bound method */
    BL_JN_LOOP,
} bl_jn_type;

enum { BL_JN_ORIGIN_TEMPLATE = 0, BL_JN_ORIGIN_INPUT = 1 };

typedef struct bl_jn_ctx bl_jn_ctx;
typedef struct bl_jn_node bl_jn_node;
typedef struct bl_jn_frame bl_jn_frame;
typedef struct bl_jn_act bl_jn_act;
typedef struct bl_jn_iter bl_jn_iter;
typedef struct bl_jn_dict bl_jn_dict;
typedef struct bl_jn_method_def bl_jn_method_def;

/* Spare room behind a string that grew by concatenation, so that s = s + x in a loop costs O(length) in all.
 */
typedef struct {
    char *p;
    uint8_t *marks;
    size_t used, cap;
} bl_jn_room;

typedef struct {
    const char *p;        /* UTF-8 */
    const uint8_t *marks; /* origin per byte, or NULL: all bytes are of `origin` */
    size_t n;             /* bytes */
    size_t n_cp;          /* code points; SIZE_MAX: not counted yet */
    bl_jn_room *room;
    uint8_t origin;
    bool markup; /* Python's Markup: what |safe and |escape give */
} bl_jn_str;

typedef enum {
    BL_JN_UNDEF_NAME,
    BL_JN_UNDEF_ATTR,
    BL_JN_UNDEF_ITEM,
    BL_JN_UNDEF_HINT,
    BL_JN_UNDEF_UNSAFE
} bl_jn_undef_kind;
typedef struct {
    bl_jn_undef_kind kind;
    const char *type_name; /* ATTR, ITEM, UNSAFE */
    const bl_jn_str *name; /* may be NULL */
    const char *hint;
} bl_jn_undef;

typedef struct bl_jn_val bl_jn_val;

typedef struct {
    bl_jn_val *v;
    size_t n;
} bl_jn_list;

typedef struct {
    int64_t start, stop, step;
    int64_t n;
} bl_jn_range;

typedef struct {
    const bl_jn_dict *d;
    char what; /* 'k', 'v', 'i' */
} bl_jn_view;

typedef struct {
    const bl_jn_node *node; /* MACRO or CALL_BLOCK */
    bl_jn_act *env;
} bl_jn_macro;

typedef struct bl_jn_loop bl_jn_loop;
typedef struct bl_jn_func_def bl_jn_func_def;
typedef struct bl_jn_bound bl_jn_bound;

struct bl_jn_val {
    bl_jn_type t;
    union {
        bool b;
        int64_t i;
        double f;
        bl_jn_str *s;
        bl_jn_list *l; /* LIST, TUPLE */
        bl_jn_dict *d; /* DICT, NS */
        bl_jn_undef *u;
        bl_jn_view *view;
        bl_jn_range *r;
        bl_jn_iter *it;
        bl_jn_macro *m;
        const bl_jn_func_def *fn;
        bl_jn_bound *bound;
        bl_jn_loop *loop;
    };
};

typedef struct {
    bl_jn_val key, val;
    uint64_t hash;
} bl_jn_entry;

/* Insertion-ordered; nothing is ever removed. */
struct bl_jn_dict {
    bl_jn_entry *e;
    size_t n, cap;
    uint32_t *index; /* open addressing over e, entry + 1; NULL while small */
    size_t index_cap;
    uint64_t seed;
};

struct bl_jn_bound {
    bl_jn_val self;
    const bl_jn_method_def *def;
};

struct bl_jn_loop {
    bl_jn_iter *it;
    bl_jn_val base; /* what is iterated, for length */
    bl_jn_val before, cur, after;
    bool after_known; /* `after` was fetched ahead; MISSING in it: exhausted */
    int64_t index0;
    int64_t length; /* -1: not known yet */
    bl_jn_val changed;
};

typedef struct {
    const bl_jn_str *name;
    bl_jn_val v;
} bl_jn_kwarg;

typedef struct {
    bl_jn_val *pos;
    size_t n_pos;
    bl_jn_kwarg *kw;
    size_t n_kw;
} bl_jn_args;

/* ---- syntax tree ---- */

typedef enum {
    /* expressions */
    BL_JN_N_CONST,
    BL_JN_N_NAME,
    BL_JN_N_NSREF, /* target a.b */
    BL_JN_N_LIST,
    BL_JN_N_TUPLE,
    BL_JN_N_DICT, /* items: key, value, key, value... */
    BL_JN_N_GETATTR,
    BL_JN_N_GETITEM,
    BL_JN_N_SLICE, /* items: object, start, stop, step (NULL where absent) */
    BL_JN_N_CALL,
    BL_JN_N_FILTER,
    BL_JN_N_TEST,
    BL_JN_N_NOT,
    BL_JN_N_NEG,
    BL_JN_N_POS,
    BL_JN_N_CHAIN, /* left-associative binary operators of one level: items[0] ops[0] items[1] ops[1] ... */
    BL_JN_N_AND,
    BL_JN_N_OR,
    BL_JN_N_CONCAT,
    BL_JN_N_COMPARE,
    BL_JN_N_COND, /* items: value, test, otherwise (may be NULL) */
    /* statements */
    BL_JN_N_DATA,
    BL_JN_N_PRINT,
    BL_JN_N_IF, /* a: test, body, els: other bodies; elif is an IF in `els` */
    BL_JN_N_FOR,
    BL_JN_N_SET,
    BL_JN_N_SET_BLOCK,
    BL_JN_N_MACRO,
    BL_JN_N_CALL_BLOCK, /* also {% generation %}: a is NULL */
    BL_JN_N_FILTER_BLOCK,
    BL_JN_N_WITH,
    BL_JN_N_BREAK,
    BL_JN_N_CONTINUE,
} bl_jn_kind;

typedef enum {
    BL_JN_OP_ADD,
    BL_JN_OP_SUB,
    BL_JN_OP_MUL,
    BL_JN_OP_DIV,
    BL_JN_OP_FLOORDIV,
    BL_JN_OP_MOD,
    BL_JN_OP_POW,
    BL_JN_OP_EQ,
    BL_JN_OP_NE,
    BL_JN_OP_LT,
    BL_JN_OP_LE,
    BL_JN_OP_GT,
    BL_JN_OP_GE,
    BL_JN_OP_IN,
    BL_JN_OP_NOTIN,
} bl_jn_op;

typedef struct {
    bl_jn_node **v;
    uint32_t n;
} bl_jn_nodes;

typedef struct {
    const bl_jn_str *name;
    bl_jn_node *v;
} bl_jn_kwnode;

typedef struct {
    bl_jn_nodes pos;
    bl_jn_kwnode *kw;
    uint32_t n_kw;
    bl_jn_node *dyn, *dyn_kw;
} bl_jn_argnodes;

typedef struct bl_jn_filter_def bl_jn_filter_def;
typedef struct bl_jn_test_def bl_jn_test_def;

/* A variable's place: `up` function activations outwards, then the slot there. */
typedef struct {
    uint32_t up, slot;
} bl_jn_place;

typedef enum { BL_JN_LOAD_PARAM, BL_JN_LOAD_RESOLVE, BL_JN_LOAD_ALIAS, BL_JN_LOAD_UNDEFINED } bl_jn_load_kind;
typedef struct {
    bl_jn_load_kind kind;
    uint32_t slot;         /* in the current activation */
    bl_jn_place from;      /* ALIAS */
    const bl_jn_str *name; /* RESOLVE */
} bl_jn_load;

/* What entering a scope does to its variables (jinja2's enter_frame and leave_frame). */
struct bl_jn_frame {
    bl_jn_load *loads;
    uint32_t n;
};

typedef enum { BL_JN_CTX_LOAD, BL_JN_CTX_STORE, BL_JN_CTX_PARAM } bl_jn_name_ctx;

typedef struct { /* FOR */
    bl_jn_node *target, *iter, *test;
    bl_jn_nodes body, els;
    bl_jn_frame frame, else_frame, test_frame;
    bl_jn_node *test_target; /* the target again, placed in the test's own activation */
    uint32_t test_slots;
    bool has_loop; /* `loop` is read in the body */
    bl_jn_place loop;
} bl_jn_for;

typedef struct {                /* MACRO, CALL_BLOCK */
    const bl_jn_str *name;      /* NULL for call blocks */
    bl_jn_nodes args, defaults; /* defaults belong to the last args */
    bl_jn_nodes body;
    bl_jn_node *call; /* CALL_BLOCK */
    bl_jn_frame frame;
    uint32_t n_slots;
    bool has_caller, has_kwargs, has_varargs, explicit_caller;
    uint32_t caller_slot, kwargs_slot, varargs_slot;
    bl_jn_node *target; /* MACRO: the name it is stored to */
} bl_jn_macro_node;

typedef struct {        /* SET_BLOCK, FILTER_BLOCK, WITH */
    bl_jn_node *target; /* SET_BLOCK */
    bl_jn_node *filter; /* chain of filters whose innermost input is NULL: the captured text */
    bl_jn_nodes targets, values, body;
    bl_jn_frame frame;
} bl_jn_scope_node;

struct bl_jn_node {
    bl_jn_kind kind;
    uint32_t line;
    union {
        bl_jn_val konst; /* CONST; DATA (a string) */
        struct {
            uint32_t id;
            const bl_jn_str *name;
            bl_jn_name_ctx ctx;
            bl_jn_place place;
            const bl_jn_str *attr; /* NSREF */
        } name;
        struct { /* LIST, TUPLE, DICT, SLICE, CHAIN, AND, OR, CONCAT, COMPARE, COND */
            bl_jn_nodes items;
            uint8_t *ops; /* bl_jn_op per item after the first */
        } seq;
        struct { /* NOT, NEG, POS, PRINT, GETATTR, GETITEM */
            bl_jn_node *a, *b;
            const bl_jn_str *attr;
        } un;
        struct { /* CALL, FILTER, TEST */
            bl_jn_node *a;
            bl_jn_argnodes args;
            const bl_jn_filter_def *filter;
            const bl_jn_test_def *test;
        } call;
        struct { /* IF */
            bl_jn_node *test;
            bl_jn_nodes body;
            bl_jn_nodes elifs; /* IF nodes */
            bl_jn_nodes els;
        } cond;
        struct {
            bl_jn_node *target, *value;
        } set;
        bl_jn_for *loop;
        bl_jn_macro_node *macro;
        bl_jn_scope_node *scope;
    };
};

struct bl_jinja {
    bl_arena *arena;
    bl_jn_nodes body;
    bl_jn_frame frame;
    uint32_t n_slots;
    const bl_jn_str **names; /* interned */
    uint32_t n_names;
};

/* ---- compiling ---- */

typedef enum {
    BL_JN_T_EOF,
    BL_JN_T_DATA,
    BL_JN_T_BLOCK_BEGIN,
    BL_JN_T_BLOCK_END,
    BL_JN_T_VAR_BEGIN,
    BL_JN_T_VAR_END,
    BL_JN_T_NAME,
    BL_JN_T_STRING,
    BL_JN_T_INT,
    BL_JN_T_FLOAT,
    BL_JN_T_OP, /* op: the operator's characters */
} bl_jn_tok_type;

typedef struct {
    bl_jn_tok_type type;
    uint32_t line;
    char op[3];
    const char *p; /* NAME, DATA; STRING: between the quotes, escapes untouched */
    size_t n;
    int64_t i;
    double f;
} bl_jn_tok;

typedef struct {
    bl_jn_tok *v;
    size_t n, cap;
} bl_jn_toks;

/* Bump allocation for many small things, on top of an arena. */
typedef struct {
    bl_arena *arena;
    char *p;
    size_t left;
} bl_jn_pool;
bl_code bl_jn_pool_alloc(bl_jn_pool *pool, size_t n, void **ret, bl_err *err) BL_MUST_CHECK;

/* src must be normalised (only \n, no trailing newline). Tokens borrow it. *ret is freed by the caller
 * (bl_free). */
bl_code bl_jn_lex(const char *src, size_t n, bl_jn_toks *ret, bl_err *err) BL_MUST_CHECK;
/* Decodes a string token's escapes into out (n bytes of room are enough). */
bl_code bl_jn_unescape(const bl_jn_tok *tok, char *out, size_t *ret_n, bl_err *err) BL_MUST_CHECK;
bl_code bl_jn_parse(bl_jinja *t, bl_jn_pool *pool, const bl_jn_toks *toks, bl_err *err) BL_MUST_CHECK;
bl_code bl_jn_resolve(bl_jinja *t, bl_jn_pool *pool, bl_err *err) BL_MUST_CHECK;

/* ---- rendering ---- */

/* Builds a string piece by piece, with origins. */
typedef struct {
    char *p;
    uint8_t *marks; /* NULL while all bytes share `origin` */
    size_t n, cap;
    uint8_t origin;
    size_t max_bytes; /* 0: only the arena's ceiling */
} bl_jn_sb;

struct bl_jn_act {
    bl_jn_val *slots;
    bl_jn_act *parent;
};

typedef enum { BL_JN_FLOW_NEXT, BL_JN_FLOW_BREAK, BL_JN_FLOW_CONTINUE } bl_jn_flow;

struct bl_jn_ctx {
    bl_jn_pool pool;
    bl_err *err;
    uint64_t steps, max_steps;
    uint32_t depth, max_depth;
    uint32_t line;
    bl_jn_sb *out;
    bl_jn_flow flow;
    bl_jn_dict *vars;
    int64_t now_unix_s;
    const json_t *own; /* strings of the input that count as the template's */
    uint64_t seed; /* of dictionary hashes: order never depends on it, only the cost of chosen keys does */
};

struct bl_jn_func_def {
    const char *name;
    bl_code (*fn)(bl_jn_ctx *c, const bl_jn_args *a, bl_jn_val *ret);
};

/* A filter or method gets its arguments bound by `params` ("a,b,c"; absent ones are MISSING), or raw when raw
 * is set. */
typedef bl_code bl_jn_bound_fn(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret);
typedef bl_code bl_jn_raw_fn(bl_jn_ctx *c, bl_jn_val self, const bl_jn_args *a, bl_jn_val *ret);
#define BL_JN_MAX_PARAMS 6

struct bl_jn_filter_def {
    const char *name;
    bl_jn_bound_fn *fn;
    bl_jn_raw_fn *raw;
    const char *params;
    uint32_t n_required;
};
struct bl_jn_test_def {
    const char *name;
    bl_code (*fn)(bl_jn_ctx *c, bl_jn_val v, bl_jn_val arg, bool *ret);
    uint32_t n_args; /* 0 or 1 */
};
struct bl_jn_method_def {
    const char *name;
    bl_jn_bound_fn *fn;
    bl_jn_raw_fn *raw;
    const char *params;
    uint32_t n_required;
    bool keywords; /* parameters may be given by name */
};

/* errors: BL_EINVAL with "line N: " in front. The macro gives the code as a constant, so that compilers see
 * the failure. */
void bl_jn_report(bl_jn_ctx *c, const char *fmt, ...) BL_PRINTF(2, 3);
#define BL_JN_FAIL(c, ...) (bl_jn_report((c), __VA_ARGS__), (bl_code)BL_EINVAL)
/* Fails with what Python's Undefined would say. */
bl_code bl_jn_fail_undef(bl_jn_ctx *c, bl_jn_val v);
/* Counts work: BL_ELIMIT past the ceiling. */
bl_code bl_jn_charge(bl_jn_ctx *c, size_t n) BL_MUST_CHECK;
bl_code bl_jn_enter(bl_jn_ctx *c) BL_MUST_CHECK; /* one level deeper; bl_jn_leave undoes */
static inline void bl_jn_leave(bl_jn_ctx *c) {
    c->depth--;
}
bl_code bl_jn_alloc(bl_jn_ctx *c, size_t n, void **ret) BL_MUST_CHECK;
bl_code bl_jn_alloc_array(bl_jn_ctx *c, size_t n, size_t size, void **ret) BL_MUST_CHECK;

/* values: constructors */
static inline bl_jn_val bl_jn_none(void) {
    return (bl_jn_val){.t = BL_JN_NONE};
}
static inline bl_jn_val bl_jn_missing(void) {
    return (bl_jn_val){.t = BL_JN_MISSING};
}
static inline bl_jn_val bl_jn_bool(bool b) {
    return (bl_jn_val){.t = BL_JN_BOOL, .b = b};
}
static inline bl_jn_val bl_jn_int(int64_t i) {
    return (bl_jn_val){.t = BL_JN_INT, .i = i};
}
static inline bl_jn_val bl_jn_float(double f) {
    return (bl_jn_val){.t = BL_JN_FLOAT, .f = f};
}
static inline bl_jn_val bl_jn_strval(const bl_jn_str *s) {
    return (bl_jn_val){.t = BL_JN_STR, .s = (bl_jn_str *)(uintptr_t)s};
}
bl_code bl_jn_new_undef(bl_jn_ctx *c, bl_jn_undef_kind kind, const char *type_name, const bl_jn_str *name,
                        const char *hint, bl_jn_val *ret) BL_MUST_CHECK;
/* Borrows p (which lives as long as the render). */
bl_code bl_jn_new_str(bl_jn_ctx *c, const char *p, size_t n, uint8_t origin, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_new_cstr(bl_jn_ctx *c, const char *p,
                       bl_jn_val *ret) BL_MUST_CHECK; /* static text, template origin */
bl_code bl_jn_substr(bl_jn_ctx *c, const bl_jn_str *s, size_t off, size_t n, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_new_list(bl_jn_ctx *c, bl_jn_type t, size_t n, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_new_pair(bl_jn_ctx *c, bl_jn_val a, bl_jn_val b, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_from_json(bl_jn_ctx *c, const json_t *j, uint8_t origin, bl_jn_val *ret) BL_MUST_CHECK;

/* string building */
void bl_jn_sb_init(bl_jn_sb *b);
bl_code bl_jn_sb_add(bl_jn_ctx *c, bl_jn_sb *b, const char *p, size_t n, uint8_t origin) BL_MUST_CHECK;
bl_code bl_jn_sb_add_cstr(bl_jn_ctx *c, bl_jn_sb *b, const char *p) BL_MUST_CHECK;
bl_code bl_jn_sb_add_sub(bl_jn_ctx *c, bl_jn_sb *b, const bl_jn_str *s, size_t off, size_t n) BL_MUST_CHECK;
bl_code bl_jn_sb_add_str(bl_jn_ctx *c, bl_jn_sb *b, const bl_jn_str *s) BL_MUST_CHECK;
bl_code bl_jn_sb_fill(bl_jn_ctx *c, bl_jn_sb *b, const char *p, size_t n, size_t times,
                      uint8_t origin) BL_MUST_CHECK;
bl_code bl_jn_sb_done(bl_jn_ctx *c, bl_jn_sb *b, bl_jn_val *ret) BL_MUST_CHECK;
static inline uint8_t bl_jn_origin_at(const bl_jn_str *s, size_t off) {
    return s->marks ? s->marks[off] : s->origin;
}

/* strings */
size_t bl_jn_str_len(bl_jn_str *s);               /* code points */
size_t bl_jn_str_offset(bl_jn_str *s, size_t cp); /* byte offset of code point cp (<= length) */
bool bl_jn_str_eq(const bl_jn_str *a, const bl_jn_str *b);
bool bl_jn_str_is(const bl_jn_str *s, const char *lit);
int bl_jn_str_cmp(const bl_jn_str *a, const bl_jn_str *b);
/* Byte offset of needle at or after `from`, SIZE_MAX when absent. */
size_t bl_jn_str_find(const bl_jn_str *s, const bl_jn_str *needle, size_t from);
size_t bl_jn_str_rfind(const bl_jn_str *s, const bl_jn_str *needle, size_t to);
/* A code point at byte offset off < n, always consuming at least one byte (invalid bytes count one each). */
uint32_t bl_jn_cp_at(const bl_jn_str *s, size_t off, size_t *ret_len);
/* Byte offset where the code point before `off` > 0 starts. */
size_t bl_jn_cp_before(const bl_jn_str *s, size_t off);
bl_code bl_jn_concat(bl_jn_ctx *c, bl_jn_str *a, bl_jn_str *b, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_replace(bl_jn_ctx *c, bl_jn_str *s, const bl_jn_str *from, const bl_jn_str *to, int64_t count,
                      bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_strip(bl_jn_ctx *c, bl_jn_str *s, const bl_jn_str *chars, bool left, bool right,
                    bl_jn_val *ret) BL_MUST_CHECK;
/* mode: 'u' upper, 'l' lower, 'c' capitalize, 't' title, 's' swapcase, 'f' casefold */
bl_code bl_jn_change_case(bl_jn_ctx *c, bl_jn_str *s, char mode, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_escape(bl_jn_ctx *c, bl_jn_str *s, bl_jn_val *ret) BL_MUST_CHECK; /* HTML; gives Markup */
bl_code bl_jn_as_markup(bl_jn_ctx *c, bl_jn_str *s, bool markup, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_split_lines(bl_jn_ctx *c, bl_jn_str *s, bool keep, bl_jn_val *ret) BL_MUST_CHECK;

/* Unicode as Python's str sees it */
bool bl_jn_is_space(uint32_t cp);
bool bl_jn_is_printable(uint32_t cp);
bool bl_jn_is_alpha(uint32_t cp);
bool bl_jn_is_decimal(uint32_t cp);
bool bl_jn_is_digit(uint32_t cp);
bool bl_jn_is_numeric(uint32_t cp);
/* Full case mapping: 1..3 code points into out. mode 'u', 'l', 't', 'f'. */
size_t bl_jn_map_case(uint32_t cp, char mode, uint32_t out[3]);
bool bl_jn_is_upper(uint32_t cp);
bool bl_jn_is_lower(uint32_t cp);
bool bl_jn_is_title(uint32_t cp);
bool bl_jn_is_cased(uint32_t cp);
bool bl_jn_is_case_ignorable(uint32_t cp);

/* dictionaries */
bl_code bl_jn_new_dict(bl_jn_ctx *c, size_t cap, bl_jn_type t, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_dict_set(bl_jn_ctx *c, bl_jn_dict *d, bl_jn_val key, bl_jn_val v) BL_MUST_CHECK;
/* *ret NULL when absent. A key that Python cannot hash: BL_EINVAL. */
bl_code bl_jn_dict_get(bl_jn_ctx *c, const bl_jn_dict *d, bl_jn_val key, const bl_jn_val **ret) BL_MUST_CHECK;
const bl_jn_val *bl_jn_dict_get_str(const bl_jn_dict *d, const bl_jn_str *key);
bool bl_jn_hashable(bl_jn_val v);

/* Python's protocols */
const char *bl_jn_type_name(bl_jn_val v);
bool bl_jn_truth(bl_jn_val v);
bl_code bl_jn_eq(bl_jn_ctx *c, bl_jn_val a, bl_jn_val b, bool *ret) BL_MUST_CHECK;
/* *ret < 0, 0, > 0; types that do not order: BL_EINVAL naming op. NaN: *ret 2, which no ordering matches. */
bl_code bl_jn_order(bl_jn_ctx *c, bl_jn_val a, bl_jn_val b, const char *op, int *ret) BL_MUST_CHECK;
bl_code bl_jn_compare(bl_jn_ctx *c, bl_jn_op op, bl_jn_val a, bl_jn_val b, bool *ret) BL_MUST_CHECK;
bl_code bl_jn_contains(bl_jn_ctx *c, bl_jn_val box, bl_jn_val item, bool *ret) BL_MUST_CHECK;
bl_code bl_jn_len(bl_jn_ctx *c, bl_jn_val v, int64_t *ret,
                  bool *ret_has) BL_MUST_CHECK; /* *ret_has false: no len() */
bl_code bl_jn_binary(bl_jn_ctx *c, bl_jn_op op, bl_jn_val a, bl_jn_val b, bl_jn_val *ret) BL_MUST_CHECK;
/* str(v) as a string value; repr(v) appended. */
bl_code bl_jn_to_str(bl_jn_ctx *c, bl_jn_val v, bl_jn_str **ret) BL_MUST_CHECK;
bl_code bl_jn_soft_str(bl_jn_ctx *c, bl_jn_val v, bl_jn_str **ret) BL_MUST_CHECK; /* keeps Markup */
bl_code bl_jn_sb_repr(bl_jn_ctx *c, bl_jn_sb *b, bl_jn_val v) BL_MUST_CHECK;
bl_code bl_jn_sb_print(bl_jn_ctx *c, bl_jn_sb *b, bl_jn_val v) BL_MUST_CHECK;
size_t bl_jn_float_repr(double f, char out[40]);
/* An index argument: int or bool. */
bool bl_jn_as_index(bl_jn_val v, int64_t *ret);
bool bl_jn_as_double(bl_jn_val v, double *ret);

/* iteration */
struct bl_jn_iter {
    bl_jn_val base; /* what is walked by index, when next is NULL */
    size_t pos;     /* elements done; bytes for a string */
    bool reversed;
    /* A generator: pulls from `src` and maps or drops; stateful functions keep their state in `state`. */
    bl_jn_iter *src;
    bl_code (*next)(bl_jn_ctx *c, bl_jn_iter *it, bl_jn_val *ret, bool *ret_got);
    void *state;
    bool done;
};
/* BL_EINVAL when v is not iterable. A one-shot iterator gives itself. */
bl_code bl_jn_iterate(bl_jn_ctx *c, bl_jn_val v, bl_jn_iter **ret) BL_MUST_CHECK;
bool bl_jn_iterable(bl_jn_val v);
bl_code bl_jn_next(bl_jn_ctx *c, bl_jn_iter *it, bl_jn_val *ret, bool *ret_got) BL_MUST_CHECK;
/* Everything that is left, as a list value. */
bl_code bl_jn_collect(bl_jn_ctx *c, bl_jn_val v, bl_jn_type t, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_new_gen(bl_jn_ctx *c, bl_jn_iter *src,
                      bl_code (*next)(bl_jn_ctx *c, bl_jn_iter *it, bl_jn_val *ret, bool *ret_got),
                      void *state, bl_jn_val *ret) BL_MUST_CHECK;

/* attributes, items, calls */
bl_code bl_jn_getattr(bl_jn_ctx *c, bl_jn_val obj, const bl_jn_str *name, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_getitem(bl_jn_ctx *c, bl_jn_val obj, bl_jn_val key, bl_jn_val *ret) BL_MUST_CHECK;
/* start, stop, step: MISSING where absent. */
bl_code bl_jn_slice(bl_jn_ctx *c, bl_jn_val obj, const bl_jn_val bounds[3], bl_jn_val *ret) BL_MUST_CHECK;
/* Attribute by Python's getattr alone (no fallback to items): *ret_got false when there is none. */
bl_code bl_jn_python_attr(bl_jn_ctx *c, bl_jn_val obj, const bl_jn_str *name, bl_jn_val *ret,
                          bool *ret_got) BL_MUST_CHECK;
bl_code bl_jn_call(bl_jn_ctx *c, bl_jn_val fn, const bl_jn_args *a, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_call_macro(bl_jn_ctx *c, const bl_jn_macro *m, const bl_jn_args *a,
                         bl_jn_val *ret) BL_MUST_CHECK;
/* Binds a to `params`; what names the callee in messages. */
bl_code bl_jn_bind(bl_jn_ctx *c, const char *what, const char *params, uint32_t n_required, bool keywords,
                   const bl_jn_args *a, bl_jn_val out[BL_JN_MAX_PARAMS]) BL_MUST_CHECK;
bl_code bl_jn_loop_attr(bl_jn_ctx *c, bl_jn_loop *l, const bl_jn_str *name, bl_jn_val *ret,
                        bool *ret_got) BL_MUST_CHECK;
bl_code bl_jn_loop_next(bl_jn_ctx *c, bl_jn_loop *l, bl_jn_val *ret, bool *ret_got) BL_MUST_CHECK;
bl_code bl_jn_loop_length(bl_jn_ctx *c, bl_jn_loop *l, int64_t *ret) BL_MUST_CHECK;

/* tables */
const bl_jn_filter_def *bl_jn_find_filter(const char *name, size_t n);
const bl_jn_test_def *bl_jn_find_test(const char *name, size_t n);
const bl_jn_func_def *bl_jn_find_func(const bl_jn_str *name);
/* A method that Python's type has and we do: found. One that mutates: *ret_unsafe. One we lack: *ret_known
 * only. */
const bl_jn_method_def *bl_jn_find_method(bl_jn_val self, const bl_jn_str *name, bool *ret_known,
                                          bool *ret_unsafe);
/* Names jinja2 knows, whether or not we do ("x is filter"). */
bool bl_jn_known_filter(const bl_jn_str *name);
bool bl_jn_known_test(const bl_jn_str *name);
bl_code bl_jn_apply_filter(bl_jn_ctx *c, const bl_jn_filter_def *f, bl_jn_val v, const bl_jn_args *a,
                           bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_apply_test(bl_jn_ctx *c, const bl_jn_test_def *t, bl_jn_val v, const bl_jn_args *a,
                         bool *ret) BL_MUST_CHECK;

/* formatting */
bl_code bl_jn_percent(bl_jn_ctx *c, bl_jn_str *fmt, bl_jn_val args, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_str_format(bl_jn_ctx *c, bl_jn_val self, const bl_jn_args *a, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_strftime(bl_jn_ctx *c, const bl_jn_str *fmt, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_tojson(bl_jn_ctx *c, bl_jn_val self, const bl_jn_val *a, bl_jn_val *ret) BL_MUST_CHECK;

/* execution */
bl_code bl_jn_eval(bl_jn_ctx *c, const bl_jn_node *n, bl_jn_act *act, bl_jn_val *ret) BL_MUST_CHECK;
bl_code bl_jn_eval_args(bl_jn_ctx *c, const bl_jn_argnodes *n, bl_jn_act *act, bl_jn_args *ret) BL_MUST_CHECK;
bl_code bl_jn_exec(bl_jn_ctx *c, const bl_jn_nodes *body, bl_jn_act *act) BL_MUST_CHECK;
void bl_jn_leave_frame(const bl_jn_frame *f, bl_jn_act *act);
bl_code bl_jn_enter_frame(bl_jn_ctx *c, const bl_jn_frame *f, bl_jn_act *act) BL_MUST_CHECK;
bl_code bl_jn_assign(bl_jn_ctx *c, const bl_jn_node *target, bl_jn_act *act, bl_jn_val v) BL_MUST_CHECK;
bl_code bl_jn_new_act(bl_jn_ctx *c, uint32_t n_slots, bl_jn_act *parent, bl_jn_act **ret) BL_MUST_CHECK;

#endif
