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
    json_add(json, "\"");
    for (size_t i = 0; i < length; i++) {
        const unsigned char byte = (unsigned char)bytes[i];

        if (byte < 0x20 || byte >= 0x7f || byte == '"' || byte == '\\')
            json_add(json, "\\u%04x", byte);
        else
            json_add(json, "%c", byte);
    }
    json_add(json, "\"");
}
