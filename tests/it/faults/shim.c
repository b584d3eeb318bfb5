/* Stands between a program and the C library (LD_PRELOAD) and breaks things on command: the wall clock jumps, syncs
 * take long, writes fail, and the process is killed at one chosen call. Only files whose path holds FAULT_PATH are
 * concerned.
 *
 *   FAULT_CONTROL   file of three little-endian 64-bit numbers, read at every call: seconds added to the wall clock,
 *                   milliseconds that a sync takes longer, errno of every write, sync, creation, renaming and removal
 *   FAULT_KILL      "CALL NUMBER before|after": SIGKILL around the NUMBERth CALL, counted from 1
 *
 * mod.rs beside this file compiles it and writes the numbers.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

struct control {
    _Atomic int64_t clock_seconds, sync_ms, error;
};

static struct control nothing;
static struct control *control = &nothing;
static const char *concerned;
static char kill_call[32];
static long kill_number;
static bool kill_after;
static atomic_long calls;

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("FAULT_CONTROL"), *death = getenv("FAULT_KILL");
    char when[8] = "";
    concerned = getenv("FAULT_PATH");
    if (death && sscanf(death, "%31s %ld %7s", kill_call, &kill_number, when) == 3)
        kill_after = strcmp(when, "after") == 0;
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *mapped = mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, fd, 0);
        if (mapped != MAP_FAILED)
            control = mapped;
        close(fd);
    }
}

static bool names(const char *path) { return concerned && strstr(path, concerned); }

static bool holds(int fd) {
    char link[32], path[4096];
    if (!concerned)
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return false;
    path[length] = 0;
    return names(path);
}

static void end(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Whether this is the call to die at; dies if that is before it. */
static bool counted(const char *call) {
    if (strcmp(call, kill_call) != 0 || atomic_fetch_add(&calls, 1) + 1 != kill_number)
        return false;
    if (!kill_after)
        end();
    return true;
}

static bool fails(void) {
    int64_t error = control->error;
    if (error)
        errno = (int)error;
    return error != 0;
}

static void linger(void) {
    int64_t ms = control->sync_ms;
    struct timespec wait = {ms / 1000, ms % 1000 * 1000000};
    if (ms > 0)
        nanosleep(&wait, NULL);
}

/* Defines CALL with PARAMETERS, which concerns us IF, as the next one of that name with ARGUMENTS, after what comes
 * FIRST. */
#define BREAK(TYPE, CALL, PARAMETERS, ARGUMENTS, IF, FIRST)                                                            \
    TYPE CALL PARAMETERS {                                                                                             \
        static TYPE(*next) PARAMETERS;                                                                                 \
        if (!next)                                                                                                     \
            *(void **)&next = dlsym(RTLD_NEXT, #CALL);                                                                 \
        if (!(IF))                                                                                                     \
            return next ARGUMENTS;                                                                                     \
        FIRST;                                                                                                         \
        bool last = counted(#CALL);                                                                                    \
        if (fails())                                                                                                   \
            return -1;                                                                                                 \
        TYPE result = next ARGUMENTS;                                                                                  \
        if (last)                                                                                                      \
            end();                                                                                                     \
        return result;                                                                                                 \
    }

BREAK(int, fdatasync, (int fd), (fd), holds(fd), linger())
BREAK(int, fsync, (int fd), (fd), holds(fd), linger())
BREAK(ssize_t, write, (int fd, const void *bytes, size_t count), (fd, bytes, count), holds(fd), )
BREAK(ssize_t, pwrite64, (int fd, const void *bytes, size_t count, off64_t at), (fd, bytes, count, at), holds(fd), )
BREAK(int, ftruncate64, (int fd, off64_t length), (fd, length), holds(fd), )
BREAK(int, rename, (const char *from, const char *to), (from, to), names(from), )
BREAK(int, unlink, (const char *path), (path), names(path), )

int open64(const char *path, int flags, ...) {
    static int (*next)(const char *, int, ...);
    mode_t mode = 0;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "open64");
    if (flags & O_CREAT) {
        va_list rest;
        va_start(rest, flags);
        mode = va_arg(rest, mode_t);
        va_end(rest);
    }
    if (!(flags & O_CREAT) || !names(path))
        return next(path, flags, mode);
    bool last = counted("open64");
    if (fails())
        return -1;
    int fd = next(path, flags, mode);
    if (last)
        end();
    return fd;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, time);
    if (result == 0 && clock == CLOCK_REALTIME)
        time->tv_sec += control->clock_seconds;
    return result;
}
