#include "json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void json_add(struct json *json, const char *format, ...)
{
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(json->text + json->length, json->size - json->length, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= json->size - json->length) {
        json->text[json->length] = '\0';
        json->overflow = true;
        return;
    }
    json->length += (size_t)length;
}

void json_add_string(struct json *json, const char *bytes, size_t length)
{
    static const char digits[] = "0123456789abcdef";
    char *to = json->text + json->length;

    /* At the most six characters for each byte, the quotes and the end. */
    if (json->size - json->length < 6 * length + 3) {
        json->overflow = true;
        return;
    }
    *to++ = '"';
    for (size_t i = 0; i < length; i++) {
        const unsigned char byte = (unsigned char)bytes[i];

        if (byte < 0x20 || byte >= 0x7f || byte == '"' || byte == '\\') {
            memcpy(to, "\\u00", 4);
            to[4] = digits[byte >> 4];
            to[5] = digits[byte & 15];
            to += 6;
        } else {
            *to++ = (char)byte;
        }
    }
    *to++ = '"';
    *to = '\0';
    json->length = (size_t)(to - json->text);
}
