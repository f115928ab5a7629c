"""glancefocus: classify images by looking quickly first, and closely only where and when it matters.

import glancefocus as gf
net = gf.create("gf-resnet50-96", classes=1000)
bundle = gf.load("runs/signs/bundle")
outcome = bundle.predict(["a.jpg"])
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glancefocus.bundle.bundle import Bundle, load
    from glancefocus.errors import GlancefocusError
    from glancefocus.loop import ExitRule, look_until_sure
    from glancefocus.network.weights import create
    from glancefocus.outcome import Outcome
    from glancefocus.serving.client import Client

__version__ = "0.1.0"

# Libraries that we use read these when they are imported; without them they report their use over the network, and ONNX Runtime
# keeps an id of the device in the home folder. Values that a user has set stay.
for _switch in ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ.setdefault(_switch, "1")

# Public names and where they live. They are imported when first used, so that `import glancefocus` costs nothing.
_HOMES = {
    "Bundle": "glancefocus.bundle.bundle",
    "Client": "glancefocus.serving.client",
    "ExitRule": "glancefocus.loop",
    "GlancefocusError": "glancefocus.errors",
    "Outcome": "glancefocus.outcome",
    "create": "glancefocus.network.weights",
    "load": "glancefocus.bundle.bundle",
    "look_until_sure": "glancefocus.loop",
}

__all__ = [
    "Bundle",
    "Client",
    "ExitRule",
    "GlancefocusError",
    "Outcome",
    "__version__",
    "create",
    "load",
    "look_until_sure",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'glancefocus' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
