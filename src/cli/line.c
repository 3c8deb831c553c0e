#include "cli/line.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "base/base.h"
#include "base/file.h"
#include "base/os.h"
#include "cli/common.h"

#define HISTORY_LINES 1000

struct bl_line {
    EditLine *el; /* NULL: not a terminal */
    History *history;
    char *history_path;
    const char *prompt;
    bool more;        /* the prompt of a continued line is due */
    bool interrupted; /* set by the Ctrl-C binding */
    bl_buf pending;   /* pipe: bytes after the last line */
    bool ended;
};

static char *prompt_of(EditLine *el) {
    void *user = NULL;
    el_get(el, EL_CLIENTDATA, &user);
    bl_line *l = user;
    union { /* libedit wants char *, and writes nothing */
        const char *from;
        char *to;
    } text = {.from = l->more ? "... " : l->prompt};
    return text.to;
}

/* Ctrl-C, which is a key while a line is edited: clears the line, or leaves when there is nothing to clear.
 */
static unsigned char on_ctrl_c(EditLine *el, wint_t key) {
    (void)key;
    void *user = NULL;
    el_get(el, EL_CLIENTDATA, &user);
    bl_line *l = user;
    const LineInfoW *line = el_wline(el); /* in characters, as el_cursor and el_deletestr count */
    if (line->lastchar == line->buffer && !l->more) {
        l->interrupted = true;
        return CC_EOF;
    }
    (void)el_cursor(el, (int)(line->lastchar - line->cursor));
    line = el_wline(el);
    el_deletestr(el, (int)(line->lastchar - line->buffer));
    return CC_REFRESH;
}

static bl_code open_history(bl_line *l, const char *path, bl_err *err) {
    HistEvent ev;
    l->history = history_init();
    if (l->history == NULL || history(l->history, &ev, H_SETSIZE, HISTORY_LINES) < 0) {
        BL_FAIL(err, BL_ENOMEM, "no memory for the history of lines");
    }
    (void)history(l->history, &ev, H_SETUNIQUE, 1);
    el_set(l->el, EL_HIST, history, l->history);
    if (path == NULL) {
        return BL_OK;
    }
    l->history_path = bl_strdup(path);
    if (l->history_path == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory for the history of lines");
    }
    (void)history(l->history, &ev, H_LOAD, path); /* absent the first time */
    return BL_OK;
}

static bl_code open_terminal(bl_line *l, const char *history, bl_err *err) {
    /* Editing needs the terminal's character set; where the locale says nothing, terminals speak UTF-8. */
    if (setlocale(LC_CTYPE, "") == NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) {
        (void)setlocale(LC_CTYPE, "C.UTF-8");
    }
    l->el = el_init("darkbloom", stdin, stdout, stderr);
    if (l->el == NULL) {
        BL_FAIL(err, BL_EIO, "the terminal cannot be set up for editing lines");
    }
    el_set(l->el, EL_CLIENTDATA, l);
    el_set(l->el, EL_PROMPT_ESC, prompt_of, '\1');
    el_set(l->el, EL_EDITOR, "emacs");
    el_set(l->el, EL_SETTY, "-d", "-isig", NULL);
    /* The narrow form copies both strings and never frees them. */
    el_wset(l->el, EL_ADDFN, L"bl-ctrl-c", L"clear the line or leave", on_ctrl_c);
    el_set(l->el, EL_BIND, "^C", "bl-ctrl-c", NULL);
    el_set(l->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(l->el, EL_BIND, "^W", "ed-delete-prev-word", NULL);
    return open_history(l, history, err);
}

bl_code bl_line_open(const char *prompt, const char *history, bl_line **ret, bl_err *err) {
    bl_line *l = bl_alloc(sizeof(*l));
    if (l == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory for reading lines");
    }
    l->prompt = prompt;
    bl_buf_init(&l->pending, BL_LINE_MAX_BYTES);
    bl_code rc = BL_OK;
    if (isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1) {
        rc = open_terminal(l, history, err);
    }
    if (rc != BL_OK) {
        bl_line_close(l);
        return rc;
    }
    *ret = l;
    return BL_OK;
}

static void save_history(bl_line *l) {
    char dir[4096];
    HistEvent ev;
    char *slash;
    snprintf(dir, sizeof(dir), "%s", l->history_path);
    slash = strrchr(dir, '/');
    if (slash != NULL && slash != dir) {
        *slash = '\0';
        if (bl_file_make_dirs(dir, NULL) != BL_OK) {
            return;
        }
    }
    mode_t old = umask(077); /* what people ask is nobody else's business */
    if (history(l->history, &ev, H_SAVE, l->history_path) < 0) {
        bl_cli_errorf("the history could not be saved in '%.160s'", l->history_path);
    }
    (void)umask(old);
}

void bl_line_close(bl_line *l) {
    if (l == NULL) {
        return;
    }
    if (l->history != NULL && l->history_path != NULL) {
        save_history(l);
    }
    if (l->el != NULL) {
        el_end(l->el);
    }
    if (l->history != NULL) {
        history_end(l->history);
    }
    bl_buf_done(&l->pending);
    bl_free(l->history_path);
    bl_free(l);
}

bool bl_line_is_terminal(const bl_line *l) {
    return l->el != NULL;
}

/* A piece up to and without its newline. */
static bl_code read_terminal(bl_line *l, bl_buf *ret, bl_line_kind *kind, bl_err *err) {
    int n = 0;
    l->interrupted = false;
    const char *text = el_gets(l->el, &n);
    if (text == NULL || n <= 0) {
        *kind = l->interrupted || bl_cli_interrupted() ? BL_LINE_INTERRUPT : BL_LINE_END;
        bl_cli_clear_interrupt();
        return BL_OK;
    }
    size_t len = strcspn(text, "\n");
    *kind = BL_LINE_TEXT;
    if (len > 0) {
        HistEvent ev;
        (void)history(l->history, &ev, H_ENTER, text);
    }
    return bl_buf_append(ret, text, len, err);
}

static bl_code read_pipe(bl_line *l, bl_buf *ret, bl_line_kind *kind, bl_err *err) {
    char chunk[4096];
    for (;;) {
        const char *nl = l->pending.len > 0 ? memchr(l->pending.data, '\n', l->pending.len) : NULL;
        if (nl != NULL || (l->ended && l->pending.len > 0)) {
            size_t n = nl != NULL ? (size_t)(nl - l->pending.data) : l->pending.len;
            BL_TRY(bl_buf_append(ret, l->pending.data, n, err));
            bl_buf_consume(&l->pending, n + (nl != NULL ? 1 : 0));
            *kind = BL_LINE_TEXT;
            return BL_OK;
        }
        if (l->ended) {
            *kind = BL_LINE_END;
            return BL_OK;
        }
        ssize_t n = bl_os.read(STDIN_FILENO, chunk, sizeof(chunk));
        if (n > 0) {
            BL_TRY(bl_buf_append(&l->pending, chunk, (size_t)n, err));
        } else if (n == 0) {
            l->ended = true;
        } else if (errno == EINTR && bl_cli_interrupted()) {
            bl_cli_clear_interrupt();
            *kind = BL_LINE_INTERRUPT;
            return BL_OK;
        } else if (errno != EINTR) {
            BL_FAIL(err, BL_EIO, "cannot read standard input: %s", strerror(errno));
        }
    }
}

bl_code bl_line_read(bl_line *l, bl_buf *ret, bl_line_kind *ret_kind, bl_err *err) {
    bl_buf_reset(ret);
    l->more = false;
    for (;;) {
        bl_line_kind kind = BL_LINE_END;
        BL_TRY(l->el != NULL ? read_terminal(l, ret, &kind, err) : read_pipe(l, ret, &kind, err));
        bool go_on = kind == BL_LINE_TEXT && ret->len > 0 && ret->data[ret->len - 1] == '\\';
        if (!go_on) {
            /* The end of input after a continued line: what came so far is the line. */
            *ret_kind = kind == BL_LINE_END && ret->len > 0 ? BL_LINE_TEXT : kind;
            return BL_OK;
        }
        ret->data[ret->len - 1] = '\n';
        l->more = true;
    }
}
