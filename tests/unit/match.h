/* Messages whose column numbers belong to the JSON library: '#' in the wanted text stands for digits. */
#ifndef BL_TESTS_UNIT_MATCH_H
#define BL_TESTS_UNIT_MATCH_H

#include <ctype.h>
#include <stdbool.h>

static inline bool msg_matches(const char *msg, const char *want) {
    for (; *want; want++) {
        if (*want != '#') {
            if (*msg++ != *want) {
                return false;
            }
            continue;
        }
        if (!isdigit((unsigned char)*msg)) {
            return false;
        }
        while (isdigit((unsigned char)*msg)) {
            msg++;
        }
    }
    return *msg == '\0';
}

#endif
