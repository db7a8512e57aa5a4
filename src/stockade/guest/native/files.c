#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *file_explain(int error)
{
    switch (error) {
    case ELOOP:
        return "is a symbolic link, or lies behind one";
    case ENXIO:
        return "is not a regular file (a socket, or a FIFO without a reader)";
    case EXDEV:
        return "leads out of the workspace";
    default:
        return strerrordesc_np(error);
    }
}

/*
 * A folder that is no link to one, as a descriptor with O_PATH. It is opened as whatever it is
 * and looked at then: gVisor's kernel follows a link where O_DIRECTORY is asked for, whether or
 * not O_NOFOLLOW is.
 */
static int open_folder(int parent, const char *name)
{
    const int folder = openat(parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat status;
    int error = 0;

    if (folder < 0)
        return -1;
    if (fstat(folder, &status) < 0)
        error = errno;
    else if (!S_ISDIR(status.st_mode))
        error = S_ISLNK(status.st_mode) ? ELOOP : ENOTDIR;
    if (!error)
        return folder;
    close(folder);
    errno = error;
    return -1;
}

static int open_part(int parent, const char *name, int flags, unsigned mode)
{
    int folder, opened, error;

    if (!(flags & O_DIRECTORY))
        return openat(parent, name, flags | O_NOFOLLOW | O_CLOEXEC, mode);
    folder = open_folder(parent, name);
    if (folder < 0 || flags & O_PATH)
        return folder;
    opened = openat(folder, ".", flags | O_CLOEXEC);
    error = errno;
    close(folder);
    errno = error;
    return opened;
}

/* openat2(2) for a kernel that has none, as gVisor's: by each part of the path, no link taken. */
static int open_by_parts(int root, const char *path, uint64_t flags, unsigned mode)
{
    int folder = dup(root), opened = -1;

    while (folder >= 0) {
        const size_t length = strcspn(path, "/");
        const bool last = path[length] == '\0';
        char part[256];
        int error;

        errno = length >= sizeof part ? ENAMETOOLONG : length == 0 ? EXDEV : 0;
        if (errno == 0) {
            memcpy(part, path, length);
            part[length] = '\0';
            errno = strcmp(part, "..") == 0 ? EXDEV : 0;
        }
        if (errno == 0)
            opened = open_part(folder, part, last ? (int)flags : O_PATH | O_DIRECTORY,
                               last ? mode : 0);
        error = errno;
        close(folder);
        errno = error;
        if (last || opened < 0)
            break;
        folder = opened;
        opened = -1;
        path += length + 1;
    }
    return opened;
}

static int open_beneath(int root, const char *path, uint64_t flags, unsigned mode)
{
    const struct open_how how = {
        .flags = flags | O_CLOEXEC,
        .mode = mode,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
    };

    const int file = (int)syscall(SYS_openat2, root, path, &how, sizeof how);

    return file < 0 && errno == ENOSYS ? open_by_parts(root, path, flags, mode) : file;
}

static int open_root(const char *root)
{
    return open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static const char *reject(const struct stat *status)
{
    if (S_ISDIR(status->st_mode))
        return "is a folder";
    if (!S_ISREG(status->st_mode))
        return "is not a regular file (a FIFO, a device or a socket)";
    /* A second link may be a name outside of what the caller sees as the workspace. */
    if (status->st_nlink != 1)
        return "has more than one link; only files with one are read or written";
    return NULL;
}

/* Closes what is no plain regular file. */
static int require_regular(int file, struct stat *status, const char **why)
{
    if (file < 0) {
        *why = file_explain(errno);
        return -1;
    }
    *why = fstat(file, status) < 0 ? file_explain(errno) : reject(status);
    if (!*why)
        return file;
    close(file);
    return -1;
}

/*
 * A descriptor of the folder that holds `path`'s last component, which *name is set to.
 * Each folder on the way is made where it is absent, and entered by itself.
 */
static int make_parent(const char *root, char *path, char **name)
{
    int folder = open_root(root);

    *name = path;
    for (char *slash; folder >= 0 && (slash = strchr(*name, '/')); *name = slash + 1) {
        int deeper;

        *slash = '\0';
        if (mkdirat(folder, *name, 0755) < 0 && errno != EEXIST)
            deeper = -1;
        else
            deeper = open_beneath(folder, *name, O_PATH | O_DIRECTORY, 0);
        close(folder);
        folder = deeper;
    }
    return folder;
}

int file_open_for_writing(const char *root, const char *path, unsigned mode, const char **why)
{
    char copy[4096], *name;
    struct stat status;
    int folder, file = -1;

    if (strlen(path) >= sizeof copy) {
        *why = "the path is too long";
        return -1;
    }
    strcpy(copy, path);
    folder = make_parent(root, copy, &name);
    /* O_NONBLOCK: a FIFO must not hold the agent for ever. */
    if (folder >= 0)
        file = open_beneath(folder, name, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY, mode & 0777);
    file = require_regular(file, &status, why);
    if (folder >= 0)
        close(folder);
    if (file >= 0 && (ftruncate(file, 0) < 0 || fchmod(file, mode & 0777) < 0)) {
        *why = file_explain(errno);
        close(file);
        return -1;
    }
    return file;
}

int file_open_for_reading(const char *path, uint64_t *size, const char **why)
{
    struct stat status;
    const int root = open_root(WORKSPACE);
    const int file = require_regular(
        root < 0 ? -1 : open_beneath(root, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0), &status, why);

    if (root >= 0)
        close(root);
    if (file >= 0)
        *size = (uint64_t)status.st_size;
    return file;
}

int folder_open(const char *path, const char **why)
{
    const int root = open_root(WORKSPACE);
    const int folder =
        root < 0 ? -1 : open_beneath(root, *path ? path : ".", O_RDONLY | O_DIRECTORY, 0);

    if (folder < 0)
        *why = file_explain(errno);
    if (root >= 0)
        close(root);
    return folder;
}
