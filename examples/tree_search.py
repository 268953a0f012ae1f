"""Tree search: a beam over the text. Each living branch is forked, each child goes on for a few
tokens, and only the likeliest branches live on. What branches have in common is computed once.

    python examples/tree_search.py [width] [depth] [--device-pages N]
"""

import argparse
import errno
import sys
from dataclasses import dataclass

import tokenix
from tokenix.syscalls.types import Output, Pid, Syscalls

PROMPT = "Three reasons why the sea is salty:"
STEP_TOKENS = 12
MOST_WIDTH, MOST_DEPTH = 32, 16


@dataclass
class Branch:
    pid: Pid
    text: str
    logprob: float
    """Of its whole text."""
    tokens: int

    @property
    def mean_logprob(self) -> float:
        return self.logprob / max(1, self.tokens)


@dataclass(frozen=True)
class Result:
    best: Branch
    explored: int
    """Branches that were computed."""
    computed_tokens: int
    """By the device, the prompt included."""
    naive_tokens: int
    """If each branch had been a request of its own."""


def search(k: Syscalls, prompt: str, width: int, depth: int, fan: int = 2) -> Result:
    """The likeliest text of `depth` steps that a beam of `width` branches finds."""
    before = k.vmstat()["computed_tokens"]
    root = k.spawn(
        prompt,
        max_tokens=4 * STEP_TOKENS * (depth + 2),
        temperature=1.0,
        logprobs=0,
        ignore_eos=True,
    )
    beam = [Branch(root, "", 0.0, 0)]
    _advance(k, beam[0])
    naive = explored = 0
    prompt_tokens = k.stat(root).prompt_tokens
    for level in range(depth):
        children = [child for branch in beam for child in _fork(k, branch, fan, level)]
        for child in children:
            k.kill(child.pid, tokenix.SIGCONT)
        for child in children:
            _advance(k, child)
        naive += sum(prompt_tokens + child.tokens for child in children)
        explored += len(children)
        children.sort(key=lambda branch: -branch.mean_logprob)
        beam = children[:width]
        for lost in children[width:]:
            _drop(k, lost)
    for branch in beam:
        _drop(k, branch)
    return Result(beam[0], explored, int(k.vmstat()["computed_tokens"] - before), naive)


def _fork(k: Syscalls, branch: Branch, fan: int, level: int) -> list[Branch]:
    """Children that are stopped where their parent is, which is gone."""
    seeds = [1000 * level + 10 * branch.pid + i for i in range(fan)]
    pids = k.fork(branch.pid, fan, seeds=seeds)
    _drop(k, branch)
    return [Branch(pid, branch.text, branch.logprob, branch.tokens) for pid in pids]


def _advance(k: Syscalls, branch: Branch) -> None:
    """A step further, and stopped there: its children have what it has said, and say it not."""
    outputs: list[Output] = []
    while len(outputs) < STEP_TOKENS:
        result = k.read(branch.pid)
        outputs += result.outputs
        if result.eof:
            raise OSError(errno.EIO, f"a branch ended early: {result.error or result.reason}")
    k.kill(branch.pid, tokenix.SIGSTOP)
    outputs += k.read(branch.pid, block=False).outputs
    branch.text += "".join(output.text for output in outputs)
    branch.logprob += sum(output.logprob for output in outputs)
    branch.tokens += len(outputs)


def _drop(k: Syscalls, branch: Branch) -> None:
    k.kill(branch.pid, tokenix.SIGKILL)
    k.wait(branch.pid)


def main() -> None:
    parser = argparse.ArgumentParser(description="A beam search for the likeliest text.")
    parser.add_argument("width", nargs="?", type=int, default=3, help="branches that live on")
    parser.add_argument("depth", nargs="?", type=int, default=4, help="steps of 12 tokens")
    parser.add_argument("--device-pages", type=int, default=256, help="KV pages on the device")
    given = parser.parse_args()
    for name, most in (("width", MOST_WIDTH), ("depth", MOST_DEPTH)):
        if not 1 <= getattr(given, name) <= most:
            parser.error(f"{name} must be between 1 and {most}, not {getattr(given, name)}")
    try:
        with tokenix.boot("smollm2", device_pages=given.device_pages) as k:
            result = search(k, PROMPT, given.width, given.depth)
    except OSError as why:
        sys.exit(f"tree_search: {why.strerror}")
    sys.stdout.write(
        f"{result.best.text.strip()}\n\n{result.explored} branches, {result.computed_tokens} "
        f"tokens computed; as requests of their own {result.naive_tokens}\n"
    )


if __name__ == "__main__":
    main()
