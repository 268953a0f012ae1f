"""The life of a daemon: load, listen, look after the gateway, drain, end."""

import contextlib
import errno
import select
import shutil
import signal
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from tokenix.daemon.doorway import Doorway
from tokenix.daemon.gateway import Gateway
from tokenix.daemon.notify import notify
from tokenix.daemon.options import ServeOptions
from tokenix.daemon.peers import recogniser
from tokenix.daemon.pidfile import PidFile
from tokenix.daemon.places import check_places
from tokenix.daemon.progress import loading
from tokenix.daemon.settings import gateway_settings
from tokenix.daemon.signalpipe import SignalPipe
from tokenix.daemon.validity import check_options, machine_options
from tokenix.daemon.watch import Watch
from tokenix.gateway.garbage import keep_loaded
from tokenix.gateway.logs import bridge_logging, open_log
from tokenix.syscalls.inproc import Syscalls, boot
from tokenix.syscalls.port import LocalPort
from tokenix.syscalls.wire import server
from tokenix.syscalls.wire.paths import socket_path

LOOK_S = 0.5
"""How often the kernel's trace is read for the log, and a draining kernel is asked who is left."""
LINGER_S = 5.0
"""What has ended is kept for so long, in a drain, for who still reads it."""
IDLE = frozenset({"input", "signal"})
DRAINING = "this kernel is shutting down and takes no new processes; try again when it is back"


def serve(model: str, options: ServeOptions) -> int:
    """Serve until a signal ends it. Exit code: 0, also if a second signal cut the drain short; 1 if
    the kernel has failed. OSError: what is wrong with the options, the model or the sockets."""
    log = open_log(options.log.level, options.log.format)
    bridge_logging(log, options.log.level)
    path = socket_path(options.socket).expanduser().absolute()
    check_options(path, options)
    refuse_if_served(path)
    check_places(path, options)
    recognise = recogniser(options.tenants)
    settings = partial(gateway_settings, path, options)
    began_s = time.monotonic()
    with ExitStack() as stack:
        door = None
        if not options.no_http:
            door = stack.enter_context(Doorway(options.http))
        k = stack.enter_context(_boot(model, options, log))
        for text in k.machine.warnings:
            log.warning(text)
        port = k.port
        assert isinstance(port, LocalPort), "it was booted here"
        border = stack.enter_context(
            server.serve(
                port, path, mode=int(options.socket_mode, 8), name="tokenix", recognise=recognise
            )
        )
        if options.socket_group is not None:
            shutil.chown(path, group=options.socket_group)
        stack.callback(PidFile.beside(path).remove)
        signals = stack.enter_context(SignalPipe(signal.SIGTERM, signal.SIGINT))
        gateway = None
        if door is not None:
            gateway = Gateway(settings, door, log)
            stack.callback(gateway.stop)
            gateway.start()
        prepare_grammars(k)
        if gateway is not None and door is not None:
            await_gateway(gateway, door, signals)
        keep_loaded()
        info = k.model()
        log.info(
            "ready", model=info.name, socket=str(path), http=door and door.url,
            device_pages=info.device_pages, load_s=round(time.monotonic() - began_s, 2),
        )  # fmt: skip
        notify("READY=1")
        code = Service(k, border, gateway, signals, log, options.drain_s).run()
    log.info("stopped", code=code)
    return code


def _boot(model: str, options: ServeOptions, log: FilteringBoundLogger) -> Syscalls:
    with loading(log) as progress:
        return boot(model, **machine_options(options), progress=progress)


def prepare_grammars(k: Syscalls) -> None:
    """What the first grammar would have to wait for, done while the gateway's process starts."""
    with contextlib.suppress(OSError):  # there are none, which is said to who asks for one
        k.machine.image.grammars.prepare()


def await_gateway(gateway: Gateway, door: Doorway, signals: SignalPipe) -> None:
    """Until it is ready, or a signal has come. OSError EIO: it does not come up."""
    while not door.is_ready():
        assert gateway.watched is not None, "nobody starts it again yet"
        happened = select.select([gateway.watched, signals.fileno()], [], [], 0.05)[0]
        if gateway.watched in happened:
            what = "the gateway does not start; see above, or serve without it: --no-http"
            raise OSError(errno.EIO, what)
        if happened:
            return


def refuse_if_served(path: Path) -> None:
    """Said before a model is loaded in vain. OSError EADDRINUSE: somebody listens there."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise OSError(
        errno.EADDRINUSE,
        f"a daemon listens at {path} already; stop it, or choose another path with --socket",
    )


@dataclass(slots=True)
class Service:
    """A daemon that is up."""

    k: Syscalls
    border: server.Server
    gateway: Gateway | None
    signals: SignalPipe
    log: FilteringBoundLogger
    drain_s: float
    over_s: float | None = None
    """When a drain ends; None: there is none."""
    quiet_s: float = 0.0
    """When a process was last seen to run, in a drain."""
    drained: bool = False
    """Whether no process is waited for any more, but for the gateway's last words only."""

    def run(self) -> int:
        """Until a signal has come and what runs has ended. Exit code."""
        watch = Watch(self.k, self.log)
        while True:
            self._sleep()
            try:
                watch.look()
                if self.gateway is not None:
                    self.gateway.look()
                if self._is_over():
                    return 0
            except OSError as problem:
                self.log.error("kernel failed", error=problem.strerror)
                return 1

    def _is_over(self) -> bool:
        now_s = time.monotonic()
        for number in self.signals.take():
            if self.over_s is not None:
                self.log.warning("second signal: stopping at once", signal=number.name)
                return True
            self.border.drain(DRAINING)
            if self.gateway is not None:
                self.gateway.close()
            notify("STOPPING=1")
            self.quiet_s, self.over_s = now_s, now_s + self.drain_s
            self.log.info(
                "draining", signal=number.name, processes=len(living(self.k)), limit_s=self.drain_s
            )
        if self.over_s is None:
            return False
        left = living(self.k)
        if left:
            self.quiet_s = now_s
        elif not self.drained and (now_s - self.quiet_s >= LINGER_S or not unread(self.k)):
            self.drained = True
            self.log.info("drained")
            if self.gateway is not None:
                self.gateway.finish()
        if self.drained and (self.gateway is None or self.gateway.pid is None):
            return True
        if now_s >= self.over_s:
            self.log.warning("drain takes too long: stopping", processes=len(left))
            return True
        return False

    def _sleep(self) -> None:
        """Until a signal comes, the gateway dies, or it is time to look again."""
        limit_s = LOOK_S
        watched = [self.signals.fileno()]
        if self.gateway is not None:
            if self.gateway.watched is not None:
                watched.append(self.gateway.watched)
            if self.gateway.due_s is not None:
                limit_s = min(limit_s, max(0.0, self.gateway.due_s - time.monotonic()))
        select.select(watched, [], [], limit_s)


def living(k: Syscalls) -> list[int]:
    """Processes that will end by themselves: not those that wait for input or were stopped."""
    return [
        process.pid
        for process in k.ps()
        if process.state != "zombie" and not IDLE.intersection(process.held)
    ]


def unread(k: Syscalls) -> list[int]:
    """Finished processes with output that somebody may be reading."""
    return [
        process.pid for process in k.ps() if process.unread_tokens and process.state == "zombie"
    ]
