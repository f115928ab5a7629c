"""Makes `import torchvision` work where its wheel was built for another torch than the one installed.

A torchvision built for CUDA fails beside a CPU torch, because two of its compiled operators are missing. We need neither, so they
are declared without a body. Where torchvision is whole, this does nothing.
"""

import importlib
import sys
from typing import Any

# The declaration must stay alive: when the library object is collected, the operators are gone again.
_declared: list[Any] = []


def ensure_torchvision() -> None:
    """Import torchvision, declaring its missing operators first where that is what stops it."""
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
