/* cuda_on_host.cpp - the fibers behind cuda_on_host.h. */
#include "cuda_on_host.h"

#include <csetjmp>
#include <ucontext.h>
#include <vector>

enum { STACK = 128 << 10, LANES = 32, SLOT_WORDS = 16 };

/* Opens when all that live have arrived. */
struct barrier {
    int live, arrived;
    unsigned turn;
    void look()
    {
        if (arrived == 0 || arrived < live) return;
        arrived = 0;
        turn++;
    }
};

/* A context begins a fiber; later it is entered by longjmp, which unlike swapcontext makes no system call. */
struct fiber {
    ucontext_t context;
    jmp_buf here;
    bool has_begun;
    host_thread self;
    std::vector<char> stack;
    bool ended;
};

static std::vector<fiber> fibers;
static std::vector<barrier> warps;
static barrier block;
static size_t running;
static jmp_buf caller;
static const std::function<void()> *body;
static uint32_t slots[64][LANES][SLOT_WORDS];

const host_thread &host_self()
{
    return fibers[running].self;
}

uint32_t *host_slot(unsigned lane)
{
    return slots[running / LANES][lane];
}

static void wait_at(barrier &b)
{
    const unsigned turn = b.turn;
    b.arrived++;
    b.look();
    while (b.turn == turn)
        if (_setjmp(fibers[running].here) == 0) _longjmp(caller, 1);
}

void host_sync_block()
{
    wait_at(block);
}

void host_sync_warp()
{
    wait_at(warps[running / LANES]);
}

static void run_fiber()
{
    (*body)();
    fibers[running].ended = true;
    block.live--;
    block.look();
    barrier &warp = warps[running / LANES];
    warp.live--;
    warp.look();
    _longjmp(caller, 1);
}

static void enter(fiber &f)
{
    if (_setjmp(caller) != 0) return;
    if (f.has_begun) _longjmp(f.here, 1);
    f.has_begun = true;
    setcontext(&f.context);
}

static void open_block(const host_thread &of, size_t n)
{
    if (fibers.size() < n) fibers.resize(n);
    warps.assign((n + LANES - 1) / LANES, {0, 0, 0});
    block = {(int)n, 0, 0};
    for (size_t i = 0; i < n; i++) {
        fiber &f        = fibers[i];
        f.self          = of;
        f.self.thread.x = (unsigned)i;
        f.ended         = false;
        f.has_begun     = false;
        f.stack.resize(STACK);
        warps[i / LANES].live++;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp   = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        f.context.uc_link          = NULL;
        makecontext(&f.context, run_fiber, 0);
    }
}

static void run_block(size_t n)
{
    for (size_t left = n; left > 0;) {
        left = 0;
        for (running = 0; running < n; running++) {
            if (fibers[running].ended) continue;
            enter(fibers[running]);
            left += !fibers[running].ended;
        }
    }
}

void host_launch(dim3 grid, dim3 threads, const std::function<void()> &kernel)
{
    body = &kernel;
    for (unsigned y = 0; y < grid.y; y++)
        for (unsigned x = 0; x < grid.x; x++) {
            open_block({dim3(), dim3(x, y), threads, grid}, threads.x);
            run_block(threads.x);
        }
}
