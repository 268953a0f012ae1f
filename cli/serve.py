"""`tokenix serve`: the daemon."""

from typing import Annotated

from cyclopts import App, Parameter

from tokenix.daemon.options import DEFAULT_MODEL, ServeOptions
from tokenix.daemon.sources import Sources

Config = Annotated[
    str | None,
    Parameter(name="--config", env_var="TOKENIX_CONFIG", help="TOML file with these options."),
]
Model = Annotated[str, Parameter(help="Name, .gguf file or Hugging Face directory.")]
Options = Annotated[ServeOptions, Parameter(name="*")]

sources = Sources()
DEFAULT = ServeOptions()

serve = App(
    name="serve",
    config=[sources.apply],
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)


@serve.default
def run(model: Model = DEFAULT_MODEL, *, config: Config = None, options: Options = DEFAULT) -> int:
    """Serve a model: a socket for the other commands, and an OpenAI-compatible gateway.

    Flags win over environment variables (TOKENIX_HTTP_PORT for --http.port), and these over the
    file; tokenix config show tells what results. There also are the limits of the kernel, each
    an option: --kernel.max-forks 8. SIGTERM drains, a second one ends at once.
    """
    from tokenix.daemon.service import serve as run_daemon

    return run_daemon(model, options)
