"""`tokenix completion`: the script that lets a shell complete our command lines."""

from typing import Annotated, Literal

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.status import OK


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Which shell.")],
) -> int:
    """Print a completion script. For bash: source <(tokenix completion bash)"""
    from tokenix.cli.app import app

    stdout.write(app.generate_completion(prog_name="tokenix", shell=shell) + "\n")
    return OK
