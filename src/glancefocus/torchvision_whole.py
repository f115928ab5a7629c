"""Makes `import torchvision` work if its wheel was built for another torch than the installed one.

A torchvision built for CUDA fails with a CPU torch, because two of its compiled operators are missing. Neither is needed here, so
they are declared without an implementation. With a matching torchvision this does nothing.
"""

import importlib
import sys
from typing import Any

# Keeps the library object alive: when it is garbage collected, the operators are removed.
_declared: list[Any] = []


def ensure_torchvision() -> None:
    """Import torchvision; if missing operators prevent that, declare them first."""
    if "torchvision" in sys.modules:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
            del sys.modules[name]
        import torch

        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
        importlib.import_module("torchvision")
