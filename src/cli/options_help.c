/* --help and shell completion, made from the option tables (options.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli/options.h"

#define DOC_COLUMN 27

/* Appends text wrapped to the help's width, every line after the first starting at `indent`; `at` is where
 * the cursor is. */
static bl_code wrap(bl_buf *b, size_t indent, size_t at, const char *text, bl_err *err) {
    bool first = true;
    while (*text != '\0') {
        size_t n = strcspn(text, " ");
        size_t gap = first ? 0 : 1;
        if (!first && at + gap + n > BL_OPT_HELP_COLUMNS) {
            BL_TRY(bl_buf_printf(b, err, "\n%*s", (int)indent, ""));
            at = indent;
            gap = 0;
        }
        BL_TRY(bl_buf_printf(b, err, "%s%.*s", gap != 0 ? " " : "", (int)n, text));
        at += gap + n;
        first = false;
        text += n;
        text += strspn(text, " ");
    }
    return bl_buf_append_char(b, '\n', err);
}

/* "(default: 256; 1 to 4096; environment: DARKBLOOM_X)" */
static bl_code facts(const bl_opt *o, bl_buf *b, bl_err *err) {
    const char *sep = " (";
    if (o->kind == BL_OPT_LIST) {
        BL_TRY(bl_buf_printf(b, err, "%srepeatable", sep));
        sep = "; ";
    }
    if (o->def != NULL) {
        BL_TRY(bl_buf_printf(b, err, "%sdefault: %s", sep, o->def));
        sep = "; ";
    }
    if (o->kind == BL_OPT_F64) {
        BL_TRY(bl_buf_printf(b, err, "%s%g to %g", sep, o->fmin, o->fmax));
        sep = "; ";
    } else if ((o->kind == BL_OPT_U32 || o->kind == BL_OPT_U64) && (o->min != 0 || o->max != 0)) {
        if (o->max != 0) {
            BL_TRY(bl_buf_printf(b, err, "%s%llu to %llu", sep, (unsigned long long)o->min,
                                 (unsigned long long)o->max));
        } else {
            BL_TRY(bl_buf_printf(b, err, "%sat least %llu", sep, (unsigned long long)o->min));
        }
        sep = "; ";
    }
    if (o->env != NULL && o->name != NULL) {
        BL_TRY(bl_buf_printf(b, err, "%senvironment: %s", sep, o->env));
        sep = "; ";
    }
    if (o->config != NULL) {
        BL_TRY(bl_buf_printf(b, err, "%sprovider.toml: %s", sep, o->config));
        sep = "; ";
    }
    return sep[0] == ';' ? bl_buf_append_char(b, ')', err) : BL_OK;
}

static bl_code option_help(const bl_opt *o, bl_buf *out, bl_err *err) {
    char head[128];
    const char *arg = o->kind == BL_OPT_CHOICE ? o->choices : o->arg;
    int n;
    if (o->name != NULL) {
        char letter[8] = "    ";
        if (o->letter != 0) {
            snprintf(letter, sizeof(letter), "-%c, ", o->letter);
        }
        n = snprintf(head, sizeof(head), "  %s--%s%s%s", letter, o->name, o->kind == BL_OPT_FLAG ? "" : " ",
                     o->kind == BL_OPT_FLAG ? "" : arg);
    } else {
        n = snprintf(head, sizeof(head), "  %s", o->env);
    }
    BL_ASSERT(n > 0 && (size_t)n < sizeof(head));
    bl_buf doc;
    bl_buf_init(&doc, 1u << 16);
    bl_code rc;
    BL_TRY_GOTO(rc, out, bl_buf_append_str(&doc, o->doc, err));
    BL_TRY_GOTO(rc, out, facts(o, &doc, err));
    if (n + 2 > DOC_COLUMN) {
        BL_TRY_GOTO(rc, out, bl_buf_printf(out, err, "%s\n%*s", head, DOC_COLUMN, ""));
    } else {
        BL_TRY_GOTO(rc, out, bl_buf_printf(out, err, "%-*s", DOC_COLUMN, head));
    }
    rc = wrap(out, DOC_COLUMN, DOC_COLUMN, bl_buf_str(&doc), err);
out:
    bl_buf_done(&doc);
    return rc;
}

/* Newline-separated paragraphs; a line that starts with a space is kept as it is. */
static bl_code paragraphs(const char *text, bl_buf *out, bl_err *err) {
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        char line[1024];
        BL_ASSERT(n < sizeof(line));
        memcpy(line, text, n);
        line[n] = '\0';
        if (line[0] == ' ' || line[0] == '\0') {
            BL_TRY(bl_buf_printf(out, err, "%s\n", line));
        } else {
            BL_TRY(wrap(out, 0, 0, line, err));
        }
        text += n + (text[n] == '\n' ? 1 : 0);
    }
    return BL_OK;
}

static bl_code options_section(const bl_command *c, bool named, bl_buf *out, bl_err *err) {
    const char *group = NULL;
    for (size_t i = 0; i < c->n_opts; i++) {
        const bl_opt *o = &c->opts[i];
        if ((o->name != NULL) != named || o->doc == NULL) {
            continue;
        }
        const char *heading = named ? (o->group != NULL ? o->group
                                       : group != NULL  ? group
                                                        : "Options")
                                    : "Environment without an option";
        if (group == NULL || strcmp(group, heading) != 0) {
            BL_TRY(bl_buf_printf(out, err, "\n%s:\n", heading));
            group = heading;
        }
        BL_TRY(option_help(o, out, err));
    }
    return BL_OK;
}

bl_code bl_opts_help(const bl_command *c, bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_printf(ret, err, "Usage: darkbloom %s %s\n\n", c->name, c->usage));
    BL_TRY(paragraphs(c->about != NULL ? c->about : c->summary, ret, err));
    if (c->n_subs > 0) {
        BL_TRY(bl_buf_append_str(ret, "\nCommands:\n", err));
        for (size_t i = 0; i < c->n_subs; i++) {
            BL_TRY(bl_buf_printf(ret, err, "  %-18s", c->subs[i]->name));
            BL_TRY(wrap(ret, 20, 20, c->subs[i]->summary, err));
        }
        BL_TRY(bl_buf_printf(ret, err, "\nEach has its own help: darkbloom %s --help\n", c->subs[0]->name));
    }
    BL_TRY(options_section(c, true, ret, err));
    BL_TRY(options_section(c, false, ret, err));
    if (c->examples != NULL) {
        BL_TRY(bl_buf_append_str(ret, "\nExamples:\n", err));
        BL_TRY(paragraphs(c->examples, ret, err));
    }
    return BL_OK;
}

/* ---- bash completion --------------------------------------------------------------------------- */

static const char *completion_action(bl_opt_complete kind) {
    switch (kind) {
    case BL_COMPLETE_FILE:
        return "_darkbloom_files";
    case BL_COMPLETE_DIR:
        return "_darkbloom_dirs";
    case BL_COMPLETE_MODEL:
        return "_darkbloom_models";
    case BL_COMPLETE_NONE:
        break;
    }
    return ":";
}

/* "a|b" as words of a shell list. */
static bl_code append_choices(const char *choices, bl_buf *b, bl_err *err) {
    for (const char *p = choices; *p != '\0'; p++) {
        BL_TRY(bl_buf_append_char(b, *p == '|' ? ' ' : *p, err));
    }
    return BL_OK;
}

/* One command's arm of the case: what may follow the previous word, else what may come here. */
static bl_code completion_arm(const bl_command *c, bl_buf *b, bl_err *err) {
    BL_TRY(bl_buf_printf(b, err, "    '%s')\n        case \"$prev\" in\n", c->name));
    for (size_t i = 0; i < c->n_opts; i++) {
        const bl_opt *o = &c->opts[i];
        if (o->name == NULL || o->kind == BL_OPT_FLAG) {
            continue;
        }
        BL_TRY(bl_buf_printf(b, err, "        --%s", o->name));
        if (o->letter != 0) {
            BL_TRY(bl_buf_printf(b, err, "|-%c", o->letter));
        }
        if (o->kind == BL_OPT_CHOICE) {
            BL_TRY(bl_buf_append_str(b, ") _darkbloom_words '", err));
            BL_TRY(append_choices(o->choices, b, err));
            BL_TRY(bl_buf_append_str(b, "'; return ;;\n", err));
        } else {
            BL_TRY(bl_buf_printf(b, err, ") %s; return ;;\n", completion_action(o->complete)));
        }
    }
    BL_TRY(bl_buf_append_str(
        b, "        esac\n        case \"$cur\" in\n        -*) _darkbloom_words '--help", err));
    for (size_t i = 0; i < c->n_opts; i++) {
        if (c->opts[i].name != NULL) {
            BL_TRY(bl_buf_printf(b, err, " --%s", c->opts[i].name));
        }
    }
    BL_TRY(bl_buf_append_str(b, "' ;;\n        *) ", err));
    if (c->n_subs > 0) {
        BL_TRY(bl_buf_append_str(b, "_darkbloom_words '", err));
        for (size_t i = 0; i < c->n_subs; i++) {
            BL_TRY(bl_buf_printf(b, err, "%s%s", i > 0 ? " " : "", strrchr(c->subs[i]->name, ' ') + 1));
        }
        BL_TRY(bl_buf_append_str(b, "'", err));
    } else if (c->words != NULL) {
        BL_TRY(bl_buf_append_str(b, "_darkbloom_words '", err));
        BL_TRY(append_choices(c->words, b, err));
        BL_TRY(bl_buf_append_str(b, "'", err));
    } else {
        BL_TRY(bl_buf_append_str(b, completion_action(c->complete), err));
    }
    BL_TRY(bl_buf_append_str(b, " ;;\n        esac ;;\n", err));
    for (size_t i = 0; i < c->n_subs; i++) {
        BL_TRY(completion_arm(c->subs[i], b, err));
    }
    return BL_OK;
}

bl_code bl_opts_completion_bash(const bl_command *const *commands, size_t n, bl_buf *ret, bl_err *err) {
    BL_TRY(bl_buf_append_str(
        ret,
        "# bash completion for darkbloom. Use: source <(darkbloom completion bash)\n"
        "_darkbloom_words() { COMPREPLY=($(compgen -W \"$1\" -- \"$cur\")); }\n"
        "_darkbloom_files() { compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$cur\")); }\n"
        "_darkbloom_dirs() { compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- \"$cur\")); }\n"
        "_darkbloom_models() {\n"
        "    COMPREPLY=($(compgen -W \"$(\"${COMP_WORDS[0]}\" models list --names 2>/dev/null)\" -- \"$cur\")"
        " $(compgen -f -- \"$cur\"))\n"
        "}\n"
        "_darkbloom() {\n"
        "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" "
        "command=\"${COMP_WORDS[1]}\"\n"
        "    COMPREPLY=()\n"
        "    if [ \"$COMP_CWORD\" -le 1 ]; then\n"
        "        _darkbloom_words '",
        err));
    for (size_t i = 0; i < n; i++) {
        BL_TRY(bl_buf_printf(ret, err, "%s ", commands[i]->name));
    }
    BL_TRY(bl_buf_append_str(ret, "help --help --version'\n        return\n    fi\n", err));
    for (size_t i = 0; i < n; i++) {
        if (commands[i]->n_subs > 0) {
            BL_TRY(bl_buf_printf(ret, err,
                                 "    if [ \"$command\" = %s ] && [ \"$COMP_CWORD\" -gt 2 ]; then\n"
                                 "        command=\"$command ${COMP_WORDS[2]}\"\n    fi\n",
                                 commands[i]->name));
        }
    }
    BL_TRY(bl_buf_append_str(ret, "    case \"$command\" in\n", err));
    for (size_t i = 0; i < n; i++) {
        BL_TRY(completion_arm(commands[i], ret, err));
    }
    return bl_buf_append_str(ret, "    esac\n}\ncomplete -F _darkbloom darkbloom\n", err);
}
