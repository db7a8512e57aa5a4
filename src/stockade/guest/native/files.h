/*
 * Files of the workspace and of /tmp, opened so that nothing a program planted can mislead the
 * agent: beneath that folder, no symbolic link, regular files with one link (openat2(2)).
 */
#ifndef STOCKADE_FILES_H
#define STOCKADE_FILES_H

#include <stddef.h>
#include <stdint.h>

#define WORKSPACE "/workspace"
#define TEMPORARY "/tmp"

/* Each returns a descriptor, or -1 with *why set to a sentence for a person. */
int file_open_for_writing(const char *root, const char *path, unsigned mode, const char **why);
int file_open_for_reading(const char *path, uint64_t *size, const char **why);
int folder_open(const char *path, const char **why);

const char *file_explain(int error);

#endif
