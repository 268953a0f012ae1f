// Attention of a tile of rows of one slot with consecutive positions, for one query head: the
// running softmax of Flash Attention 2 (Dao 2023, algorithm 1) over pages, on tensor cores.
//
//     shared   q [64 rows][D]        k [64 keys][D]        v [64 keys][D]      16-bit, rows padded
//     warp     16 rows: scores [16][64] = q k', softmax over keys, sums [16][D] += weights v
//     lane     2 rows of each block of 8 columns: see multiply_add
//
// Keys and values of pages with codes are widened on their way to shared memory, and rounded to the
// 16 bits of activations, which hold them (bf16 where those have 32). Not-a-number stays: a broken key breaks the rows that
// see it. Keys past the last row of the tile are zeros.

#include "prelude.cuh"
#include "pages.cuh"

#define ROWS 64
#define KEYS 64
#define STRIDE (D + 8)
#define CORE (!CODED ? KV : X == F16 ? F16 : BF16)

// 64 tokens of K or V from their pages, zeros past `end`.
__device__ void load_keys(half_word* to, const word* arena, const int* table, i64 at,
                          i64 frame_words, int first, int end) {
    for (int i = threadIdx.x; i < KEYS * (D / 8); i += THREADS) {
        int key = i / (D / 8), chunk = i % (D / 8), token = first + key;
        Quad q = {};
        if (token < end) {
            const word* page = arena + table[token / PAGE_TOKENS] * frame_words + at;
            Eight e;
            load_eight(e, page, token % PAGE_TOKENS, chunk);
            if constexpr (CODED) {
                float x[8];
                widen_eight(x, e);
                UNROLL
                for (int j = 0; j < 4; j++) q.w[j] = pair_of<CORE>(x[2 * j], x[2 * j + 1]);
            } else {
                UNROLL
                for (int j = 0; j < 4; j++) q.w[j] = e.w[j];
            }
        }
        *(Quad*)(to + key * STRIDE + chunk * 8) = q;
    }
}

// Queries as 16-bit numbers; rows past `rows` are zeros.
__device__ void load_queries(half_word* to, const float* q, i64 at, int rows, int heads) {
    for (int i = threadIdx.x; i < ROWS * (D / 2); i += THREADS) {
        int row = i / (D / 2), d = i % (D / 2) * 2;
        const float* from = q + at + (i64)row * heads * D + d;
        *(word*)(to + row * STRIDE + d) = row < rows ? pair_of<CORE>(from[0], from[1]) : 0;
    }
}

// scores [16][KEYS] of this warp's rows.
__device__ __forceinline__ void score(float s[KEYS / 8][4], const half_word* q, const half_word* k) {
    int r = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
    UNROLL
    for (int n = 0; n < KEYS / 8; n++)
        UNROLL
        for (int i = 0; i < 4; i++) s[n][i] = 0;
    UNROLL
    for (int d = 0; d < D; d += 16) {
        const half_word* row = q + r * STRIDE + d + c;
        word a[4] = {*(word*)row, *(word*)(row + 8 * STRIDE), *(word*)(row + 8),
                     *(word*)(row + 8 * STRIDE + 8)};
        UNROLL
        for (int n = 0; n < KEYS / 8; n++) {
            const half_word* key = k + (n * 8 + r) * STRIDE + d + c;
            word b[2] = {*(word*)key, *(word*)(key + 8)};
            multiply_add<CORE>(s[n], a, b);
        }
    }
}

// Scores of keys `first`, ... into weights, for row r of this lane (high: row r + 8): the peak and
// the sum of weights go on. Returns what earlier sums are multiplied with.
__device__ __forceinline__ float weigh(float s[KEYS / 8][4], int high, int first, int position,
                                       float scale, float* peak, float* sum) {
    int c = threadIdx.x % 4 * 2;
    float most = *peak;
    UNROLL
    for (int n = 0; n < KEYS / 8; n++)
        UNROLL
        for (int i = 2 * high; i < 2 * high + 2; i++) {
            int key = first + n * 8 + c + i % 2;
            s[n][i] = key <= position ? s[n][i] * scale : LEAST;
            most = fmaxf(most, s[n][i]);
        }
    most = most_of_lanes<4>(most);
    float total = 0;
    UNROLL
    for (int n = 0; n < KEYS / 8; n++)
        UNROLL
        for (int i = 2 * high; i < 2 * high + 2; i++) {
            s[n][i] = s[n][i] == LEAST ? 0 : exp2_of(s[n][i] - most);
            total += s[n][i];
        }
    float before = exp2_of(*peak - most);
    *sum = *sum * before + sum_lanes<4>(total);
    *peak = most;
    return before;
}

// sums [16][D] += weights [16][KEYS] * v.
__device__ __forceinline__ void add_values(float sums[D / 8][4], float s[KEYS / 8][4],
                                           const half_word* v) {
    UNROLL
    for (int k = 0; k < KEYS / 16; k++) {
        float *x = s[2 * k], *y = s[2 * k + 1];
        word a[4] = {pair_of<CORE>(x[0], x[1]), pair_of<CORE>(x[2], x[3]), pair_of<CORE>(y[0], y[1]),
                     pair_of<CORE>(y[2], y[3])};
        UNROLL
        for (int n = 0; n < D / 8; n++) {
            word b[2];
            load_columns(b, v + k * 16 * STRIDE + n * 8, STRIDE);
            multiply_add<CORE>(sums[n], a, b);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
prefill(const float* q, const word* arena, const int* tables, const int* slots,
        const int* positions, const int* tiles, word* out, i64 layer_at, i64 frame_words,
        int kv_heads, int max_pages, float scale) {
    half_word* queries = (half_word*)shared_memory();
    half_word *keys = queries + ROWS * STRIDE, *values = keys + KEYS * STRIDE;
    int head = blockIdx.y, heads = kv_heads * G, warp = threadIdx.x / 32;
    int first_row = tiles[2 * blockIdx.x], rows = tiles[2 * blockIdx.x + 1];
    int first = positions[first_row], end = first + rows;
    const int* table = tables + (i64)slots[first_row] * max_pages;
    i64 at = layer_at + (i64)(head / G) * PAGE_WORDS;
    load_queries(queries, q, ((i64)first_row * heads + head) * D, rows, heads);
    float sums[D / 8][4] = {}, peak[2] = {LEAST, LEAST}, sum[2] = {0, 0};
    int r = warp * 16 + threadIdx.x % 32 / 4;
    for (int key = 0; key < end; key += KEYS) {
        __syncthreads();
        load_keys(keys, arena, table, at, frame_words, key, end);
        load_keys(values, arena, table, at + (i64)kv_heads * PAGE_WORDS, frame_words, key, end);
        __syncthreads();
        float s[KEYS / 8][4];
        score(s, queries + warp * 16 * STRIDE, keys);
        float low = weigh(s, 0, key, first + r, scale, &peak[0], &sum[0]);
        float high = weigh(s, 1, key, first + r + 8, scale, &peak[1], &sum[1]);
        UNROLL
        for (int n = 0; n < D / 8; n++) {
            sums[n][0] *= low;
            sums[n][1] *= low;
            sums[n][2] *= high;
            sums[n][3] *= high;
        }
        add_values(sums, s, values);
    }
    UNROLL
    for (int high = 0; high < 2; high++) {
        int row = r + 8 * high;
        if (row >= rows) continue;
        i64 pair = (((i64)first_row + row) * heads + head) * (D / 2) + threadIdx.x % 4;
        float share = 1 / sum[high];
        UNROLL
        for (int n = 0; n < D / 8; n++)
            store_pair<X>(out, pair + n * 4, sums[n][2 * high] * share,
                          sums[n][2 * high + 1] * share);
    }
}
