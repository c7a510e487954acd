"""BytePS: gradients summed by services on every CPU, so that all NICs of the cluster work (OSDI 2020).

`import byteps` is the API for numpy arrays, `import byteps.torch` the one for PyTorch tensors.
Names are loaded on first use (PEP 562): servers and schedulers import neither torch nor what they do not need.
"""

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

from byteps.version import VERSION as __version__

if TYPE_CHECKING:
    from byteps.api import (
        broadcast,
        declare,
        init,
        local_rank,
        local_size,
        poll,
        push_pull,
        push_pull_async,
        push_pull_async_inplace,
        push_pull_inplace,
        rank,
        shutdown,
        size,
        synchronize,
    )
    from byteps.shared import SharedArray

__all__ = [
    "SharedArray",
    "__version__",
    "broadcast",
    "declare",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]


def _refuse_official_package() -> None:
    """Both distributions own the import name `byteps`; their files would mix."""
    try:
        official = metadata.version("byteps")
    except metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"the official byteps {official} is installed in this environment, and byteps-reproduction uses the same "
        "import name; run `pip uninstall byteps`, or install byteps-reproduction into an environment of its own"
    )


_refuse_official_package()


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = importlib.import_module("byteps.shared" if name == "SharedArray" else "byteps.api")
        value = globals()[name] = getattr(module, name)  # once per name
        return value
    raise AttributeError(f"module 'byteps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
