// Decode on tensor cores: all query heads of a kv head at once, 16 keys (a page) a warp and turn.
//
//     scores [16 heads][16 keys] = q k'        sums [16 heads][D] += weights v
//
// Nothing passes through shared memory on its way from pages. multiply_add does not care which
// number it takes for which, as long as both sides agree, so a lane takes 16 bytes that lie side by
// side, and they serve as its part of several products:
//
//     K   lane 4r + c: key r (and r + 8), dims 8c to 8c + 7 of 32: b of two products
//     V   lane 4r + c: keys 2c, 2c + 1, 2c + 8, 2c + 9, dims 8r to 8r + 7 of 64: b of eight
//
// Queries and weights are rounded to the 16 bits of the pages. A broken key breaks its rows.

#include "prelude.cuh"
#include "pages.cuh"

#define CHUNKS ((D + 31) / 32)
#define SPANS ((D + 63) / 64)
#define KEYS PAGE_TOKENS

// Queries of one step of 16 dims as the lanes of a warp need them.
struct Fragment {
    Quad lane[32];
};

// Step s of chunk j has dims 8c + 4s to 8c + 4s + 3 of the chunk in lane 4r + c.
__device__ void load_queries(Fragment* to, const float* q) {
    for (int i = threadIdx.x; i < CHUNKS * 2 * 32; i += THREADS) {
        int lane = i % 32, r = lane / 4, d = i / 64 * 32 + lane % 4 * 8 + i / 32 % 2 * 4;
        Quad a;
        UNROLL
        for (int k = 0; k < 4; k++) {
            int head = r + k % 2 * 8, dim = d + k / 2 * 2;
            const float* from = q + head * D + dim;
            a.w[k] = head < G && dim < D ? pair_of<KV>(from[0], from[1]) : 0;
        }
        to[i / 32].lane[lane] = a;
    }
}

__device__ __forceinline__ void load_keys(Quad k[2][CHUNKS], const word* page, int lane) {
    UNROLL
    for (int n = 0; n < 2; n++)
        UNROLL
        for (int j = 0; j < CHUNKS; j++) {
            int d = j * 32 + lane % 4 * 8;
            k[n][j] = Quad{};
            if (d < D) k[n][j] = load4(page + (n * 8 + lane / 4) * TOKEN_WORDS + d / 2);
        }
}

// Zeros past `count` keys: a weight of zero does not hide what is not a number.
__device__ __forceinline__ void load_values(Quad v[SPANS][4], const word* page, int count,
                                            int lane) {
    UNROLL
    for (int j = 0; j < SPANS; j++)
        UNROLL
        for (int i = 0; i < 4; i++) {
            int d = j * 64 + lane / 4 * 8, key = lane % 4 * 2 + i % 2 + i / 2 * 8;
            v[j][i] = Quad{};
            if (d < D && key < count) v[j][i] = load4(page + key * TOKEN_WORDS + d / 2);
        }
}

struct Softmax {
    float peak[2], weights[2];      // of heads r and r + 8; weights of this lane's keys only
    float sums[SPANS][8][4];
};

// x = q k': of this warp's 16 keys, those of lane % 4 * 2 and so on.
__device__ __forceinline__ void score(float x[2][4], const Fragment* queries,
                                      const Quad k[2][CHUNKS], int lane) {
    UNROLL
    for (int i = 0; i < 8; i++) x[i / 4][i % 4] = 0;
    UNROLL
    for (int j = 0; j < CHUNKS; j++)
        UNROLL
        for (int step = 0; step < 2; step++) {
            Quad a = queries[2 * j + step].lane[lane];
            UNROLL
            for (int n = 0; n < 2; n++) multiply_add<KV>(x[n], a.w, k[n][j].w + 2 * step);
        }
}

// Scores into weights; what is there so far is told by the new peak.
__device__ __forceinline__ void weigh(Softmax& s, float x[2][4], int count, float scale, int lane) {
    UNROLL
    for (int h = 0; h < 2; h++) {
        float most = s.peak[h];
        UNROLL
        for (int i = 0; i < 4; i++) {
            float& score = x[i / 2][2 * h + i % 2];
            score = i / 2 * 8 + lane % 4 * 2 + i % 2 < count ? score * scale : LEAST;
            most = fmaxf(most, score);
        }
        most = most_of_lanes<4>(most);
        float before = exp2_of(s.peak[h] - most);
        s.peak[h] = most;
        s.weights[h] *= before;
        UNROLL
        for (int i = 0; i < 4; i++) {
            float& weight = x[i / 2][2 * h + i % 2];
            weight = weight == LEAST ? 0 : exp2_of(weight - most);
            s.weights[h] += weight;
        }
        UNROLL
        for (int i = 0; i < SPANS * 8; i++) {
            s.sums[i / 8][i % 8][2 * h] *= before;
            s.sums[i / 8][i % 8][2 * h + 1] *= before;
        }
    }
}

__device__ __forceinline__ void add_values(Softmax& s, const float x[2][4],
                                           const Quad v[SPANS][4]) {
    word a[4] = {pair_of<KV>(x[0][0], x[0][1]), pair_of<KV>(x[0][2], x[0][3]),
                 pair_of<KV>(x[1][0], x[1][1]), pair_of<KV>(x[1][2], x[1][3])};
    UNROLL
    for (int j = 0; j < SPANS; j++)
        UNROLL
        for (int i = 0; i < 8; i++) {
            word b[2];
            UNROLL
            for (int n = 0; n < 2; n++) {
                word one = v[j][2 * n].w[i / 2], other = v[j][2 * n + 1].w[i / 2];
                b[n] = i % 2 ? one >> 16 | (other & 0xffff0000u) : (one & 0xffff) | other << 16;
            }
            multiply_add<KV>(s.sums[j][i], a, b);
        }
}

// A warp's softmax into shared memory: sums [G][D], then peaks and weights [G][2].
__device__ __forceinline__ void share(const Softmax& s, float* to, int lane) {
    UNROLL
    for (int h = 0; h < 2; h++) {
        int head = lane / 4 + 8 * h;
        float weights = sum_lanes<4>(s.weights[h]);
        if (head >= G) continue;
        UNROLL
        for (int i = 0; i < SPANS * 16; i++) {
            int d = i / 16 * 64 + (lane % 4 * 2 + i % 2) * 8 + i / 2 % 8;
            if (d < D) to[head * D + d] = s.sums[i / 16][i / 2 % 8][2 * h + i % 2];
        }
        if (lane % 4 == 0) {
            to[G * D + 2 * head] = s.peak[h];
            to[G * D + 2 * head + 1] = weights;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, D <= 128 ? 3 : 1)
decode(const float* q, const word* arena, const int* tables, const int* slots,
       const int* positions, float* parts, float* stats, i64 layer_at, i64 frame_words,
       int kv_heads, int max_pages, int split_tokens, int splits, float scale) {
    Fragment* queries = (Fragment*)shared_memory();
    float* shared = (float*)(queries + 2 * CHUNKS);
    int row = blockIdx.x, kv = blockIdx.y, split = blockIdx.z, thread = threadIdx.x;
    int warp = thread / 32, lane = thread % 32;
    int first = split * split_tokens, end = min(positions[row] + 1, first + split_tokens);
    if (first >= end) return;
    i64 head = ((i64)row * kv_heads + kv) * G;
    const int* table = tables + (i64)slots[row] * max_pages;
    const word* pages = arena + layer_at + (i64)kv * PAGE_WORDS;
    i64 apart = (i64)kv_heads * PAGE_WORDS;
    // Keys are on their way while the page before is weighed, values while keys are scored.
    Quad k[2][CHUNKS], v[SPANS][4];
    int base = first + warp * KEYS;
    const word* page = pages;
    if (base < end) {
        page = pages + table[base / PAGE_TOKENS] * frame_words;
        load_keys(k, page, lane);
    }
    load_queries(queries, q + head * D);
    __syncthreads();
    Softmax s = {{LEAST, LEAST}};
    while (base < end) {
        int count = end - base, next = base + WARPS * KEYS;
        i64 frame = next < end ? table[next / PAGE_TOKENS] : 0;
        load_values(v, page + apart, count, lane);
        float x[2][4];
        score(x, queries, k, lane);
        page = pages + frame * frame_words;
        if (next < end) load_keys(k, page, lane);
        weigh(s, x, count, scale, lane);
        add_values(s, x, v);
        base = next;
    }
    share(s, shared + warp * G * (D + 2), lane);
    __syncthreads();
    for (int i = thread; i < G * D; i += THREADS) {
        int g = i / D, d = i % D;
        float peak = LEAST, total = 0, weights = 0;
        UNROLL
        for (int w = 0; w < WARPS; w++)
            peak = fmaxf(peak, shared[w * G * (D + 2) + G * D + 2 * g]);
        UNROLL
        for (int w = 0; w < WARPS; w++) {
            const float* mine = shared + w * G * (D + 2);
            float c = exp2_of(mine[G * D + 2 * g] - peak);
            total += mine[g * D + d] * c;
            weights += mine[G * D + 2 * g + 1] * c;
        }
        i64 to = (head + g) * splits + split;
        parts[to * D + d] = total;
        if (d == 0) {
            stats[to * 2] = peak;
            stats[to * 2 + 1] = weights;
        }
    }
}
