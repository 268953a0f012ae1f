"""The machine that `run` and `chat` ask: a daemon that serves the model, or one of their own."""

from typing import TYPE_CHECKING

from tokenix.cli.connection import connect
from tokenix.cli.loading import loading
from tokenix.cli.status import Failure, UsageError
from tokenix.syscalls.inproc import boot

if TYPE_CHECKING:
    from tokenix.cli.answer import RunOptions
    from tokenix.syscalls.types import Syscalls

DEFAULT_MODEL = "smollm2"


def open_machine(model: str | None, options: "RunOptions") -> "Syscalls":
    """A daemon if one was named, or if the usual one serves that model (None: any) and no machine
    of another make is asked for; else boot one here."""
    made = {
        "device_pages": options.device_pages,
        "kv_dtype": options.kv_dtype,
        "weights": options.weights,
        "policy": options.policy,
    }
    chosen = {name: value for name, value in made.items() if value is not None}
    if options.socket is not None:
        if chosen:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in chosen)
            raise UsageError(f"{names}: a running daemon has its own; leave it out, or --socket")
        k = connect(options.socket)
        if model is not None and not _serves(k, model):
            name = k.model().name
            k.close()
            raise Failure(f"the daemon at {options.socket} serves {name}, not {model}")
        return k
    if not chosen:
        daemon = _usual_daemon(model)
        if daemon is not None:
            return daemon
    with loading(options.quiet or options.json) as progress:
        return boot(model or DEFAULT_MODEL, progress=progress, **chosen)  # type: ignore[arg-type]


def _usual_daemon(model: str | None) -> "Syscalls | None":
    try:
        k = connect(None)
    except (Failure, OSError):
        return None
    if model is None or _serves(k, model):
        return k
    k.close()
    return None


def _serves(k: "Syscalls", model: str) -> bool:
    """Whether that is its model: by content, if the name is that of a file."""
    from tokenix.models.registry import PACKAGED, load_image, resolve

    served = k.model()
    if model in PACKAGED:
        return served.name == model
    path = resolve(model)
    same = served.name == (path.resolve().name if path.is_dir() else path.stem)
    return same and load_image(model).fingerprint == served.fingerprint
