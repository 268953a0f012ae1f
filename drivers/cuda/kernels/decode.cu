// The decode of decode.py in CUDA C++, for pages of every format: the same tiling, eight numbers a
// lane. A token of K or V is widened once and used by all query heads of the block.

#include "prelude.cuh"
#include "pages.cuh"

#define MOST_HEADS 5
#define TILES ((G + MOST_HEADS - 1) / MOST_HEADS)
#define HEADS ((G + TILES - 1) / TILES)
#define PARTS (D / 8)
#define LANES (PARTS > 16 ? 32 : PARTS > 8 ? 16 : 8)
#define TOKENS (32 / LANES)
#define GROUPS_OF_LANES (WARPS * TOKENS)
#define TURN (HEADS <= 4 ? 2 : 1)

struct Softmax {
    float peak[HEADS], weights[HEADS], sums[HEADS][8];
};

__device__ __forceinline__ void add_tokens(Softmax& s, const float query[HEADS][8],
                                           const Eight key[TURN], const Eight value[TURN],
                                           const bool inside[TURN]) {
    float x[TURN][HEADS], numbers[8];
    UNROLL
    for (int u = 0; u < TURN; u++) {
        widen_eight(numbers, key[u]);
        UNROLL
        for (int g = 0; g < HEADS; g++) {
            float dot = 0;
            UNROLL
            for (int e = 0; e < 8; e++) dot += query[g][e] * numbers[e];
            dot = sum_lanes<LANES>(dot);
            x[u][g] = inside[u] ? dot : LEAST;
        }
    }
    UNROLL
    for (int g = 0; g < HEADS; g++) {
        float most = s.peak[g];
        UNROLL
        for (int u = 0; u < TURN; u++) most = fmaxf(most, x[u][g]);
        float before = exp2_of(s.peak[g] - most);
        s.peak[g] = most;
        s.weights[g] *= before;
        UNROLL
        for (int e = 0; e < 8; e++) s.sums[g][e] *= before;
        UNROLL
        for (int u = 0; u < TURN; u++) {
            x[u][g] = x[u][g] <= LEAST ? 0 : exp2_of(x[u][g] - most);
            s.weights[g] += x[u][g];
        }
    }
    UNROLL
    for (int u = 0; u < TURN; u++) {
        widen_eight(numbers, value[u]);
        UNROLL
        for (int g = 0; g < HEADS; g++)
            UNROLL
            for (int e = 0; e < 8; e++) s.sums[g][e] += x[u][g] * numbers[e];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, HEADS <= 4 ? 4 : 2)
decode(const float* q, const word* arena, const int* tables, const int* slots,
       const int* positions, float* parts, float* stats, i64 layer_at, i64 frame_words,
       int kv_heads, int max_pages, int split_tokens, int splits, float scale) {
    float* sums = (float*)shared_memory();                        // [groups][HEADS][D]
    float* peaks = sums + GROUPS_OF_LANES * HEADS * D;            // [groups][HEADS][2]
    int row = blockIdx.x, kv = blockIdx.y / TILES, split = blockIdx.z;
    int first_head = blockIdx.y % TILES * HEADS, thread = threadIdx.x, warp = thread / 32;
    int token = thread % 32 / LANES, part = thread % LANES;
    int first = split * split_tokens, end = min(positions[row] + 1, first + split_tokens);
    if (first >= end) return;
    bool idle = part >= PARTS;
    int mine = idle ? PARTS - 1 : part;
    i64 head = ((i64)row * kv_heads + kv) * G;
    float query[HEADS][8];
    Softmax s;
    UNROLL
    for (int g = 0; g < HEADS; g++) {
        s.peak[g] = LEAST;
        s.weights[g] = 0;
        UNROLL
        for (int e = 0; e < 8; e++) {
            float seen = q[(head + min(first_head + g, G - 1)) * D + mine * 8 + e] * scale;
            query[g][e] = idle ? 0 : seen;
            s.sums[g][e] = 0;
        }
    }
    const int* table = tables + (i64)slots[row] * max_pages;
    i64 at = layer_at + (i64)kv * PAGE_WORDS, apart = (i64)kv_heads * PAGE_WORDS;
    for (int base = first + warp * TURN * TOKENS; base < end; base += WARPS * TURN * TOKENS) {
        Eight key[TURN], value[TURN];
        bool inside[TURN];
        UNROLL
        for (int u = 0; u < TURN; u++) {
            int i = min(base + u * TOKENS + token, end - 1);
            const word* page = arena + table[i / PAGE_TOKENS] * frame_words + at;
            load_eight(key[u], page, i % PAGE_TOKENS, mine);
            load_eight(value[u], page + apart, i % PAGE_TOKENS, mine);
            inside[u] = base + u * TOKENS + token < end;
        }
        add_tokens(s, query, key, value, inside);
    }
    int group = warp * TOKENS + token;
    UNROLL
    for (int g = 0; g < HEADS; g++) {
        UNROLL
        for (int e = 0; e < 8; e++)
            if (!idle) sums[(group * HEADS + g) * D + part * 8 + e] = s.sums[g][e];
        if (part == 0) {
            peaks[(group * HEADS + g) * 2] = s.peak[g];
            peaks[(group * HEADS + g) * 2 + 1] = s.weights[g];
        }
    }
    __syncthreads();
    for (int i = thread; i < HEADS * D; i += THREADS) {
        int g = i / D, d = i % D;
        if (first_head + g >= G) continue;
        float peak = LEAST, total = 0, weights = 0;
        for (int w = 0; w < GROUPS_OF_LANES; w++) peak = fmaxf(peak, peaks[(w * HEADS + g) * 2]);
        for (int w = 0; w < GROUPS_OF_LANES; w++) {
            float c = exp2_of(peaks[(w * HEADS + g) * 2] - peak);
            total += sums[(w * HEADS + g) * D + d] * c;
            weights += peaks[(w * HEADS + g) * 2 + 1] * c;
        }
        i64 to = (head + first_head + g) * splits + split;
        parts[to * D + d] = total;
        if (d == 0) {
            stats[to * 2] = peak;
            stats[to * 2 + 1] = weights;
        }
    }
}
