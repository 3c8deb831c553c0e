#include "base/words.h"

#include "base/base.h"

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

bool bl_word_is_blank(const char *s) {
    for (; s && *s; s++) {
        if (!is_space(*s)) {
            return false;
        }
    }
    return true;
}

static bool is_word(const char *s, const char *word) {
    while (is_space(*s)) {
        s++;
    }
    for (; *word; s++, word++) {
        char c = *s >= 'A' && *s <= 'Z' ? (char)(*s - 'A' + 'a') : *s;
        if (c != *word) {
            return false;
        }
    }
    return bl_word_is_blank(s);
}

bool bl_word_is_one_of(const char *s, const char *const *words, size_t n) {
    for (size_t i = 0; s && i < n; i++) {
        if (is_word(s, words[i])) {
            return true;
        }
    }
    return false;
}

bool bl_word_is_off(const char *s) {
    static const char *const words[] = {"0", "false", "no", "off"};
    return bl_word_is_one_of(s, words, BL_COUNTOF(words));
}
