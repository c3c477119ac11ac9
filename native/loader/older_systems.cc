// For addons that are linked on a newer system than the oldest one that they load on
// (cmake/older_systems.cmake): the C library's functions by the version that they have had since
// the first glibc of this processor. The linker sends each call here (--wrap). `std::` parts that
// are newer than the oldest libstdc++ are linked statically instead.
#if defined(__x86_64__)
#define NLAC_FIRST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define NLAC_FIRST "GLIBC_2.17"
#else
#error "the first glibc of this processor is not known"
#endif

// Declares `first_NAME` as the first version of the C library's NAME. No header of the C library is
// included, because it may declare a newer version.
#define NLAC_FIRST_VERSION(type, name, ...)                 \
  extern "C" type first_##name(__VA_ARGS__);                \
  __asm__(".symver first_" #name "," #name "@" NLAC_FIRST); \
  extern "C" type __wrap_##name(__VA_ARGS__)

// Since 2.32; std::shared_ptr reads it, and counts without atomic operations if it is not 0.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}

#ifdef NLAC_LOADER
// glibc 2.34 moved these from libdl to libc.
NLAC_FIRST_VERSION(void*, dlopen, const char* file, int flags) { return first_dlopen(file, flags); }
NLAC_FIRST_VERSION(char*, dlerror, void) { return first_dlerror(); }
#else
#include <sys/syscall.h>
#include <unistd.h>

// Since 2.29 these set errno without a wrapper; the numbers are the same.
NLAC_FIRST_VERSION(double, exp, double x) { return first_exp(x); }
NLAC_FIRST_VERSION(double, exp2, double x) { return first_exp2(x); }
NLAC_FIRST_VERSION(double, log, double x) { return first_log(x); }
NLAC_FIRST_VERSION(double, pow, double x, double y) { return first_pow(x, y); }

// 2.34 moved these from libpthread to libc. Their arguments pass through.
NLAC_FIRST_VERSION(int, pthread_once, int* control, void (*body)(void)) {
  return first_pthread_once(control, body);
}
NLAC_FIRST_VERSION(int, pthread_key_create, unsigned* key, void (*destroy)(void*)) {
  return first_pthread_key_create(key, destroy);
}
NLAC_FIRST_VERSION(int, pthread_key_delete, unsigned key) { return first_pthread_key_delete(key); }
NLAC_FIRST_VERSION(void*, pthread_getspecific, unsigned key) { return first_pthread_getspecific(key); }
NLAC_FIRST_VERSION(int, pthread_setspecific, unsigned key, const void* value) {
  return first_pthread_setspecific(key, value);
}
NLAC_FIRST_VERSION(int, pthread_rwlock_rdlock, void* lock) { return first_pthread_rwlock_rdlock(lock); }
NLAC_FIRST_VERSION(int, pthread_rwlock_wrlock, void* lock) { return first_pthread_rwlock_wrlock(lock); }
NLAC_FIRST_VERSION(int, pthread_rwlock_unlock, void* lock) { return first_pthread_rwlock_unlock(lock); }

// 2.33 made this a function of its own. `struct stat` is the kernel's on the processors above.
extern "C" int __wrap_fstat(int file, void* into) {
  return static_cast<int>(::syscall(SYS_fstat, file, into));
}
#endif
