"""OpenVINO GenAI behind a thin server of our own (`ovserver.py`), as it has none.

It reads the GGUF file itself. Its server detokenizes nothing, which is in its favour.
"""

from dataclasses import dataclass
from pathlib import Path

from tokenix.bench.compare.peer import Cache, Command, Place, Shape

VERSION = "2026.4.1.0"
BLOCK_TOKENS = 32
"""Of its paged attention on CPUs: a pool of 96 blocks took 13,680 bytes for each of 3,072 tokens,
as 8 bits with scales need."""
SERVER = Path(__file__).with_name("ovserver.py")


@dataclass(frozen=True, slots=True)
class OpenVino:
    """The shipped file, as it is."""

    cache: Cache
    gguf: Path

    @property
    def name(self) -> str:
        return "openvino"

    def install(self) -> None:
        self.cache.make_venv(f"openvino-genai=={VERSION}", marker=f"openvino-{VERSION}")

    def describe(self) -> str:
        return f"openvino-genai {VERSION}, Q4_1, u8 KV, behind ovserver.py"

    def serve(self, shape: Shape, place: Place) -> Command:
        words = (
            # -P: this folder is no place to import from, with its openvino.py.
            str(self.cache.python), "-P", str(SERVER), str(self.gguf), str(place.port),
            str(shape.kv_tokens // BLOCK_TOKENS), str(shape.requests), str(place.threads),
        )  # fmt: skip
        return Command(words, start_s=180.0)
