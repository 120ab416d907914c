"""fuse: which operators of an ONNX model one chip runs as one kernel, and every decision about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuse.ablation import ablate
    from fuse.bisecting import bisect
    from fuse.engine.compiler import Optimized, candidate, classes_built, optimize, rule_names, steps
    from fuse.engine.compiling import realizes
    from fuse.ir import Graph, Op, leaves, unfuse
    from fuse.lift import load
    from fuse.lower import save, to_proto
    from fuse.report import Report
    from fuse.types import FuseError

    __version__: str

#: Name -> the module it lives in. Imported when used, so that `import fuse` costs next to nothing.
_HOMES = {
    "Graph": "ir", "Op": "ir", "leaves": "ir", "unfuse": "ir", "FuseError": "types",
    "load": "lift", "save": "lower", "to_proto": "lower", "Report": "report",
    "Optimized": "engine.compiler", "optimize": "engine.compiler", "candidate": "engine.compiler",
    "steps": "engine.compiler", "rule_names": "engine.compiler", "classes_built": "engine.compiler",
    "realizes": "engine.compiling", "ablate": "ablation", "bisect": "bisecting",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        return import_module("fuse.version").VERSION
    if name not in _HOMES:
        raise AttributeError(f"module 'fuse' has no attribute {name!r}")
    return getattr(import_module(f"fuse.{_HOMES[name]}"), name)


__all__ = [
    "FuseError",
    "Graph",
    "Op",
    "Optimized",
    "Report",
    "__version__",
    "ablate",
    "bisect",
    "candidate",
    "classes_built",
    "leaves",
    "load",
    "optimize",
    "realizes",
    "rule_names",
    "save",
    "steps",
    "to_proto",
    "unfuse",
]
