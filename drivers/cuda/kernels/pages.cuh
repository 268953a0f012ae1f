// Pages of every format (pages.py) in CUDA C++: eight numbers of a token at once.

#if KV == F32
#define BITS 32
#elif KV == F16 || KV == BF16
#define BITS 16
#elif KV == INT4
#define BITS 4
#else
#define BITS 8
#endif

#define CODED (KV >= INT8)
#define TOKEN_WORDS (D * BITS / 32)
#define EIGHT_WORDS (BITS / 4)
#define GROUP_DIMS (KV != INT4 ? D : D % 32 == 0 ? 32 : 16)
#define GROUPS (CODED ? D / GROUP_DIMS : 0)
#define SCALES_AT (PAGE_TOKENS * TOKEN_WORDS)
#define LOWS_AT (SCALES_AT + PAGE_TOKENS * GROUPS / 2)
#define PAGE_WORDS (LOWS_AT + (KV == INT4 ? PAGE_TOKENS * GROUPS / 2 : 0))

// Numbers 8i to 8i + 7 of a token as they lie in memory.
struct Eight {
    word w[EIGHT_WORDS];
    word scale, low;
};

__device__ __forceinline__ float bf16_at(word w, int odd) {
    return as_float(odd ? w & 0xffff0000u : w << 16);
}

// e4m3 by its bits: those of a float16, 2**8 times as large.
__device__ __forceinline__ float fp8_of(word code) {
    return f16_of((half_word)((code & 0x80) << 8 | (code & 0x7f) << 7)) * 256;
}

__device__ __forceinline__ void load_eight(Eight& e, const word* page, int token, int i) {
    const word* p = page + token * TOKEN_WORDS + i * EIGHT_WORDS;
    if constexpr (BITS >= 16) {
        UNROLL
        for (int k = 0; k < EIGHT_WORDS; k += 4) {
            Quad q = load4(p + k);
            UNROLL
            for (int j = 0; j < 4; j++) e.w[k + j] = q.w[j];
        }
    } else if constexpr (BITS == 8) {
        load2(e.w, p);
    } else {
        e.w[0] = *p;
    }
    if constexpr (CODED) {
        int at = token * GROUPS + i * 8 / GROUP_DIMS;
        const half_word* scales = (const half_word*)(page + SCALES_AT);
        e.scale = scales[at];
        e.low = KV == INT4 ? scales[PAGE_TOKENS * GROUPS + at] : 0;
    }
}

__device__ __forceinline__ void widen_eight(float x[8], const Eight& e) {
    float scale = as_float(e.scale << 16), low = as_float(e.low << 16);
    UNROLL
    for (int i = 0; i < 8; i++) {
        if constexpr (!CODED)
            x[i] = number_of<KV>(e.w[i * BITS / 32], i % (32 / BITS));
        else if constexpr (KV == INT4)
            x[i] = (float)(e.w[0] >> 4 * i & 15) * scale + low;
        else if constexpr (KV == INT8)
            x[i] = (float)(int)(signed char)(e.w[i / 4] >> 8 * (i % 4)) * scale;
        else
            x[i] = fp8_of(e.w[i / 4] >> 8 * (i % 4) & 255) * scale;
    }
}
