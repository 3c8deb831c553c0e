/* A thousand malformed provider.toml files, each a valid one with one mistake in it, and as many with random
 * bytes changed. A mistake is refused with path, line and key; no key that stands in the file is ever taken
 * as its default in silence; and no file is touched, by reading it or by trying to change it.
 */
#include "../unit/cmocka_all.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../unit/scratch_folder.h"
#include "base/base.h"
#include "base/rng.h"
#include "provider/config.h"

static uint64_t rng;

static uint32_t draw(uint32_t n) {
    return (uint32_t)(bl_rng_next(&rng) % n);
}

/* A valid file: every key with a value that is not its default, the keys of a section in random order. */
typedef struct {
    bl_config_id id; /* BL_CONFIG__MAX: a header, a comment */
    char text[160];
} line;

typedef struct {
    uint32_t n_lines;
    line lines[96];
} file;

static char whole[8192]; /* the file's text */

static const char *value_for(const bl_config_key *k, char ret[96]) {
    static const char *const words[] = {"\"paged\"", "'contiguous'", "' Paged '"};
    switch (k->kind) {
    case BL_CONFIG_BOOL:
        return k->def && k->def[0] == 't' ? "false" : "true";
    case BL_CONFIG_U64:
        snprintf(ret, 96, "%u", 7 + draw(50));
        return ret;
    case BL_CONFIG_CHOICE:
        return k->choices[0] == 'a' ? (draw(2) ? "'on'" : "\"off\"") : "\"enforce\"";
    case BL_CONFIG_WORD:
        return words[draw(3)];
    case BL_CONFIG_TEXT:
        return draw(2) ? "'some text'" : "\"some \\u00e9 text\"";
    case BL_CONFIG_TEXTS:
        return draw(2) ? "['a', \"b\"]" : "[ 'c', ]";
    case BL_CONFIG_MAP_U64:
        return "{ one = 1, \"two/2\" = 2 }";
    case BL_CONFIG_MAP_WORD:
        return "{ one = 'paged' }";
    case BL_CONFIG_TABLE:
        return "{ enabled = true }";
    case BL_CONFIG_WINDOWS:
        return "[{ days = ['mon'], start = '08:00', end = '09:00' }]";
    case BL_CONFIG_KIND__MAX:
        break;
    }
    return NULL;
}

static void add_line(file *f, bl_config_id id, const char *text) {
    assert_true(f->n_lines < BL_COUNTOF(f->lines) && strlen(text) < sizeof f->lines[0].text);
    line *l = &f->lines[f->n_lines++];
    l->id = id;
    memcpy(l->text, text, strlen(text) + 1);
}

static void swap_lines(file *f, uint32_t a, uint32_t b) {
    line t = f->lines[a];
    f->lines[a] = f->lines[b];
    f->lines[b] = t;
}

static void write_lines(const file *f) {
    size_t n = 0;
    for (uint32_t i = 0; i < f->n_lines; i++) {
        n += (size_t)snprintf(whole + n, sizeof whole - n, "%s\n", f->lines[i].text);
        assert_true(n < sizeof whole);
    }
}

static void make_file(file *f) {
    static const char *const sections[] = {"provider", "backend", "coordinator", "gemma_optimizations",
                                           "schedule"};
    char text[160], value[96];
    memset(f, 0, sizeof *f);
    add_line(f, BL_CONFIG_CONFIG_VERSION, "config_version = 3");
    for (size_t s = 0; s < BL_COUNTOF(sections); s++) {
        add_line(f, BL_CONFIG__MAX, draw(2) ? "" : "# a comment of the owner");
        snprintf(text, sizeof text, "[%s]", sections[s]);
        add_line(f, BL_CONFIG__MAX, text);
        uint32_t first = f->n_lines;
        for (unsigned id = 0; id < BL_CONFIG__MAX; id++) {
            const bl_config_key *k = bl_config_key_of((bl_config_id)id);
            if (strcmp(k->section, sections[s]) == 0) {
                snprintf(text, sizeof text, "%s = %s%s", k->name, value_for(k, value),
                         draw(4) ? "" : " # why");
                add_line(f, (bl_config_id)id, text);
            }
        }
        for (uint32_t i = f->n_lines - 1; i > first; i--) {
            swap_lines(f, i, first + draw(i - first + 1));
        }
    }
    write_lines(f);
}

/* ---- mistakes -------------------------------------------------------------------------------------------
 */

/* A value that the kind does not take. */
static const char *wrong_value(const bl_config_key *k) {
    static const char *const for_bool[] = {"0",      "1",   "\"true\"", "'false'",
                                           "[true]", "1.0", "{}",       "1979-05-27"};
    static const char *const for_u64[] = {"-1", "4.0", "\"4\"", "true", "[4]", "-0x1", "9223372036854775808",
                                          "{}", "inf"};
    static const char *const for_choice[] = {"'sometimes'", "true", "0",  "'AUTO'",
                                             "'on '",       "\"\"", "[]", "'enforced'"};
    static const char *const for_string[] = {"1", "true", "[]", "{}", "0.5", "\"a\\u0000b\"", "07:32:00"};
    static const char *const for_texts[] = {"'a'", "1", "['a', 1]", "{}", "[['a']]", "[true]"};
    static const char *const for_map[] = {"[]",  "1", "'x'", "{ a = -1 }", "{ a = [] }", "{ a = { b = 1 } }",
                                          "true"};
    static const char *const for_table[] = {"1", "'x'", "true", "[1]"};
#define ONE_OF(a) a[draw(BL_COUNTOF(a))]
    switch (k->kind) {
    case BL_CONFIG_BOOL:
        return ONE_OF(for_bool);
    case BL_CONFIG_U64:
        return ONE_OF(for_u64);
    case BL_CONFIG_CHOICE:
        return ONE_OF(for_choice);
    case BL_CONFIG_WORD:
    case BL_CONFIG_TEXT:
        return ONE_OF(for_string);
    case BL_CONFIG_TEXTS:
        return ONE_OF(for_texts);
    case BL_CONFIG_MAP_U64:
    case BL_CONFIG_MAP_WORD:
        return ONE_OF(for_map);
    case BL_CONFIG_TABLE:
    case BL_CONFIG_WINDOWS:
        return ONE_OF(for_table);
    case BL_CONFIG_KIND__MAX:
        break;
    }
    return NULL;
}

static uint32_t key_line(const file *f) {
    uint32_t i;
    do {
        i = draw(f->n_lines);
    } while (f->lines[i].id == BL_CONFIG__MAX);
    return i;
}

/* Makes one mistake; gives the line (from 1) and key that the message has to name. */
static uint32_t spoil(file *f, const char **ret_key) {
    static const char *const forms[] = {
        "%s",           "%s = ",    "%s %s",     "%s = %s %s",    "%s = 'open",
        "%s = \"\\q\"", "%s = yes", "%s = 01",   "%s = \"\xff\"", "%s = \"\x01\"",
        "%s == %s",     "= %s",     "%s.%s = 1", "[%s",           "%s = 1\r%s",
        "%s = nul",     "%s = 0x",  "%s = 1__0", "%s = .5"};
    char value[96];
    uint32_t i = key_line(f);
    const bl_config_key *k = bl_config_key_of(f->lines[i].id);
    *ret_key = k->name;
    switch (draw(4)) {
    case 0:
    case 1:
        snprintf(f->lines[i].text, sizeof f->lines[0].text, "%s = %s", k->name, wrong_value(k));
        break;
    case 2: {
        uint32_t form = draw(BL_COUNTOF(forms));
        const char *v = value_for(k, value);
        /* "a.b = 1" makes a table of the key: the right kind for a table, so there its values are what is
         * wrong. */
        bool table =
            k->kind == BL_CONFIG_MAP_U64 || k->kind == BL_CONFIG_MAP_WORD || k->kind == BL_CONFIG_TABLE;
        if (strcmp(forms[form], "%s.%s = 1") == 0) {
            form = table ? 0 : form;
            v = "b";
        }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(f->lines[i].text, sizeof f->lines[0].text, forms[form], k->name, v, v);
#pragma GCC diagnostic pop
        *ret_key = "";
        break;
    }
    default: { /* the same key again; the second is the mistake */
        line again = f->lines[i];
        add_line(f, BL_CONFIG__MAX, again.text);
        for (uint32_t j = f->n_lines - 1; j > i + 1; j--) {
            swap_lines(f, j, j - 1);
        }
        i++;
    }
    }
    write_lines(f);
    return i + 1;
}

/* ---- never touched ---------------------------------------------------------------------------------------
 */

static struct stat before;

static void put_file(const void *text, size_t n) {
    FILE *f = fopen(at("p.toml"), "w"); /* in its place, and not synced: 4,000 of them */
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(stat(at("p.toml"), &before), 0);
}

static void assert_untouched(const void *text, size_t n) {
    struct stat now;
    bl_buf b;
    assert_int_equal(stat(at("p.toml"), &now), 0);
    assert_true(now.st_ino == before.st_ino && now.st_mtim.tv_sec == before.st_mtim.tv_sec &&
                now.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
    assert_int_equal(bl_file_read(at("p.toml"), 1 << 20, &b, NULL), BL_OK);
    assert_int_equal(b.len, n);
    assert_memory_equal(bl_buf_str(&b), text, n);
    bl_buf_done(&b);
}

/* "PATH:LINE: ..." */
static uint32_t line_in(const char *msg) {
    const char *p = strstr(msg, "p.toml:");
    return p ? (uint32_t)strtoul(p + 7, NULL, 10) : 0;
}

static void test_mistakes(void **state) {
    (void)state;
    write_text("p.toml", "");
    for (unsigned i = 0; i < 1000; i++) {
        file f;
        const char *key = "";
        bl_config *c = NULL;
        bl_config_edit *e = NULL;
        bl_err err = {0};
        rng = 1000 + i;
        make_file(&f);
        assert_int_equal(bl_config_parse("p.toml", whole, strlen(whole), true, &c, &err), BL_OK);
        assert_int_equal(bl_config_n_warnings(c), bl_config_get(c, BL_CONFIG_MTP_MODE)->u == 1 ? 0 : 1);
        bl_config_free(c);
        c = NULL;
        uint32_t where = spoil(&f, &key);
        put_file(whole, strlen(whole));
        bl_code rc = bl_config_open(at("p.toml"), &c, &err);
        if (rc != BL_EFORMAT || line_in(err.msg) != where || !strstr(err.msg, key)) {
            fail_msg("file %u, mistake in line %u (%s): '%s' %s\n%s", i, where, key, bl_code_name(rc),
                     err.msg, whole);
        }
        assert_null(c);
        assert_int_equal(bl_config_edit_begin(at("p.toml"), &e, NULL), BL_EFORMAT);
        assert_null(e);
        assert_untouched(whole, strlen(whole));
    }
}

/* ---- random bytes ----------------------------------------------------------------------------------------
 */

static size_t change_bytes(char *text, size_t n, size_t cap) {
    static const char pool[] = "=[]{}.,\"'#\\\n\t -+_0123456789aefnorstuxT:\x80\xff\x01";
    for (uint32_t turns = 1 + draw(3); turns > 0 && n + 1 < cap && n > 1; turns--) {
        uint32_t from = draw((uint32_t)n);
        switch (draw(4)) {
        case 0:
            memmove(text + from, text + from + 1, n - from);
            n--;
            break;
        case 1:
            memmove(text + from + 1, text + from, n - from + 1);
            text[from] = pool[draw(sizeof pool - 1)];
            n++;
            break;
        case 2:
            text[from] = pool[draw(sizeof pool - 1)];
            break;
        default: /* cut off, as a full disk leaves it */
            if (draw(8) == 0) {
                n = from;
                text[n] = '\0';
            }
        }
    }
    return n;
}

/* A reader of its own, of lines: each "key = ..." below "[section]" that it sees has to be known as standing
 * in the file, in that line. */
static void assert_nothing_is_silent(const bl_config *c, const char *text) {
    char section[64] = "";
    uint32_t at_line = 1;
    for (const char *p = text; *p; at_line++) {
        char one[512], name[64] = "";
        size_t n = strcspn(p, "\n");
        snprintf(one, sizeof one, "%.*s", (int)BL_MIN(n, sizeof one - 1), p);
        p += n + (p[n] ? 1 : 0);
        const char *s = one + strspn(one, " \t");
        size_t len = strcspn(s, " \t=");
        const char *eq = s + len + strspn(s + len, " \t");
        if (*s == '[') {
            snprintf(section, sizeof section, "%.*s", (int)strcspn(s + 1, "]"), s + 1);
            continue;
        }
        if (*eq != '=') {
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)BL_MIN(len, sizeof name - 1), s);
        for (unsigned id = 0; id < BL_CONFIG__MAX; id++) {
            const bl_config_key *k = bl_config_key_of((bl_config_id)id);
            if (strcmp(k->section, section) == 0 && strcmp(k->name, name) == 0) {
                const bl_config_value *v = bl_config_get(c, (bl_config_id)id);
                if (!v->in_file || v->line != at_line) {
                    fail_msg("line %u (%s.%s) was taken for nothing:\n%s", at_line, section, name, text);
                }
                if (k->kind == BL_CONFIG_BOOL) {
                    assert_int_equal(v->b, strncmp(eq + 1 + strspn(eq + 1, " \t"), "true", 4) == 0);
                }
            }
        }
    }
}

/* A key that is not in the file any more is one that was warned of (another name), commented out, or cut off:
 * the reader of lines sees those too, as lines that hold no key of ours. */
static void test_random_bytes(void **state) {
    (void)state;
    unsigned n_loaded = 0, n_refused = 0;
    write_text("p.toml", "");
    for (unsigned i = 0; i < 3000; i++) {
        static file f;
        char text[8400];
        bl_config *c = NULL;
        bl_err err = {0};
        rng = 5000000 + i;
        make_file(&f);
        snprintf(text, sizeof text, "%s", whole);
        size_t n = change_bytes(text, strlen(text), sizeof text);
        put_file(text, n);
        bl_code rc = bl_config_open(at("p.toml"), &c, &err);
        if (rc == BL_OK) {
            assert_nothing_is_silent(c, text);
            n_loaded++;
        } else {
            assert_int_equal(rc, BL_EFORMAT);
            assert_true(line_in(err.msg) >= 1);
            n_refused++;
        }
        bl_config_free(c);
        assert_untouched(text, n);
    }
    assert_true(n_loaded > 300 && n_refused > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_mistakes, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_random_bytes, make_root, remove_root),
    };
    return cmocka_run_group_tests_name("config_mutations", tests, NULL, NULL);
}
