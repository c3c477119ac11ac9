// An LD_PRELOAD library that fails, kills at, or records file operations below a directory.
//   NLAC_SHIM_ROOT   the directory; operations on other paths pass through and are not counted
//   NLAC_SHIM_FAULT  KIND:N:ERRNO:MODE. The Nth operation of KIND (write, fsync, rename, open, mkdir,
//                    ftruncate, unlink, link; from 1) fails with ERRNO. MODE "once"; "onwards": all later
//                    ones of the kind fail too; "torn": a write stops halfway, and the next one fails.
//   NLAC_SHIM_KILL   N: SIGKILL at the Nth operation of any kind; half of a write is done
//   NLAC_SHIM_LOG    a file to which every operation is appended, with its data, and what the process prints
//   NLAC_SHIM_COUNTS a file to which a line is appended at exit: the number of operations of each kind, in
//                    the order above, and the directory
// A process that attacks several directories removes a file named "nlac-shim:FAULT:DIRECTORY" before each:
// nothing is removed, but the fault (which may be empty) and the directory change, counting begins anew, and
// the counts so far are appended as at exit.
// Operations are serialized by a mutex, so that the log has their order. A record of the log is a
// struct record, then the path, the second path of a rename or link, and the data of a write. It is
// written before the operation, so that of a killed process only the last one may not have happened. A
// CANCEL record follows if it failed. PRINT has what was written to the standard output.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE, FSYNC, RENAME, OPEN, MKDIR, FTRUNCATE, UNLINK, LINK, KINDS, CANCEL = KINDS, PRINT };
static const char* const kind_names[KINDS] = {"write", "fsync",     "rename", "open",
                                              "mkdir", "ftruncate", "unlink", "link"};

struct record {
  uint32_t kind, path, second, created;
  uint64_t offset, data;
};

#define MAX_FD 65536
static char* fd_paths[MAX_FD];
static struct stat fd_files[MAX_FD];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static int log_fd = -1;
static long counts[KINDS], total, kill_at;
static int fault_kind = -1, fault_errno;
static long fault_at;
static char fault_mode[16];

static void set_fault(const char* fault) {
  fault_kind = -1;
  char kind[16];
  if (sscanf(fault, "%15[a-z]:%ld:%d:%15[a-z]", kind, &fault_at, &fault_errno, fault_mode) != 4) return;
  for (int i = 0; i < KINDS; ++i)
    if (strcmp(kind, kind_names[i]) == 0) fault_kind = i;
}

__attribute__((constructor)) static void start(void) {
  const char* given = getenv("NLAC_SHIM_ROOT");
  if (given == NULL) return;
  snprintf(root, sizeof(root), "%s", given);
  const char* fault = getenv("NLAC_SHIM_FAULT");
  if (fault != NULL) set_fault(fault);
  const char* at = getenv("NLAC_SHIM_KILL");
  if (at != NULL) kill_at = atol(at);
  const char* log = getenv("NLAC_SHIM_LOG");
  if (log != NULL)
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

__attribute__((destructor)) static void tell_counts(void) {
  const char* path = getenv("NLAC_SHIM_COUNTS");
  FILE* file = path == NULL || root[0] == 0 ? NULL : fopen(path, "a");
  if (file == NULL) return;
  for (int i = 0; i < KINDS; ++i) fprintf(file, "%ld ", counts[i]);
  fprintf(file, "%s\n", root);
  fclose(file);
}

// `order` is "FAULT:DIRECTORY"; the directory begins with a slash, which no fault contains.
static void turn_to(const char* order) {
  const char* directory = strchr(order, '/');
  if (directory == NULL) return;
  pthread_mutex_lock(&mutex);
  tell_counts();
  memset(counts, 0, sizeof(counts));
  total = 0;
  set_fault(order);
  snprintf(root, sizeof(root), "%s", directory);
  pthread_mutex_unlock(&mutex);
}

static int below(const char* path) {
  const size_t length = strlen(root);
  return length > 0 && path != NULL && strncmp(path, root, length) == 0 &&
         (path[length] == '/' || path[length] == 0);
}

static void forget(int fd) {
  if (fd < 0 || fd >= MAX_FD) return;
  free(fd_paths[fd]);
  fd_paths[fd] = NULL;
}

// Whether `fd` is a file below the root. Node closes files by system calls that are not seen here, so
// the number may belong to another file or to a socket by now.
static int is_below(int fd) {
  if (fd < 0 || fd >= MAX_FD || fd_paths[fd] == NULL) return 0;
  pthread_mutex_lock(&mutex);
  struct stat found;
  if (fstat(fd, &found) != 0 || found.st_ino != fd_files[fd].st_ino || found.st_dev != fd_files[fd].st_dev)
    forget(fd);
  const int result = fd_paths[fd] != NULL;
  pthread_mutex_unlock(&mutex);
  return result;
}

// The open file `from` is called `to` now, or has no name (NULL).
static void renamed(const char* from, const char* to) {
  for (int fd = 0; fd < MAX_FD; ++fd) {
    if (fd_paths[fd] == NULL) continue;
    if (to != NULL && strcmp(fd_paths[fd], to) == 0) forget(fd);  // replaced
    else if (strcmp(fd_paths[fd], from) == 0) {
      forget(fd);
      if (to != NULL) fd_paths[fd] = strdup(to);
    }
  }
}

// Counts an operation. Returns 0 to go on, 1 to fail with errno set, 2 to do the first half of it.
static int enter(enum kind kind) {
  ++total;
  ++counts[kind];
  if (kill_at > 0 && total == kill_at) {
    if (kind == WRITE) return 2;
    syscall(SYS_kill, getpid(), SIGKILL);
  }
  if ((int)kind != fault_kind || counts[kind] < fault_at) return 0;
  const int torn = strcmp(fault_mode, "torn") == 0;
  if (torn && counts[kind] == fault_at) return 2;
  if (counts[kind] > fault_at + torn && strcmp(fault_mode, "onwards") != 0) return 0;
  errno = fault_errno;
  return 1;
}

static void note(enum kind kind, const char* path, const char* second, int created, uint64_t offset,
                 const struct iovec* parts, int count, size_t bytes) {
  if (log_fd < 0) return;
  const int saved = errno;
  struct record header = {
      kind, (uint32_t)strlen(path), second ? (uint32_t)strlen(second) : 0, (uint32_t)created, offset, bytes};
  syscall(SYS_write, log_fd, &header, sizeof(header));
  syscall(SYS_write, log_fd, path, header.path);
  if (second) syscall(SYS_write, log_fd, second, header.second);
  for (int i = 0; i < count && bytes > 0; ++i) {
    const size_t part = parts[i].iov_len < bytes ? parts[i].iov_len : bytes;
    for (size_t done = 0; done < part;)
      done += (size_t)syscall(SYS_write, log_fd, (const char*)parts[i].iov_base + done, part - done);
    bytes -= part;
  }
  errno = saved;
}

static void cancel(void) { note(CANCEL, "", NULL, 0, 0, NULL, 0, 0); }

static int open_at(int directory, const char* path, int flags, mode_t mode) {
  if (directory != AT_FDCWD || !below(path)) return (int)syscall(SYS_openat, directory, path, flags, mode);
  pthread_mutex_lock(&mutex);
  int fd = -1;
  if (enter(OPEN) != 1) {
    const int created = (flags & O_CREAT) && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0;
    note(OPEN, path, NULL, created | ((flags & O_TRUNC) ? 2 : 0), 0, NULL, 0, 0);
    fd = (int)syscall(SYS_openat, directory, path, flags, mode);
    if (fd < 0) cancel();
    if (fd >= 0 && fd < MAX_FD) {
      forget(fd);
      if (fstat(fd, &fd_files[fd]) == 0) fd_paths[fd] = strdup(path);
    }
  }
  pthread_mutex_unlock(&mutex);
  return fd;
}

#define MODE_OF(flags)                   \
  mode_t mode = 0;                       \
  if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list rest;                        \
    va_start(rest, flags);               \
    mode = (mode_t)va_arg(rest, int);    \
    va_end(rest);                        \
  }

int open(const char* path, int flags, ...) {
  MODE_OF(flags)
  return open_at(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE_OF(flags)
  return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
int openat(int directory, const char* path, int flags, ...) {
  MODE_OF(flags)
  return open_at(directory, path, flags, mode);
}
int openat64(int directory, const char* path, int flags, ...) {
  MODE_OF(flags)
  return open_at(directory, path, flags | O_LARGEFILE, mode);
}

int close(int fd) {
  pthread_mutex_lock(&mutex);
  forget(fd);
  const int result = (int)syscall(SYS_close, fd);
  pthread_mutex_unlock(&mutex);
  return result;
}

// `at` is -1 for the file's own position.
static ssize_t raw_write(int fd, const struct iovec* parts, int count, off_t at) {
  return at < 0 ? syscall(SYS_writev, fd, parts, count) : syscall(SYS_pwritev, fd, parts, count, at, 0L);
}

static ssize_t print(const struct iovec* parts, int count) {
  pthread_mutex_lock(&mutex);
  const ssize_t done = raw_write(STDOUT_FILENO, parts, count, -1);
  if (done > 0) note(PRINT, "", NULL, 0, 0, parts, count, (size_t)done);
  pthread_mutex_unlock(&mutex);
  return done;
}

static ssize_t write_parts(int fd, const struct iovec* parts, int count, off_t at) {
  if (fd == STDOUT_FILENO && log_fd >= 0) return print(parts, count);
  if (!is_below(fd)) return raw_write(fd, parts, count, at);
  pthread_mutex_lock(&mutex);
  off_t offset = at;
  struct stat status;
  if (at < 0) {
    if (fcntl(fd, F_GETFL) & O_APPEND)
      offset = fstat(fd, &status) == 0 ? status.st_size : 0;
    else
      offset = lseek(fd, 0, SEEK_CUR);
  }
  ssize_t done = -1;
  const int how = enter(WRITE);
  if (how != 1) {
    struct iovec first = parts[0];
    if (how == 2) {
      first.iov_len /= 2;
      parts = &first;
      count = 1;
    }
    size_t bytes = 0;
    for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
    note(WRITE, fd_paths[fd], NULL, 0, (uint64_t)offset, parts, count, bytes);
    done = raw_write(fd, parts, count, at);
    if (how == 2 && kill_at > 0) syscall(SYS_kill, getpid(), SIGKILL);
    if (done != (ssize_t)bytes) {
      cancel();
      if (done > 0) note(WRITE, fd_paths[fd], NULL, 0, (uint64_t)offset, parts, count, (size_t)done);
    }
  }
  pthread_mutex_unlock(&mutex);
  return done;
}

ssize_t write(int fd, const void* data, size_t bytes) {
  const struct iovec part = {(void*)data, bytes};
  return write_parts(fd, &part, 1, -1);
}
ssize_t writev(int fd, const struct iovec* parts, int count) { return write_parts(fd, parts, count, -1); }
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
  const struct iovec part = {(void*)data, bytes};
  return write_parts(fd, &part, 1, at);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t at) { return pwrite(fd, data, bytes, at); }
ssize_t pwritev(int fd, const struct iovec* parts, int count, off_t at) {
  return write_parts(fd, parts, count, at);
}
ssize_t pwritev64(int fd, const struct iovec* parts, int count, off64_t at) {
  return write_parts(fd, parts, count, at);
}

static int on_descriptor(enum kind kind, int fd, long number, long argument) {
  if (!is_below(fd)) return (int)syscall(number, fd, argument);
  pthread_mutex_lock(&mutex);
  int result = -1;
  if (enter(kind) != 1) {
    note(kind, fd_paths[fd], NULL, 0, (uint64_t)argument, NULL, 0, 0);
    result = (int)syscall(number, fd, argument);
    if (result != 0) cancel();
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

int fsync(int fd) { return on_descriptor(FSYNC, fd, SYS_fsync, 0); }
int fdatasync(int fd) { return on_descriptor(FSYNC, fd, SYS_fdatasync, 0); }
int ftruncate(int fd, off_t size) { return on_descriptor(FTRUNCATE, fd, SYS_ftruncate, size); }
int ftruncate64(int fd, off64_t size) { return on_descriptor(FTRUNCATE, fd, SYS_ftruncate, size); }

static int on_path(enum kind kind, const char* path, const char* second, long number, long a, long b, long c,
                   long d) {
  // The 0 is the flags of renameat2 and linkat.
  if (!below(path)) return (int)syscall(number, a, b, c, d, 0L);
  pthread_mutex_lock(&mutex);
  int result = -1;
  if (enter(kind) != 1) {
    note(kind, path, second, 0, 0, NULL, 0, 0);
    result = (int)syscall(number, a, b, c, d, 0L);
    if (result != 0) cancel();
    if (result == 0 && kind == RENAME) renamed(path, second);
    if (result == 0 && kind == UNLINK) renamed(path, NULL);
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

int rename(const char* from, const char* to) {
  return on_path(RENAME, from, to, SYS_renameat2, AT_FDCWD, (long)from, AT_FDCWD, (long)to);
}
int link(const char* from, const char* to) {
  return on_path(LINK, from, to, SYS_linkat, AT_FDCWD, (long)from, AT_FDCWD, (long)to);
}
int mkdir(const char* path, mode_t mode) {
  return on_path(MKDIR, path, NULL, SYS_mkdirat, AT_FDCWD, (long)path, (long)mode, 0);
}
int unlink(const char* path) {
  static const char order[] = "nlac-shim:";
  if (strncmp(path, order, strlen(order)) == 0) {
    turn_to(path + strlen(order));
    return 0;
  }
  return on_path(UNLINK, path, NULL, SYS_unlinkat, AT_FDCWD, (long)path, 0, 0);
}
int rmdir(const char* path) {
  return on_path(UNLINK, path, NULL, SYS_unlinkat, AT_FDCWD, (long)path, AT_REMOVEDIR, 0);
}
int remove(const char* path) {
  const int result = unlink(path);
  return result != 0 && (errno == EISDIR || errno == EPERM) ? rmdir(path) : result;
}
