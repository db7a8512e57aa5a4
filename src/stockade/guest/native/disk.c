#define _GNU_SOURCE
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#define BALLAST SCRATCH "/ballast"

#define MUST(call, step)                                                                           \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            return step;                                                                           \
    } while (0)

enum {
    /* A file in many pieces takes blocks for the list of them: then once more. */
    MOST_ROUNDS = 64,
    /* And the guest's may: one block of such lists is left for so many of content. */
    BLOCKS_PER_LIST = 256,
};

bool disk_is_there(void)
{
    struct statfs scratch;

    return statfs(SCRATCH, &scratch) == 0 && scratch.f_type == EXT4_SUPER_MAGIC;
}

static const char *make_folder(const char *path, uid_t owner, mode_t mode)
{
    MUST(mkdir(path, 0700), path);
    MUST(chmod(path, mode), path);
    MUST(chown(path, owner, owner), path);
    return NULL;
}

/* mke2fs rounds their number up, to whole blocks of each group's table. */
static const char *take_up_inodes(int folder, uint64_t left)
{
    struct statvfs disk;

    MUST(statvfs(SCRATCH, &disk), "look at the scratch disk");
    errno = ENOSPC;
    if (disk.f_ffree < left)
        return "find room for so many files on the scratch disk";
    for (uint64_t more = disk.f_ffree - left; more; more--) {
        char name[24];
        int file;

        snprintf(name, sizeof name, "%llu", (unsigned long long)more);
        file = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        MUST(file, "take up files of the scratch disk");
        close(file);
    }
    return NULL;
}

static const char *take_up_blocks(int file, uint64_t bytes)
{
    uint64_t size = 0;

    for (int round = 0; round < MOST_ROUNDS; round++) {
        struct statvfs disk;
        uint64_t left, block;

        MUST(statvfs(SCRATCH, &disk), "look at the scratch disk");
        block = disk.f_frsize;
        left = (bytes + block - 1) / block;
        left += 1 + left / BLOCKS_PER_LIST;
        if (disk.f_bavail == left)
            return NULL;
        if (disk.f_bavail > left) {
            const uint64_t more = (disk.f_bavail - left) * block;

            MUST(fallocate(file, 0, (off_t)size, (off_t)more), "take up the scratch disk");
            size += more;
        } else {
            const uint64_t less = (left - disk.f_bavail) * block;

            if (less > size)
                break;
            size -= less;
            MUST(ftruncate(file, (off_t)size), "take up less of the scratch disk");
        }
    }
    errno = ENOSPC;
    return "make the scratch disk of that size";
}

const char *disk_confine(uint64_t bytes, uint64_t inodes, uid_t owner)
{
    const char *failed = make_folder(SCRATCH "/workspace", owner, 0700);
    int folder, file;

    if (!failed)
        failed = make_folder(SCRATCH "/tmp", owner, 01777);
    if (!failed)
        failed = make_folder(BALLAST, 0, 0700);
    if (failed)
        return failed;
    folder = open(BALLAST, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    MUST(folder, "open the ballast");
    file = openat(folder, "blocks", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    MUST(file, "make the ballast");
    failed = take_up_inodes(folder, inodes);
    if (!failed)
        failed = take_up_blocks(file, bytes);
    close(file);
    close(folder);
    if (failed)
        return failed;
    /*
     * From here on blocks are taken when a file is written: what is full is told to who writes,
     * and nothing is counted twice. Not before: the ballast would begin anywhere, and what is
     * left would be in pieces (ext4_inode_to_goal_block()).
     */
    MUST(mount(NULL, SCRATCH, NULL, MS_REMOUNT | MS_NOSUID | MS_NODEV, "nodelalloc"),
         "let blocks be taken at once");
    MUST(mount(SCRATCH "/workspace", "/workspace", NULL, MS_BIND, NULL), "mount /workspace");
    MUST(mount(SCRATCH "/tmp", "/tmp", NULL, MS_BIND, NULL), "mount /tmp");
    MUST(umount2(SCRATCH, MNT_DETACH), "detach the scratch disk");
    return NULL;
}
