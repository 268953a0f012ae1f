// The append of append.py in CUDA C++, for pages of codes too: a warp for each vector, which stays
// in shared memory. Keys of 4 bits are turned by a Hadamard matrix, and queries with them, so that
// products stay (pages.py); a code depends on its token alone.

#include "prelude.cuh"
#include "pages.cuh"

#define NOTHING 1e-30f
#define LARGEST 3.4e38f

// Nearest even, as everywhere. Not-a-number becomes `least`.
__device__ __forceinline__ int nearest(float x, float least, float most) {
    return (int)rintf(fminf(fmaxf(x, least), most));
}

__device__ __forceinline__ word code_fp8(float x) {
    float size = fminf(fmaxf(fabsf(x), 0.0f), 448.0f);
    word sign = x < 0 ? 128 : 0;
    if (size < 0.015625f) return sign | (word)rintf(size * 512);
    word bits = as_word(size);
    return sign | ((bits + 0x7ffff + (bits >> 20 & 1) >> 20) - (127 - 7) * 8);
}

__device__ __forceinline__ word code_of(float y) {
    if constexpr (KV == INT4) return nearest(y, 0, 15);
    if constexpr (KV == INT8) return nearest(y, -127, 127) & 255;
    return code_fp8(y);
}

__device__ __forceinline__ void load_vector(float* x, const word* qkv, const float* bias, i64 pair,
                                            int lane) {
    for (int i = lane; i < D / 2; i += 32) {
        if constexpr (X == F32) {
            x[2 * i] = as_float(qkv[2 * (pair + i)]);
            x[2 * i + 1] = as_float(qkv[2 * (pair + i) + 1]);
        } else {
            x[2 * i] = number_of<X>(qkv[pair + i], 0);
            x[2 * i + 1] = number_of<X>(qkv[pair + i], 1);
        }
        if constexpr (BIAS) {
            x[2 * i] += bias[2 * i];
            x[2 * i + 1] += bias[2 * i + 1];
        }
    }
    __syncwarp();
}

// Each pair of dims is one lane's, so nothing is in another's way.
__device__ __forceinline__ void norm_and_rotate(float* x, const float* weight, const float* cos,
                                                const float* sin, int half, float eps, int lane) {
    if constexpr (NORM) {
        float squares = 0;
        for (int d = lane; d < D; d += 32) squares += x[d] * x[d];
        float scale = 1 / sqrtf(sum_lanes<32>(squares) / D + eps);
        __syncwarp();
        for (int d = lane; d < D; d += 32) x[d] = x[d] * scale * weight[d];
        __syncwarp();
    }
    for (int d = lane; d < half; d += 32) {
        float low = x[d], high = x[d + half];
        x[d] = low * cos[d] - high * sin[d];
        x[d + half] = high * cos[d] + low * sin[d];
    }
    __syncwarp();
}

// Times the Hadamard matrix of a group's size, group by group.
__device__ __forceinline__ void turn(float* x, int lane) {
    for (int step = 1; step < GROUP_DIMS; step *= 2) {
        for (int i = lane; i < D / 2; i += 32) {
            int at = 2 * i - (i & (step - 1));
            float a = x[at], b = x[at + step];
            x[at] = a + b;
            x[at + step] = a - b;
        }
        __syncwarp();
    }
}

// Codes of a vector, and of each group its scale and low. What is not finite makes the scale
// not-a-number, so that it is not hidden.
__device__ __forceinline__ void write_codes(word* page, int token, const float* x, int lane) {
    half_word* scales = (half_word*)(page + SCALES_AT) + token * GROUPS;
    for (int g = 0; g < GROUPS; g++) {
        float most = -LARGEST, least = LARGEST, strange = 0;
        for (int d = g * GROUP_DIMS + lane; d < (g + 1) * GROUP_DIMS; d += 32) {
            most = fmaxf(most, x[d]);
            least = fminf(least, x[d]);
            strange += x[d] * 0;
        }
        most = most_of_lanes<32>(most);
        least = -most_of_lanes<32>(-least);
        strange = sum_lanes<32>(strange);
        float low = KV == INT4 ? as_float(bf16_pair(0, least) & 0xffff0000u) : 0;
        float size = KV == INT4 ? most - low : fmaxf(most, -least);
        float largest = KV == INT4 ? 15 : KV == INT8 ? 127 : 448;
        float scale = as_float(bf16_pair(0, size / largest + strange) & 0xffff0000u);
        float inverse = scale > NOTHING ? 1 / scale : 0;
        for (int i = lane; i < GROUP_DIMS * BITS / 32; i += 32) {
            const float* y = x + g * GROUP_DIMS + i * (32 / BITS);
            word packed = 0;
            for (int k = 0; k < 32 / BITS; k++)
                packed |= code_of((y[k] - low) * inverse) << BITS * k;
            page[token * TOKEN_WORDS + g * (GROUP_DIMS * BITS / 32) + i] = packed;
        }
        if (lane == 0) {
            scales[g] = as_word(scale) >> 16;
            if (KV == INT4) scales[PAGE_TOKENS * GROUPS + g] = as_word(low) >> 16;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
append(const word* qkv, const float* bias, const float* q_norm, const float* k_norm,
       const float* cos, const float* sin, const int* positions, const int* slots,
       const int* tables, float* q, word* arena, i64 layer_at, i64 frame_words, int rows,
       int heads, int kv_heads, int half, int max_pages, float eps) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, every = heads + 2 * kv_heads;
    int item = blockIdx.x * WARPS + warp, row = item / every, which = item % every;
    if (row >= rows || positions[row] < 0) return;
    float* x = (float*)shared_memory() + warp * D;
    int position = positions[row], token = position % PAGE_TOKENS;
    load_vector(x, qkv, bias + which * D, (i64)item * (D / 2), lane);
    if (which < heads + kv_heads) {
        i64 angles = (i64)position * half;
        norm_and_rotate(x, which < heads ? q_norm : k_norm, cos + angles, sin + angles, half, eps,
                        lane);
        if constexpr (KV == INT4) turn(x, lane);
    }
    if (which < heads) {
        float share = KV == INT4 ? 1.0f / GROUP_DIMS : 1.0f;
        for (int d = lane; d < D; d += 32) q[((i64)row * heads + which) * D + d] = x[d] * share;
        return;
    }
    i64 frame = tables[(i64)slots[row] * max_pages + position / PAGE_TOKENS];
    word* page = arena + frame * frame_words + layer_at + (i64)(which - heads) * PAGE_WORDS;
    if constexpr (CODED) {
        write_codes(page, token, x, lane);
    } else {
        for (int i = lane; i < D / 2; i += 32)
            store_pair<KV>(page + token * TOKEN_WORDS, i, x[2 * i], x[2 * i + 1]);
    }
}
