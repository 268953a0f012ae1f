// Logits of llama.cpp for given tokens: logits MODEL TOKENS ROWS LENGTH THREADS OUT
//
// TOKENS: ROWS x LENGTH of int32, each row a text of its own. OUT: appended ROWS x LENGTH x vocabulary of float32,
// at each token those for the next one. One row at a time, in batches, as a server would compute a prompt.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

static const int BATCH = 512;

static void fail(const char * what) {
    std::fprintf(stderr, "logits: %s\n", what);
    std::exit(1);
}

static void quiet(ggml_log_level level, const char * text, void *) {
    if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

int main(int argc, char ** argv) {
    if (argc != 7) fail("logits MODEL TOKENS ROWS LENGTH THREADS OUT");
    const int rows = std::atoi(argv[3]), length = std::atoi(argv[4]), threads = std::atoi(argv[5]);
    std::vector<llama_token> tokens((size_t) rows * length);
    FILE * in = std::fopen(argv[2], "rb");
    if (!in || std::fread(tokens.data(), sizeof(llama_token), tokens.size(), in) != tokens.size()) fail("cannot read the tokens");
    std::fclose(in);

    llama_log_set(quiet, nullptr);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) fail("cannot load the model");
    const size_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_context_params params = llama_context_default_params();
    params.n_ctx = length;
    params.n_batch = params.n_ubatch = BATCH;
    params.n_threads = params.n_threads_batch = threads;
    llama_context * context = llama_init_from_model(model, params);
    if (!context) fail("cannot make a context");

    FILE * out = std::fopen(argv[6], "ab");
    if (!out) fail("cannot open the output");
    llama_batch batch = llama_batch_init(BATCH, 0, 1);
    for (int row = 0; row < rows; row++) {
        llama_memory_clear(llama_get_memory(context), true);
        for (int begin = 0; begin < length; begin += BATCH) {
            batch.n_tokens = std::min(BATCH, length - begin);
            for (int i = 0; i < batch.n_tokens; i++) {
                batch.token[i] = tokens[(size_t) row * length + begin + i];
                batch.pos[i] = begin + i;
                batch.n_seq_id[i] = 1;
                batch.seq_id[i][0] = 0;
                batch.logits[i] = true;
            }
            if (llama_decode(context, batch) != 0) fail("a batch failed");
            for (int i = 0; i < batch.n_tokens; i++) {
                const float * logits = llama_get_logits_ith(context, i);
                if (std::fwrite(logits, sizeof(float), vocabulary, out) != vocabulary) fail("cannot write");
            }
        }
    }
    if (std::fclose(out) != 0) fail("cannot write");
    return 0;
}
