// CUDA C++ as plain C++: a block of threads as fibers, run until they meet, in an order that a seed
// draws. The same rules as simt.py: who does not come to a barrier or a shuffle is a fault. Shared
// memory is poisoned before each block, with a guard behind it. Races are found by the order only.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define UNROLL

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

static dim3 threadIdx, blockIdx, gridDim;

namespace simt {

enum Kind { NOWHERE, BARRIER, WARP_BARRIER, SHUFFLE };

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool ended = false;
    Kind waits = NOWHERE;
    uint32_t mask = 0;
    int from = 0;
    uint32_t value = 0, result = 0;
};

struct Fault {
    std::string words;
};

static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int now;
static std::vector<char> shared;
static void (*body)(void*);
static void* body_arguments;
static uint64_t random_state;

static uint64_t draw() {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return random_state >> 33;
}

static std::string broken;  // what a thread did wrong: no exception leaves its stack

static void enter() {
    try {
        body(body_arguments);
    } catch (Fault& fault) {
        broken = fault.words;
    }
    fibers[now].ended = true;
    swapcontext(&fibers[now].context, &scheduler);
}

static uint32_t meet(Kind kind, uint32_t mask, uint32_t value, int from) {
    Fiber& mine = fibers[now];
    mine.waits = kind, mine.mask = mask, mine.value = value, mine.from = from;
    swapcontext(&mine.context, &scheduler);
    return mine.result;
}

// Let the threads of one warp that do not wait run until they do, in random order. Mostly it is the
// warp that ran last, so that warps get as far apart as barriers let them.
static bool run_ready() {
    static int last;
    std::vector<int> warps, ready;
    for (int i = 0; i < (int)fibers.size(); i++)
        if (!fibers[i].ended && fibers[i].waits == NOWHERE)
            if (warps.empty() || warps.back() != i / 32) warps.push_back(i / 32);
    if (warps.empty()) return false;
    int warp = warps[draw() % warps.size()];
    for (int other : warps)
        if (other == last && draw() % 8) warp = last;
    last = warp;
    for (int i = warp * 32; i < warp * 32 + 32; i++)
        if (!fibers[i].ended && fibers[i].waits == NOWHERE) ready.push_back(i);
    for (int i = (int)ready.size() - 1; i > 0; i--) std::swap(ready[i], ready[draw() % (i + 1)]);
    for (int i : ready) {
        now = i;
        threadIdx.x = i;
        swapcontext(&scheduler, &fibers[i].context);
    }
    return true;
}

static void let_warp_meet(int first) {
    for (Kind kind : {WARP_BARRIER, SHUFFLE}) {
        uint32_t here = 0, mask = 0;
        for (int lane = 0; lane < 32; lane++)
            if (fibers[first + lane].waits == kind) {
                if (here && fibers[first + lane].mask != mask)
                    throw Fault{"lanes of a warp name different masks"};
                here |= 1u << lane, mask = fibers[first + lane].mask;
            }
        if (!here) continue;
        for (int lane = 0; lane < 32; lane++)
            if (mask >> lane & 1 && fibers[first + lane].ended)
                throw Fault{"a warp waits for a lane that has ended"};
        if (here != mask) continue;
        for (int lane = 0; lane < 32; lane++) {
            if (!(here >> lane & 1)) continue;
            Fiber& mine = fibers[first + lane];
            if (kind == SHUFFLE) {
                if (!(here >> mine.from & 1)) throw Fault{"a shuffle reads outside of its mask"};
                mine.result = fibers[first + mine.from].value;
            }
        }
        for (int lane = 0; lane < 32; lane++)
            if (here >> lane & 1) fibers[first + lane].waits = NOWHERE;
    }
}

static void let_meet() {
    int running = 0, at_barrier = 0;
    for (int first = 0; first < (int)fibers.size(); first += 32) let_warp_meet(first);
    for (Fiber& fiber : fibers) {
        running += !fiber.ended;
        at_barrier += fiber.waits == BARRIER;
    }
    if (!running || at_barrier < running) return;
    if (running < (int)fibers.size()) throw Fault{"a barrier is not reached by all threads"};
    for (Fiber& fiber : fibers) fiber.waits = NOWHERE;
}

static const int GUARD = 4096, STACK = 1 << 16;

static void run_block(int threads, int shared_bytes) {
    shared.assign(shared_bytes + GUARD, (char)0xff);
    fibers = std::vector<Fiber>(threads);
    for (Fiber& fiber : fibers) {
        fiber.stack.resize(STACK);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
    }
    broken = "";
    while (run_ready()) {
        if (!broken.empty()) throw Fault{broken};
        let_meet();
    }
    for (Fiber& fiber : fibers)
        if (!fiber.ended) throw Fault{"threads wait for each other"};
    for (int i = shared_bytes; i < (int)shared.size(); i++)
        if (shared[i] != (char)0xff) throw Fault{"shared memory is written past its end"};
}

// A launch, a block after another in random order. Empty, or what was wrong.
static std::string launch(dim3 grid, int threads, int shared_bytes, uint64_t seed,
                          void (*kernel)(void*), void* arguments) {
    gridDim = grid, random_state = seed, body = kernel, body_arguments = arguments;
    std::vector<dim3> blocks;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) blocks.push_back({x, y, z});
    for (int i = (int)blocks.size() - 1; i > 0; i--)
        std::swap(blocks[i], blocks[draw() % (i + 1)]);
    try {
        for (dim3 block : blocks) {
            blockIdx = block;
            run_block(threads, shared_bytes);
        }
    } catch (Fault& fault) {
        return fault.words;
    }
    return "";
}

template <typename T>
static uint32_t bits_of(T value) {
    static_assert(sizeof(T) == 4);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

}  // namespace simt

static inline void __syncthreads() { simt::meet(simt::BARRIER, 0, 0, 0); }
static inline void __syncwarp() { simt::meet(simt::WARP_BARRIER, 0xffffffffu, 0, 0); }

template <typename T>
static T __shfl_xor_sync(uint32_t mask, T value, int bits) {
    int from = (threadIdx.x % 32) ^ bits;
    uint32_t found = simt::meet(simt::SHUFFLE, mask, simt::bits_of(value), from);
    T result;
    memcpy(&result, &found, 4);
    return result;
}

// What prelude.cuh has instructions for.

static inline void* shared_memory() { return simt::shared.data(); }
static inline word as_word(float x) { return simt::bits_of(x); }
static inline float as_float(word w) {
    float x;
    memcpy(&x, &w, 4);
    return x;
}
static inline float exp2_of(float x) { return exp2f(x); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

static inline Quad load4(const word* p) {
    if ((uintptr_t)p % 16) throw simt::Fault{"a load of 16 bytes is not aligned"};
    return *(const Quad*)p;
}

static inline void load2(word w[2], const word* p) {
    if ((uintptr_t)p % 8) throw simt::Fault{"a load of 8 bytes is not aligned"};
    w[0] = p[0], w[1] = p[1];
}

static inline float f16_of(half_word h) {
    _Float16 x;
    memcpy(&x, &h, 2);
    return (float)x;
}
static inline word f16_pair(float low, float high) {
    _Float16 both[2] = {(_Float16)low, (_Float16)high};
    word w;
    memcpy(&w, both, 4);
    return w;
}
static inline word bf16_bits(float x) {
    word w = as_word(x);
    return x != x ? 0x7fff : (w + 0x7fff + (w >> 16 & 1)) >> 16;
}
static inline word bf16_pair(float low, float high) {
    return bf16_bits(high) << 16 | bf16_bits(low);
}

template <int KIND>
static float half_of(word w, int half) {
    return KIND == F16 ? f16_of((half_word)(w >> 16 * half))
                       : as_float(half ? w & 0xffff0000u : w << 16);
}

template <int KIND>
static void multiply_add(float c[4], const word a[4], const word b[2]) {
    static word all_a[32][32][4], all_b[32][32][2];  // [warp][lane]
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    memcpy(all_a[warp][lane], a, 16);
    memcpy(all_b[warp][lane], b, 8);
    __syncwarp();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) {
            int column = lane % 4 * 2 + i % 2, holder = k % 8 / 2;
            word x = all_a[warp][lane / 4 * 4 + holder][i / 2 + k / 8 * 2];
            word y = all_b[warp][column * 4 + holder][k / 8];
            c[i] += half_of<KIND>(x, k % 2) * half_of<KIND>(y, k % 2);
        }
    __syncwarp();
}

static void load_columns(word b[2], const half_word* block, int stride) {
    int column = threadIdx.x % 32 / 4, row = threadIdx.x % 4 * 2;
    for (int i = 0; i < 2; i++) {
        const half_word* at = block + (row + 8 * i) * stride + column;
        b[i] = (word)at[stride] << 16 | at[0];
    }
}
