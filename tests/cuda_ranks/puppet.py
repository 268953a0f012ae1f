"""A rank's process that does what its spec says: python -m tokenix.tests.cuda_ranks.puppet FD

ready     loads, and answers what it is asked
broken    cannot start
idle      says nothing, ever
ends      loads, and ends with exit code 3 when it is asked for something
deaf      loads, and does not read any more
wrong     loads, and can do nothing of what it is asked
"""

import errno
import pickle
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tokenix.drivers.cuda.ranks.messages import (
    Answer,
    Failed,
    Join,
    Loaded,
    Loading,
    Spoil,
    encode,
    read_request,
)


@dataclass
class PuppetSpec:
    index: int
    manner: str


def main() -> None:
    line = Connection(int(sys.argv[1]))
    spec: PuppetSpec = pickle.loads(line.recv_bytes())
    if spec.manner == "idle":
        signal.pause()
    line.send_bytes(encode(Loading()))
    if spec.manner == "broken":
        line.send_bytes(encode(Failed(errno.ENOMEM, "no room for it")))
        signal.pause()
    line.send_bytes(encode(Loaded()))
    if spec.manner == "deaf":
        signal.pause()
    while True:
        request = read_request(line.recv_bytes())
        if isinstance(request, Join | Spoil):
            continue
        if spec.manner == "ends":
            sys.exit(3)
        wrong = "it cannot" if spec.manner == "wrong" else ""
        line.send_bytes(encode(Answer(request.ticket, wrong)))


if __name__ == "__main__":
    main()
