"""Faults put into kernels on purpose, each with a test that finds it. `test_mutations.py` tries
them; README.md says what they are."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """`old`, which is in `file` of drivers/cuda/kernels, becomes `new`; `test` then fails."""

    what: str
    file: str
    old: str
    new: str
    test: str


DECODE, CPP_DECODE = "test_decode.py::test_decode_and_combine", "test_decode.py::test_decode_in_cpp"
APPEND, CPP_APPEND = "test_append.py::test_append", "test_append.py::test_append_in_cpp"
PREFILL = "test_prefill.py::test_prefill"

MUTATIONS = [
    Mutation(
        "decode: no barrier before softmaxes are merged",
        "decode.py", "        cuda.syncthreads()\n", "", f"{DECODE}[f16-page-edge]",
    ),
    Mutation(
        "decode: keys past the end are not masked",
        "decode.py", "total if inside else LEAST", "total", f"{DECODE}[bf16-two-splits]",
    ),
    Mutation(
        "decode: values one kv head off",
        "decode.py", "at_key + kv_heads *", "at_key + (kv_heads - 1) *", f"{DECODE}[f32-one-key]",
    ),
    Mutation(
        "decode: the wrong page of the table",
        "decode.py", "at_table + (i >> 4)", "at_table + (i >> 5)", f"{DECODE}[bf16-two-splits]",
    ),
    Mutation(
        "decode: another row's table",
        "decode.py", "slots[row] * max_pages", "row * max_pages", f"{DECODE}[bf16-two-splits]",
    ),
    Mutation(
        "combine: a split's weights are not scaled to the common peak",
        "decode.py", "stats[at * 2 + 1] * c", "stats[at * 2 + 1]", f"{DECODE}[bf16-two-splits]",
    ),
    Mutation(
        "combine: splits that the row does not reach are read",
        "decode.py", "for s in range(used):", "for s in range(splits):",
        f"{DECODE}[bf16-two-splits]",
    ),
    Mutation(
        "append: no barrier of the warp before the rotation",
        "append.py", "        cuda.syncwarp()\n", "", f"{APPEND}[llama]",
    ),
    Mutation(
        "append: a token is written to another place of its page",
        "append.py", "(position & 15) * token_words", "(position & 7) * token_words",
        f"{APPEND}[llama]",
    ),
    Mutation(
        "append: padding is written",
        "append.py", "        if position < 0:\n            return\n", "", f"{APPEND}[llama]",
    ),
    Mutation(
        "sample: the random number forgets the position",
        "sample.py", " ^ uint64(position))", ")",
        "test_sample.py::test_random_numbers_are_the_cpus",
    ),
    Mutation(
        "sample: of equals the highest id",
        "sample.py", "(_LOW - uint64(token))", "uint64(token)",
        "test_sample.py::test_ties_go_to_the_lowest_id",
    ),
    Mutation(
        "sample: no barrier between a histogram and its reading",
        "sample.py", "    cuda.syncthreads()\n    thread = cuda.threadIdx.x\n    for digit",
        "    thread = cuda.threadIdx.x\n    for digit",
        "test_sample.py::test_ties_go_to_the_lowest_id",
    ),
    Mutation(
        "sample: a set goes on past the token that fills it",
        "sample.py", "float64(whole))) - 1", "float64(whole)))",
        "test_sample.py::test_a_cut_in_the_middle_of_equals",
    ),
    Mutation(
        "sample: a cut is of all tokens, not of those that top_k leaves",
        "sample.py", "token < vocab and rank >= floor and", "token < vocab and",
        "test_sample.py::test_a_cut_in_the_middle_of_equals",
    ),
    Mutation(
        "sample: a vocabulary ends where a thread's logits do",
        "sample.py", "if token < vocab and rank", "if rank",
        "test_sample.py::test_minus_infinity_is_never_drawn",
    ),
    Mutation(
        "gate: a row's numbers are those of the row before",
        "gate.py", "item + quotient(item, pairs) * pairs", "item",
        "test_gate.py::test_gate",
    ),
    Mutation(
        "prefill: keys are overwritten while others still read them",
        "prefill.cu", "key += KEYS) {\n        __syncthreads();\n", "key += KEYS) {\n",
        f"{PREFILL}[bf16-two-chunks]",
    ),
    Mutation(
        "prefill: a token does not see itself",
        "prefill.cu", "key <= position", "key < position", f"{PREFILL}[dim-80-one-row]",
    ),
    Mutation(
        "prefill: earlier sums are not scaled to the new peak",
        "prefill.cu", "sums[n][2] *= high;", "", f"{PREFILL}[bf16-two-chunks]",
    ),
    Mutation(
        "decode in C++: all groups have the first scale",
        "pages.cuh", "token * GROUPS + i * 8 / GROUP_DIMS", "token * GROUPS",
        f"{CPP_DECODE}[int4]",
    ),
    Mutation(
        "append in C++: keys are turned and queries are not",
        "append.cu", "if constexpr (KV == INT4) turn(x, lane)",
        "if (KV == INT4 && which >= heads) turn(x, lane)", f"{CPP_APPEND}[int4]",
    ),
    Mutation(
        "append in C++: no barrier of the warp between steps of the turn",
        "append.cu", "            x[at + step] = a - b;\n        }\n        __syncwarp();\n",
        "            x[at + step] = a - b;\n        }\n", f"{CPP_APPEND}[int4]",
    ),
]  # fmt: skip
