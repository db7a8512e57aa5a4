#define _GNU_SOURCE
#include "filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include "seccomp_x86_64.h"
#elif defined(__aarch64__)
#include "seccomp_aarch64.h"
#else
#error "no seccomp filter for this architecture"
#endif

const char *filter_load(void)
{
    const struct sock_fprog program = {
        .len = sizeof seccomp_filter / sizeof seccomp_filter[0],
        .filter = (struct sock_filter *)seccomp_filter,
    };

    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
        return "load the seccomp filter";
    return NULL;
}
