// What CUDA C++ kernels are written in: words, warps, tensor cores. One source, two meanings: on a
// GPU the instructions below, in tests the plain C++ of the header that SIMULATED names.
//
// KV, X: formats of keys and values, and of activations; G: query heads of a kv head; D: head dim.

#define F32 0
#define F16 1
#define BF16 2
#define INT8 3
#define FP8 4
#define INT4 5

typedef unsigned int word;
typedef unsigned short half_word;
typedef long long i64;

struct alignas(16) Quad {
    word w[4];
};

#define PAGE_TOKENS 16
#define WARPS 4
#define THREADS (32 * WARPS)
#define LEAST -1e30f
#define ALL 0xffffffffu

#ifdef SIMULATED
#include SIMULATED
#else

#define UNROLL _Pragma("unroll")

extern __shared__ Quad dynamic_shared[];

__device__ __forceinline__ void* shared_memory() { return dynamic_shared; }

__device__ __forceinline__ float as_float(word w) { return __uint_as_float(w); }
__device__ __forceinline__ word as_word(float x) { return __float_as_uint(x); }

// Sixteen bytes that no thread of this launch writes.
__device__ __forceinline__ Quad load4(const word* p) {
    Quad q;
    asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(q.w[0]), "=r"(q.w[1]), "=r"(q.w[2]), "=r"(q.w[3])
        : "l"(p));
    return q;
}

__device__ __forceinline__ void load2(word w[2], const word* p) {
    asm("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0,%1}, [%2];"
        : "=r"(w[0]), "=r"(w[1])
        : "l"(p));
}

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float f16_of(half_word h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

// Two numbers in a word, the first in the low half, rounded to nearest even.
__device__ __forceinline__ word f16_pair(float low, float high) {
    word w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
}

__device__ __forceinline__ word bf16_pair(float low, float high) {
    word w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
}

// c[16][8] += a[16][16] * b[16][8], spread over a warp. Lane 4r + q has of a: rows r and r + 8,
// columns 2q, 2q + 1 and those + 8; of b: column r, rows 2q, 2q + 1 and those + 8; of c: rows r and
// r + 8, columns 2q, 2q + 1.
template <int KIND>
__device__ __forceinline__ void multiply_add(float c[4], const word a[4], const word b[2]) {
    if constexpr (KIND == F16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// b of a 16 by 8 block of shared memory that lies [row][column], `stride` numbers apart.
__device__ __forceinline__ void load_columns(word b[2], const half_word* block, int stride) {
    const half_word* row = block + (threadIdx.x & 15) * stride;
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1])
                 : "r"(at)
                 : "memory");
}

#endif

template <int KIND>
__device__ __forceinline__ float number_of(word w, int half) {
    if constexpr (KIND == F32) return as_float(w);
    if constexpr (KIND == F16) return f16_of((half_word)(w >> 16 * half));
    return as_float(half ? w & 0xffff0000u : w << 16);
}

template <int KIND>
__device__ __forceinline__ word pair_of(float low, float high) {
    return KIND == F16 ? f16_pair(low, high) : bf16_pair(low, high);
}

// Write numbers 2i and 2i + 1.
template <int KIND>
__device__ __forceinline__ void store_pair(word* words, i64 i, float low, float high) {
    if constexpr (KIND == F32) {
        words[2 * i] = as_word(low);
        words[2 * i + 1] = as_word(high);
    } else {
        words[i] = pair_of<KIND>(low, high);
    }
}

// The sum, or the largest, over groups of LANES lanes, in each of them the same.
template <int LANES>
__device__ __forceinline__ float sum_lanes(float x) {
    UNROLL
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL, x, step);
    return x;
}

template <int LANES>
__device__ __forceinline__ float most_of_lanes(float x) {
    UNROLL
    for (int step = LANES / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, step));
    return x;
}
