/* The filter of kernel calls, the same for every guest whatever its kernel: seccomp/policy.py. */
#ifndef STOCKADE_FILTER_H
#define STOCKADE_FILTER_H

/*
 * Property: of the kernel's calls only the reviewed ones can be made. Takes no_new_privs.
 * Returns NULL, or the step that failed with errno.
 */
const char *filter_load(void);

#endif
