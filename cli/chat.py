"""The interactive chat. The conversation is one process that is kept open: its KV stays between
turns, and only what is new is computed.

An answer that is interrupted ends the process; the next turn begins another one with the
conversation so far, most of which the prefix index still has.
"""

import errno
import sys
import time

from tokenix.cli import stdout
from tokenix.cli.answer import RunOptions, show_timings, stop
from tokenix.cli.status import FAILED, INTERRUPTED, OK
from tokenix.syscalls.types import Pid, Prompt, SpawnOptions, Syscalls, raise_if_failed, text_of

PROMPT = ">>> "

HELP = """\
/reset   begin a new conversation
/help    show this
/exit    leave (or Ctrl-D)
Ctrl-C   stop the present answer; twice in a row leaves
"""


class Chat:
    """One conversation at a time, on a terminal."""

    def __init__(self, k: Syscalls, model: str, options: RunOptions) -> None:
        self._k = k
        self._model = model
        self._options = options
        self._pid: Pid | None = None
        """The process of the conversation; None: the next turn spawns it."""
        self._messages: list[dict[str, str]] = []
        self._interrupted = False
        self._code = OK
        """Whether the last answer was complete."""

    def run(self) -> int:
        """Until the user leaves. Exit code: that of the last answer, as a shell has it."""
        _load_line_editing()
        if not self._options.quiet:
            stdout.write(f"{self._model}: /help shows the commands, /exit leaves\n")
        while True:
            try:
                line = input(PROMPT).strip()
            except EOFError:
                stdout.write("\n")
                return self._code
            except KeyboardInterrupt:
                stdout.write("\n")
                if self._interrupted:
                    return INTERRUPTED
                self._interrupted = True
                stdout.write("(Ctrl-C once more, /exit or Ctrl-D leaves)\n")
                continue
            self._interrupted = False
            if line in ("/exit", "/quit", "/bye"):
                return self._code
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._turn(line)

    def _command(self, line: str) -> None:
        if line == "/reset":
            self._end()
            self._messages.clear()
            stdout.write("(new conversation)\n")
        elif line in ("/help", "/?"):
            stdout.write(HELP)
        else:
            stdout.write(f"no command {line.split(maxsplit=1)[0]}; there are /exit /help /reset\n")

    def _turn(self, line: str) -> None:
        self._messages.append({"role": "user", "content": line})
        said: list[str] = []
        self._code = OK
        try:
            self._ask(line)
            self._listen(said)
        except KeyboardInterrupt:
            self._interrupted = True
            self._end()
            stdout.write(" (stopped)\n")
        except OSError as problem:
            self._complain(problem)
        if said:
            self._messages.append({"role": "assistant", "content": "".join(said)})
        else:
            self._messages.pop()

    def _ask(self, line: str) -> None:
        """Give the line to the conversation's process; begin one if there is none."""
        if self._pid is not None:
            self._k.write(self._pid, line, raw=self._options.raw)
            return
        options: SpawnOptions = {**self._options.spawn, "keep_open": True, "name": "chat"}
        self._pid = self._k.spawn(self._conversation(), **options)

    def _conversation(self) -> Prompt:
        if self._options.raw:
            return "".join(message["content"] for message in self._messages)
        system = self._options.system
        head = [] if system is None else [{"role": "system", "content": system}]
        return [*head, *self._messages]

    def _listen(self, said: list[str]) -> None:
        """Show the answer as it comes, and keep it in `said`."""
        pid = self._pid
        assert pid is not None
        asked_s = time.monotonic()
        ttft_s = 0.0
        times_s: list[float] = []
        while True:
            result = self._k.read(pid)
            if result.outputs and not times_s:
                ttft_s = time.monotonic() - asked_s
            times_s += [output.time_s for output in result.outputs]
            text = text_of(result)
            if text:
                said.append(text)
                stdout.write(text)
            if result.turn_ended is not None or result.eof:
                break
        stdout.write("\n")
        if result.eof:
            self._k.wait(pid)
            self._pid = None
        raise_if_failed(pid, result)
        if not self._options.quiet:
            show_timings(times_s, ttft_s)

    def _complain(self, problem: OSError) -> None:
        """An answer failed; the conversation may go on."""
        print(f"tokenix: error: {problem.strerror or problem}", file=sys.stderr, flush=True)
        self._code = FAILED
        if problem.errno == errno.E2BIG:
            print("/reset begins a new conversation", file=sys.stderr, flush=True)
        self._end()

    def _end(self) -> None:
        if self._pid is not None:
            stop(self._k, self._pid)
            self._pid = None


def _load_line_editing() -> None:
    """History and editing keys for `input`, where Python has them."""
    try:
        import readline
    except ImportError:
        return
    readline.set_auto_history(True)
