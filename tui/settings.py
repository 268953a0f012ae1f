"""What a user can choose: flags, and the table `[top]` of the configuration file."""

import msgspec


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    refresh_s: float = 0.5
    """Seconds between looks."""
    theme: str = "tokenix-dark"
    sort: str = "lead"
    prompts: bool = False
    """Commands are shown from the beginning."""
    keys: dict[str, str] = {}
    """Name of an action -> its keys, with commas between."""
