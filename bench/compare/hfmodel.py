"""Makes a Hugging Face directory in bf16 of a GGUF file: weights dequantized, tokenizer and all.

    python hfmodel.py MODEL.gguf FOLDER

Run by an environment that has torch, transformers and gguf. What `from_pretrained` gives calls
itself quantized and cannot be saved, so its weights go into a model that was never quantized.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.bfloat16
    )
    plain.load_state_dict(loaded.state_dict())
    plain.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


if __name__ == "__main__":
    main()
