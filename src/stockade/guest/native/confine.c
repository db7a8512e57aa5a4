#define _GNU_SOURCE
#include "confine.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MUST(call, step)                                                                           \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            return step;                                                                           \
    } while (0)

static const char *make_folder(const char *path, uid_t owner, mode_t mode)
{
    MUST(mkdir(path, 0700), path);
    MUST(chmod(path, mode), path);
    MUST(chown(path, owner, owner), path);
    return NULL;
}

/* The root and two folders of our own must not count against the guest's ceiling. */
static void write_scratch_options(char *options, size_t size, uint64_t bytes, uint64_t inodes)
{
    const int length = snprintf(options, size, "mode=755,size=%llu", (unsigned long long)bytes);

    if (inodes)
        snprintf(options + length, size - (size_t)length, ",nr_inodes=%llu",
                 (unsigned long long)inodes + 3);
}

const char *confine_scratch_again(uint64_t bytes, uint64_t inodes)
{
    char options[128];

    write_scratch_options(options, sizeof options, bytes, inodes);
    MUST(mount(NULL, "/workspace", NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, options),
         "set the ceilings of the scratch mount");
    return NULL;
}

const char *confine_scratch(uint64_t bytes, uint64_t inodes, uid_t owner)
{
    const char *failed;
    char options[128];

    write_scratch_options(options, sizeof options, bytes, inodes);
    MUST(mount("scratch", "/run", "tmpfs", MS_NOSUID | MS_NODEV, options), "mount tmpfs");
    failed = make_folder("/run/workspace", owner, 0700);
    if (!failed)
        failed = make_folder("/run/tmp", owner, 01777);
    if (failed)
        return failed;
    MUST(mount("/run/workspace", "/workspace", NULL, MS_BIND, NULL), "mount /workspace");
    MUST(mount("/run/tmp", "/tmp", NULL, MS_BIND, NULL), "mount /tmp");
    MUST(umount2("/run", MNT_DETACH), "detach the scratch mount");
    return NULL;
}

const char *confine_bounding_set(void)
{
    for (int capability = 0; prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0; capability++)
        ;
    if (errno != EINVAL) /* the first number the kernel does not know ends the loop */
        return "drop the bounding set";
    return NULL;
}

const char *confine_rights(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2];

    memset(none, 0, sizeof none);
    MUST(syscall(SYS_capset, &header, none), "capset");
    /* EINVAL: a kernel without any, as gVisor's. */
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL)
        return "clear ambient capabilities";
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    return NULL;
}
