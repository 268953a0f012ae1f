"""The commands by name, and where each is. Data, as nothing is imported before one is chosen."""

COMMANDS = {
    "Serving": {
        "serve": "tokenix.cli.serve:serve",
        "config": "tokenix.cli.settings:config",
        "keys": "tokenix.cli.apikeys:keys",
        "abi": "tokenix.cli.schema:abi",
    },
    "Asking": {
        "run": "tokenix.cli.asking:run",
        "chat": "tokenix.cli.asking:chat",
        "list": "tokenix.cli.models:list_command",
        "show": "tokenix.cli.models:show",
    },
    "Processes": {
        "ps": "tokenix.cli.processes:ps",
        "stat": "tokenix.cli.processes:stat",
        "wait": "tokenix.cli.processes:wait",
        "maps": "tokenix.cli.maps:maps",
        "kill": "tokenix.cli.signals:kill",
        "nice": "tokenix.cli.signals:nice",
        "suspend": "tokenix.cli.imagefiles:suspend",
        "resume": "tokenix.cli.imagefiles:resume",
        "unlink": "tokenix.cli.imagefiles:unlink",
        "images": "tokenix.cli.imagefiles:images",
        "attach": "tokenix.cli.attach:attach",
    },
    "The machine": {
        "top": "tokenix.tui.command:top",
        "vmstat": "tokenix.cli.memory:vmstat",
        "free": "tokenix.cli.memory:free",
        "swapon": "tokenix.cli.memory:swapon",
        "swapoff": "tokenix.cli.memory:swapoff",
        "sysctl": "tokenix.cli.controls:sysctl",
        "strace": "tokenix.cli.traces:strace",
        "dmesg": "tokenix.cli.traces:dmesg",
        "plan": "tokenix.cli.maps:plan",
        "prefixes": "tokenix.cli.maps:prefixes",
    },
    "Experiments": {
        "demo": "tokenix.cli.showcase:demo",
        "sim": "tokenix.cli.sim:sim",
        "bench": "tokenix.cli.bench:bench",
    },
    "The shell": {
        "completion": "tokenix.cli.completion:completion",
    },
}
"""Group of the help page -> command -> where it is."""

QUICK = frozenset({"ps", "vmstat", "free", "dmesg", "images", "sysctl"})
"""Commands that people repeat, and that mean something without an argument. Without one they are
called as they are, with no parser (`tests/cli/test_quick.py`)."""


def place_of(name: str) -> tuple[str, str]:
    """Module and function of a command."""
    module, _, function = next(
        group[name] for group in COMMANDS.values() if name in group
    ).partition(":")
    return module, function
