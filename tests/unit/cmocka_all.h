/* cmocka with the headers it needs first, in the order it needs them. */
#ifndef BL_TESTS_CMOCKA_ALL_H
#define BL_TESTS_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
