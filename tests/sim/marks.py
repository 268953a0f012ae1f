"""Marks: rare branches by name, and the proof that a test has been there.

    Mark("pause of oneself", "sched.room.last_resort", "if victim is me: / return Room.NO")

names the line of `last_resort` that stands behind the others given, each by how it begins. The
code is not touched: while `watch` is on, the interpreter tells which lines of these functions run.
Where the branch is no line of its own, `when` looks at the function's variables at that line.
"""

import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any


@dataclass(frozen=True)
class Mark:
    name: str
    function: str
    """Where it is, below `tokenix`."""
    line: str
    when: Callable[[dict[str, Any]], bool] | None = None

    def find(self) -> tuple[CodeType, int]:
        """Its function's code, and the number of its line."""
        function = pkgutil.resolve_name(f"tokenix.{self.function}")
        code = function.__code__
        lines, first = inspect.getsourcelines(function)
        text = [line.strip() for line in lines]
        parts = self.line.split(" / ")
        at = [
            i + len(parts) - 1
            for i in range(len(text) - len(parts) + 1)
            if all(text[i + j].startswith(part) for j, part in enumerate(parts))
        ]
        assert len(at) == 1, f"{self.name!r} is {len(at)} lines of {self.function}: name it anew"
        return code, first + at[0]


class Watch:
    """Which of some marks were reached, and how often each line of them ran."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self.left = {mark.name: mark for mark in marks}
        assert len(self.left) == len(marks), "a name is used once"
        self._places: dict[CodeType, dict[int, list[Mark]]] = {}
        for mark in marks:
            code, number = mark.find()
            self._places.setdefault(code, {}).setdefault(number, []).append(mark)

    @property
    def missed(self) -> list[str]:
        return sorted(self.left)

    @contextmanager
    def on(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if frame.f_code in self._places else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            places = self._places.get(frame.f_code, {})
            for mark in list(places.get(frame.f_lineno, ())):
                if mark.when is None or mark.when(frame.f_locals):
                    self._reach(mark, frame.f_code, places)
        return self._line

    def _reach(self, mark: Mark, code: CodeType, places: dict[int, list[Mark]]) -> None:
        """Reached once is enough: nobody looks for it any more."""
        self.left.pop(mark.name, None)
        for number, marks in list(places.items()):
            if mark in marks:
                marks.remove(mark)
            if not marks:
                del places[number]
        if not places:
            self._places.pop(code, None)
