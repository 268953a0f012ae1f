"""Every limit of the border, by name. How limits relate is asserted here."""

import msgspec

MOST_ANSWER_BYTES = 64 << 20
"""What no server may send in one frame; what is longer is not from one."""


class WireLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a server; a client learns them with its Welcome."""

    frame_bytes: int = 4 << 20
    """A frame from a client, without its length."""
    answer_bytes: int = 16 << 20
    """A frame to a client; a call whose answer is larger gets EMSGSIZE."""
    connections: int = 1024
    calls: int = 4096
    """Calls and flows in flight on one connection. Frames behind one more wait unread."""
    call_bytes: int = 16 << 20
    """Of the requests in flight on one connection. Frames behind more wait unread."""
    window_tokens: int = 1024
    """The largest credit that a flow can have."""
    client_out_bytes: int = 1 << 20
    """Unsent to one client: above, nothing is read from it nor for it until all is sent."""
    all_out_bytes: int = 64 << 20
    """Unsent to all clients: above half of it, each that has anything unsent is treated so; above
    all of it, the one that has most unsent is closed."""
    all_in_bytes: int = 64 << 20
    """Begun frames of all clients; who brings more is closed."""
    hello_s: float = 5.0
    """From connecting to a whole Hello."""
    frame_s: float = 30.0
    """From the first byte of a frame to its last."""
    ping_s: float = 15.0
    """A side that has heard nothing for so long asks whether the other is there."""
    silent_s: float = 300.0
    """A client that was not heard of for so long is closed. It is long because a program that is
    stopped (Ctrl-Z) is silent too."""

    def __post_init__(self) -> None:
        assert 64 <= self.frame_bytes <= self.all_in_bytes, "a frame fits into what all may bring"
        assert 1024 <= self.answer_bytes <= MOST_ANSWER_BYTES
        assert self.connections >= 1 and self.calls >= 1 and self.window_tokens >= 1
        assert self.frame_bytes <= self.call_bytes
        assert 0 < self.client_out_bytes <= self.all_out_bytes
        assert 0 < self.ping_s < self.silent_s and self.hello_s > 0 and self.frame_s > 0
