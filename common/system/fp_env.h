/* fp_env.h - the floating-point environment that Penstock computes in.
 *
 * A program may set its own: with -Ofast it flushes denormals to zero in every thread, another rounds up, or traps.
 * A server does not, so the same update would give other bits in a worker.  So all our arithmetic runs in one
 * environment: round to nearest, denormals kept, no traps.
 *
 *   FP_ENV_OURS();        first line of a public function: ours until it returns, then the program's again
 *   fp_env_set_ours();    first line of a thread of ours, and of a process of ours
 *
 * A thread inherits the environment of its creator. Covered: x86-64 (MXCSR) and AArch64 (FPCR); elsewhere nothing
 * is changed.
 * Cost  one register read if the program has changed nothing.
 */
#ifndef COMMON_FP_ENV_H
#define COMMON_FP_ENV_H

#include <stdint.h>

#if defined(__x86_64__)
enum {
    FP_ENV_OWN   = 0x1f80,
    FP_ENV_FLAGS = 0x3f
}; /* all exceptions masked; ignores the status flags */

static inline uint64_t fp_env_read(void)
{
    return __builtin_ia32_stmxcsr();
}

static inline void fp_env_write(uint64_t env)
{
    __builtin_ia32_ldmxcsr((uint32_t)env);
}
#elif defined(__aarch64__)
enum { FP_ENV_OWN = 0, FP_ENV_FLAGS = 0 };

static inline uint64_t fp_env_read(void)
{
    uint64_t env;
    __asm__ volatile("mrs %0, fpcr" : "=r"(env));
    return env;
}

static inline void fp_env_write(uint64_t env)
{
    __asm__ volatile("msr fpcr, %0" ::"r"(env));
}
#else
enum { FP_ENV_OWN = 0, FP_ENV_FLAGS = 0 };

static inline uint64_t fp_env_read(void)
{
    return FP_ENV_OWN;
}

static inline void fp_env_write(uint64_t env)
{
    (void)env;
}
#endif

static inline uint64_t fp_env_set_ours(void)
{
    const uint64_t env = fp_env_read();
    if ((env & ~(uint64_t)FP_ENV_FLAGS) != FP_ENV_OWN) fp_env_write(FP_ENV_OWN);
    return env;
}

static inline void fp_env_restore(const uint64_t *env)
{
    if (fp_env_read() != *env) fp_env_write(*env);
}

#define FP_ENV_OURS()                                                                              \
    __attribute__((cleanup(fp_env_restore), unused)) const uint64_t fp_env_of_program =            \
        fp_env_set_ours()

#endif
