"""What a cubin is made of: registers and memory of its kernel, and its instructions."""

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Anatomy:
    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    parameters: list[int]
    """Where each one is, in the bytes of a launch."""
    parameter_bytes: int
    instructions: Counter[str]
    """By opcode with its modifiers: `LDG.E.128`."""

    def count(self, opcode: str, *modifiers: str) -> int:
        """Instructions with that opcode and all these modifiers."""
        wanted = {opcode, *modifiers}
        return sum(
            n
            for name, n in self.instructions.items()
            if name.split(".")[0] == opcode and wanted <= set(name.split("."))
        )


def _tool(name: str) -> str:
    nvidia = pytest.importorskip("nvidia", reason="the extra test brings NVIDIA's disassemblers")
    for root in nvidia.__path__:
        for path in Path(root).glob(f"*/bin/{name}"):
            return str(path)
    pytest.skip(f"{name} is not installed; the extra test brings it")


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


def dissect(cubin: bytes, symbol: str, folder: Path) -> Anatomy:
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    usage = _run(_tool("cuobjdump"), "--dump-resource-usage", str(path))
    found = re.search(rf"Function {symbol}:\s*(.*)", usage)
    assert found, usage
    sizes = {name: int(n) for name, n in re.findall(r"(\w+):(\d+)", found[1])}
    said = _run(_tool("cuobjdump"), "--dump-elf", str(path))
    places = re.findall(r"Ordinal\s*:\s*(0x[0-9a-f]+)\s+Offset\s*:\s*(0x[0-9a-f]+)", said)
    parameters = [at for _, at in sorted((int(n, 16), int(at, 16)) for n, at in places)]
    size = re.search(r"EIATTR_CBANK_PARAM_SIZE\s+Format:.*\s+Value:\s*(\w+)", said)
    assert size, "no size of parameters"
    code = _run(_tool("nvdisasm"), "-c", str(path))
    lines = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", code, re.M)
    return Anatomy(
        sizes["REG"], sizes["STACK"], sizes["LOCAL"], sizes["SHARED"], parameters,
        int(size[1], 0), Counter(lines),
    )  # fmt: skip
