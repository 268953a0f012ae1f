"""Best of n: the prompt is computed once; n children share its KV and go on with their own seeds.

python examples/best_of_n.py [n]
"""

import argparse
import sys
from dataclasses import dataclass

import tokenix
from tokenix.syscalls.types import Output, Pid, Syscalls

PROMPT = (
    "You are a patient teacher of operating systems. A student asks how a machine with little "
    "memory can run many programs. Explain in one sentence what a page fault is."
)

MOST = 64
"""Children of one fork."""


@dataclass(frozen=True)
class Candidate:
    text: str
    mean_logprob: float
    """Of its tokens, by the model's own distribution."""


@dataclass(frozen=True)
class Result:
    candidates: list[Candidate]
    """The likeliest first."""
    pages: int
    """KV pages that the children see when they set out, together."""
    frames: int
    """Frames that hold them: what is shared is there once."""


def best_of(k: Syscalls, prompt: str, n: int, max_tokens: int = 48) -> Result:
    """`n` continuations of `prompt`, the likeliest first. All children run at the same time."""
    parent = k.spawn(prompt, max_tokens=max_tokens, temperature=0.9, top_p=0.95, logprobs=0)
    common = k.read(parent, 1).outputs  # the prompt is computed
    k.kill(parent, tokenix.SIGSTOP)
    common += k.read(parent, block=False).outputs
    children = k.fork(parent, n, seeds=range(1, n + 1))
    k.kill(parent, tokenix.SIGKILL)
    pages = sum(k.stat(child).pages for child in children)
    frames = int(k.vmstat()["frames.total"] - k.vmstat()["frames.free"])
    for child in children:
        k.kill(child, tokenix.SIGCONT)
    candidates = [_read(k, child, common) for child in children]
    for child in children:
        k.wait(child)
    candidates.sort(key=lambda candidate: -candidate.mean_logprob)
    return Result(candidates, pages, frames)


def _read(k: Syscalls, pid: Pid, common: tuple[Output, ...]) -> Candidate:
    """All of its output, behind what it has in common with the others."""
    outputs = list(common)
    while True:
        result = k.read(pid)
        outputs += result.outputs
        if result.eof:
            tail = result.turn_ended.tail if result.turn_ended else ""
            text = "".join(output.text for output in outputs) + tail
            return Candidate(text, sum(output.logprob for output in outputs) / len(outputs))


def main() -> None:
    parser = argparse.ArgumentParser(description="The likeliest of n continuations first.")
    parser.add_argument("n", nargs="?", type=int, default=6, help=f"1 to {MOST}; default: 6")
    n = parser.parse_args().n
    if not 1 <= n <= MOST:
        parser.error(f"n must be between 1 and {MOST}, as many as one fork makes, not {n}")
    try:
        with tokenix.boot("smollm2", device_pages=256) as k:
            result = best_of(k, PROMPT, n)
    except OSError as why:
        sys.exit(f"best_of_n: {why.strerror}")
    for candidate in result.candidates:
        sys.stdout.write(f"{candidate.mean_logprob:7.3f}  {candidate.text.strip()}\n")
    sys.stdout.write(f"\n{n} children saw {result.pages} pages in {result.frames} frames\n")


if __name__ == "__main__":
    main()
