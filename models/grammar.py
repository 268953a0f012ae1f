"""What a turn's output may be: masks over the vocabulary that follow from the tokens so far.

    source --compile, in the caller's thread--> rules, shared --matcher--> Grammar, one a process
                                                                 |
    the driver, when it draws the token at `end`:  mask(history, start, end) -> one bit a token

**The tokens decide.** A mask is a function of the source and of history[start:end], the output of
this turn; what a Grammar keeps is how far it has read. So nothing that happens to a process can
disturb it: what was computed again, forked, frozen or tried twice is read again if need be.

Compiled and matched by the library llguidance, which is loaded with the first grammar.
"""

import errno
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

import msgspec

from tokenix.models.grammar_source import GrammarSource, locate
from tokenix.models.image_error import EINVAL, image_error
from tokenix.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

COMPILE_S: Final = 2.0
"""Time of the processor: what takes longer is refused. What the limits let through takes 0.4 s at
most."""
BUSY_S: Final = 30.0
"""And in all: the machine is too busy then."""
COMPILERS: Final = 4
"""Compilations at the same time."""
KEPT: Final = 32
"""Grammars that are not compiled again when they are asked for again."""
STACK_BYTES: Final = 512 << 20
"""Of the thread that compiles: the library recurses once for each rule. Only what is touched is
memory."""
ALLOWANCE_S: Final = 0.5
ALLOWANCE_S_PER_TOKEN: Final = 0.005
"""Time of the processor that the masks of a process may take: 50 times what a schema takes."""

_ENOTSUP = errno.ENOTSUP


class Grammar:
    """The masks of one process. `mask` is for one thread at a time, the rest for any."""

    __slots__ = ("_end", "_mask", "_matcher", "_rules", "_spent_s", "_start")

    def __init__(self, rules: "_Rules", fresh: "LLMatcher | None" = None) -> None:
        """`fresh`: a matcher that has read nothing, for the first turn."""
        self._rules = rules
        self._matcher = fresh
        self._start = self._end = -1
        self._mask: bytes | None = None
        self._spent_s = 0.0

    def mask(self, history: Sequence[int], start: int, end: int) -> bytes:
        """What may be token history[end] of an output that begins at `start`: bit t % 8 of byte
        t // 8 for token t. End-of-text tokens are in it when the output may end, nothing else when
        it must. `history` is one list that only grows. ValueError, in one line, if there is no
        saying; it stays so."""
        matcher = self._matcher
        if matcher is None or start != self._start or end < self._end:
            if matcher is None or self._start >= 0:
                matcher = self._matcher = self._rules.make_matcher()
            self._start = self._end = start
            self._mask, self._spent_s = None, 0.0
        if self._mask is None or end > self._end:
            began_s = time.thread_time()
            if end > self._end:
                matcher.consume_tokens(list(history[self._end : end]))
            self._mask, self._end = matcher.compute_bitmask(), end
            self._spent_s += time.thread_time() - began_s
            if matcher.is_error():
                raise ValueError(f"its grammar: {self._rules.explain(matcher.get_error())}")
            if self._spent_s > ALLOWANCE_S + ALLOWANCE_S_PER_TOKEN * (end - start):
                raise ValueError(
                    f"its grammar takes too long: {self._spent_s:.1f} s for {end - start} tokens; "
                    "use a simpler one"
                )
        return self._mask

    def copy(self) -> "Grammar":
        """For a process with the same history: it reads that when it is asked first."""
        return Grammar(self._rules)

    def freeze(self) -> bytes:
        """All there is besides the tokens."""
        return msgspec.msgpack.encode(self._rules.source)


class Grammars:
    """The grammars of a model. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, vocab_tokens: int, eos_tokens: Sequence[int]) -> None:
        """`vocab_tokens`: of the model, which may differ from the tokenizer's."""
        self._tokenizer = tokenizer
        self._vocab_tokens = vocab_tokens
        self._eos_tokens = list(eos_tokens)
        self._vocabulary: LLTokenizer | None = None
        self._making = threading.Lock()
        self._lock = threading.Lock()
        self._rules: OrderedDict[GrammarSource, _Rules] = OrderedDict()
        self._slots = threading.BoundedSemaphore(COMPILERS)

    def compile(self, source: GrammarSource) -> Grammar:
        """Takes milliseconds, and 0.5 s more the first time. OSError EINVAL for what is wrong,
        allows nothing, or is too large; ENOTSUP where no grammar can be had; EAGAIN."""
        self.prepare()
        rules = self._find(source)
        return Grammar(rules, rules.wait().deep_copy())

    def thaw(self, data: bytes) -> Grammar:
        """A grammar that was frozen; it is compiled meanwhile. ValueError for what `freeze` did not
        make, OSError ENOTSUP."""
        try:
            source = msgspec.msgpack.decode(data, type=GrammarSource)
        except msgspec.MsgspecError as why:
            raise ValueError(str(why)) from None
        _find_library()
        return Grammar(self._find(source))

    def prepare(self) -> "LLTokenizer":
        """Make ready what all grammars share, if it is not. It takes 0.5 s at 50,000 tokens, half
        of that with the interpreter locked. OSError ENOTSUP."""
        with self._making:
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
            return self._vocabulary

    def _find(self, source: GrammarSource) -> "_Rules":
        with self._lock:
            rules = self._rules.get(source)
            if rules is None or rules.failed_for_now:
                rules = self._rules[source] = _Rules(self, source)
                if len(self._rules) > KEPT:
                    self._rules.popitem(last=False)
                rules.begin(self._slots)
            self._rules.move_to_end(source)
            return rules

    def _make_vocabulary(self) -> "LLTokenizer":
        _find_library()
        from llguidance import LLTokenizer, TokenizerWrapper

        if not self._eos_tokens:
            raise image_error(_ENOTSUP, "the model has no end of text: no grammar could end")
        vocabulary = _Vocabulary(self._tokenizer, self._vocab_tokens, self._eos_tokens)
        return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=self._eos_tokens)


class _Rules:
    """A source and what was compiled of it."""

    def __init__(self, grammars: Grammars, source: GrammarSource) -> None:
        self.source = source
        self._grammars = grammars
        self._pristine: Future[LLMatcher] = Future()
        self._clock: int | None = None
        """Of the thread that compiles, once it does ..."""
        self._began_s = 0.0
        """... and what it said then."""

    def begin(self, slots: threading.BoundedSemaphore) -> None:
        """Compile in a thread of its own, with a stack of its own."""

        def work() -> None:
            try:
                self._grammars.prepare()
                if not slots.acquire(timeout=COMPILE_S):
                    raise image_error(errno.EAGAIN, "too many grammars are being compiled; retry")
                self._began_s = time.thread_time()
                self._clock = time.pthread_getcpuclockid(threading.get_ident())
                try:
                    self._pristine.set_result(self._compile())
                finally:
                    slots.release()
            except BaseException as problem:
                self._pristine.set_exception(problem)

        _start(work)

    def wait(self) -> "LLMatcher":
        """The matcher before the first token: to be copied. OSError."""
        late_s = time.monotonic() + BUSY_S
        while True:
            try:
                return self._pristine.result(COMPILE_S / 8)
            except TimeoutError:
                if self._spent_s() > COMPILE_S:
                    what = f"the grammar takes longer than {COMPILE_S:g} s to compile"
                    raise image_error(EINVAL, f"{what}; use a simpler one") from None
                if time.monotonic() > late_s:
                    what = "the machine is too busy to compile the grammar; retry"
                    raise image_error(errno.EAGAIN, what) from None
            except OSError as problem:  # a fresh one for each who waits
                raise image_error(problem.errno or EINVAL, problem.strerror or "") from None

    def _spent_s(self) -> float:
        """Time of the processor that compiling has taken so far."""
        if self._clock is None:
            return 0.0
        try:
            return time.clock_gettime(self._clock) - self._began_s
        except OSError:  # the thread has just ended
            return 0.0

    def make_matcher(self) -> "LLMatcher":
        """ValueError if it cannot be compiled."""
        try:
            self._grammars.prepare()
            return self.wait().deep_copy()
        except OSError as problem:
            raise ValueError(problem.strerror) from None

    def explain(self, problem: str) -> str:
        return locate(self.source, problem)

    @property
    def failed_for_now(self) -> bool:
        """Whether another try may be luckier."""
        if not self._pristine.done():
            return False
        problem = self._pristine.exception()
        return isinstance(problem, OSError) and problem.errno == errno.EAGAIN

    def _compile(self) -> "LLMatcher":
        from llguidance import LLMatcher

        kind, text = self.source.kind, self.source.text
        try:
            match kind:
                case "json_schema":
                    grammar = LLMatcher.grammar_from_json_schema(text)
                case "regex":
                    grammar = LLMatcher.grammar_from_regex(text)
                case _:
                    grammar = LLMatcher.grammar_from_lark(text)
        except ValueError as why:
            raise self._refusal(str(why)) from None
        matcher = LLMatcher(self._grammars.prepare(), grammar, log_level=0, limits=_limits())
        if not matcher.is_error():
            mask = matcher.compute_bitmask()  # the first state is the dearest, and known from now
            if not matcher.is_error() and not any(mask):
                raise image_error(EINVAL, f"{kind} of a grammar: it allows nothing at all")
        if matcher.is_error():
            raise self._refusal(matcher.get_error())
        return matcher

    def _refusal(self, problem: str) -> OSError:
        if problem.startswith("NoExtension"):
            problem = "it allows nothing at all"
        return image_error(EINVAL, f"{self.source.kind} of a grammar: {self.explain(problem)}")


class _Vocabulary:
    """A tokenizer as the library wants to see it."""

    def __init__(self, tokenizer: Tokenizer, vocab_tokens: int, eos_tokens: list[int]) -> None:
        special = tokenizer.special_ids | set(eos_tokens)
        self.eos_token_id = eos_tokens[0]
        self.bos_token_id = tokenizer.bos_token
        self.special_token_ids = sorted(token for token in special if token < vocab_tokens)
        self.tokens = [
            tokenizer.token_name(token).encode()
            if token in special
            else tokenizer.token_bytes(token)
            for token in range(vocab_tokens)
        ]
        self._tokenizer = tokenizer
        self._single = {data: token for token, data in enumerate(self.tokens) if len(data) == 1}

    def __call__(self, text: str) -> list[int]:
        """How the model would write `text`, to the byte: SentencePiece puts a space before it."""
        tokenizer, data = self._tokenizer, text.encode()
        tokens = tokenizer.encode(text, parse_special=False)
        if self._join(tokens) == data:
            return tokens
        tokens, begin = tokenizer.encode("\n" + text, parse_special=False), b""
        for used, token in enumerate(tokens, 1):
            begin += tokenizer.token_bytes(token)
            if begin.endswith(b"\n") and self._join(tokens[used:]) == data:
                return tokens[used:]
        return [self._single[bytes([byte])] for byte in data if bytes([byte]) in self._single]

    def _join(self, tokens: list[int]) -> bytes:
        return b"".join(self._tokenizer.token_bytes(token) for token in tokens)


def _find_library() -> None:
    """OSError ENOTSUP."""
    try:
        import llguidance  # noqa: F401
    except ImportError:
        message = "grammars need llguidance; run: pip install 'tokenix[cpu]'"
        raise image_error(_ENOTSUP, message) from None


def _limits() -> "LLParserLimits":
    """Compiling takes 0.4 s at most, a mask 30 ms, and both are far less for what is sensible."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=500,
        initial_lexer_fuel=200_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


_STARTING = threading.Lock()


def _start(work: Callable[[], None]) -> None:
    with _STARTING:  # the size is the interpreter's, for the next thread
        before = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=work, name="tokenix-grammar", daemon=True).start()
        finally:
            threading.stack_size(before)
