"""A run of seconds, as a program of its own so that it can be killed: python tiny_run.py FOLDER [SETTINGS AS JSON]."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from glancefocus.errors import GlancefocusError
from glancefocus.interrupts import Interrupted
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings
from glancefocus.values import from_plain

EPOCHS = {"backbone": 1, "glance": 1, "recognise": 1, "point": 1, "aim": 2, "finetune": 1, "joint": 1}
# The same in the words of the command.
WORDS = [
    *("--backbone", "test_resnet", "--height-px", "96", "--width-px", "96", "--scenes", "24", "10", "5"),
    *("--glance-px", "32", "--patch-px", "32", "--looks", "2", "--batch-size", "8"),
    *("--set", "checkpoint_minutes=0", "--set", "network.classifier_units=8"),
]


def tiny_settings(**changes: Any) -> TrainSettings:
    """All stages on a handful of scenes; a checkpoint after every step."""
    plain: dict[str, Any] = {
        "data": {
            "source": "signs",
            "workers": 0,
            "scenes": [24, 10, 5],
            "signs": {"height": 96, "width": 96},
        },
        "network": {
            "backbone": "test_resnet",
            "classes": 5,
            "glance_px": 32,
            "focus": ["32"],
            "looks": 2,
            "classifier_units": 8,
            "policy": {"units": 8, "conv_channels": 2},
            "view": {"fit": "whole", "height_px": 96, "width_px": 96},
        },
        "batch_size": 8,
        "checkpoint_minutes": 0,
        "rivals": "none",
        **{stage: {"epochs": epochs} for stage, epochs in EPOCHS.items()},
    }
    for name, value in changes.items():
        plain[name] = {**plain.get(name, {}), **value} if isinstance(value, dict) else value
    return from_plain(TrainSettings, plain)


def main() -> None:
    torch.set_num_threads(1)
    changes = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    folder = Path(sys.argv[1])
    try:
        bundle = train(tiny_settings(**changes), folder)
        torch.save(bundle.net.state_dict(), folder / f"rank-{os.environ.get('RANK', '0')}.pt")
    except GlancefocusError as error:
        sys.exit(f"gf: {error}")
    except Interrupted:
        sys.exit(130)


if __name__ == "__main__":
    main()
