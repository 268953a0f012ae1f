"""What is wrong with the options of a daemon, as far as they say so themselves: asked by who serves
with them and by who shows them."""

import errno
from pathlib import Path
from typing import Any

from tokenix.daemon.options import ServeOptions
from tokenix.daemon.peers import check_group, recogniser
from tokenix.daemon.settings import gateway_settings
from tokenix.syscalls import inproc


def check_options(socket: Path, options: ServeOptions) -> None:
    """OSError: what makes no sense, in one line. Nothing is loaded, made or opened, but that the
    file of API keys is read."""
    inproc.check_boot(**machine_options(options))
    recogniser(options.tenants)
    if options.socket_group is not None:
        check_group(options.socket_group)
    if options.no_http:
        return
    gateway_settings(socket, options)
    if options.http.uds and Path(options.http.uds).expanduser().resolve() == socket.resolve():
        what = f"--http.uds and --socket are both {socket}; name another path for one of them"
        raise OSError(errno.EINVAL, what)


def machine_options(options: ServeOptions) -> dict[str, Any]:
    """Those of `inproc.boot`."""
    names = (
        "driver", "tensor_parallel", "policy", "device_pages", "host_pages", "page_tokens",
        "kv_dtype", "weights", "threads", "swap_dir", "swap_bytes", "image_dir", "swap_resume",
    )  # fmt: skip
    found = {name: getattr(options, name) for name in names}
    return {
        **found,
        "weight_cache": not options.no_weight_cache,
        "params": options.kernel,
        "tunables": options.sched,
    }
