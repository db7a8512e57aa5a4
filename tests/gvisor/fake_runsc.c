/*
 * Stands in for runsc, and misbehaves as its own name says. Linked statically: a supervised
 * program sees no library of the host's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void flood(void)
{
    static char line[4096];

    memset(line, 'x', sizeof line);
    for (int i = 0; i < 4096; i++) /* 16 MiB */
        if (write(2, line, sizeof line) < 0)
            exit(9);
    fputs("\nlast words\n", stderr);
}

int main(int count, char **arguments)
{
    const char *slash = strrchr(arguments[0], '/');
    const char *name = slash ? slash + 1 : arguments[0];
    char byte;

    if (strcmp(name, "exits") == 0) {
        fputs("nothing\nworks\033[31m here\n", stderr);
        return 3;
    }
    if (strcmp(name, "garbage") == 0) {
        fputs("garbage!", stdout);
        fflush(stdout);
    }
    if (strcmp(name, "early") == 0) {
        fputs("..", stdout);
        fflush(stdout);
    }
    if (strcmp(name, "floods") == 0) {
        flood();
        return 4;
    }
    if (strcmp(name, "floods-and-is-ready") == 0) {
        flood();
        putchar('.');
        fflush(stdout);
    }
    if (strcmp(name, "ready") == 0) {
        putchar('.');
        fflush(stdout);
    }
    if (strcmp(name, "tells") == 0) {
        for (int i = 1; i < count; i++)
            fprintf(stderr, "%s\n", arguments[i]);
        return 5;
    }
    if (strcmp(name, "deaf") == 0) {
        close(0);
        close(1);
    }
    /* Hangs until the other end is closed, or for ever. */
    while (read(0, &byte, 1) > 0)
        ;
    if (strcmp(name, "ready") != 0)
        pause();
    return 0;
}
