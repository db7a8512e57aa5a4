/* Writing the small JSON objects that the agent sends. It reads none. */
#ifndef STOCKADE_JSON_H
#define STOCKADE_JSON_H

#include <stdbool.h>
#include <stddef.h>

struct json {
    char *text;
    size_t length, size;
    bool overflow; /* something did not fit and was left out */
};

void json_add(struct json *json, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A string; each byte that is no printable ASCII as \u00XX: the reader gets bytes back. */
void json_add_string(struct json *json, const char *bytes, size_t length);

#endif
