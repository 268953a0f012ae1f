"""`options`, imported when a parser asks what a command takes.

The parser's library is half of what a short command imports, and a bare `tokenix ps` has nothing
to parse (`commands.QUICK`). So the modules of such commands leave their annotations unevaluated,
and name options and parameters in them as attributes of this module that is loaded late.
"""

from typing import TYPE_CHECKING

__all__ = ["options"]

if TYPE_CHECKING:
    from tokenix.cli import options
else:
    import sys
    from importlib.util import LazyLoader, find_spec, module_from_spec

    def _lazily(name: str) -> object:
        if name in sys.modules:
            return sys.modules[name]
        spec = find_spec(name)
        spec.loader = LazyLoader(spec.loader)
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    options = _lazily("tokenix.cli.options")
