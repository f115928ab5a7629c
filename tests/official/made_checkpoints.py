"""Checkpoints in the format of the paper's release, with weights that are drawn anew each time from seeds.

keys.json.gz has the names and shapes of the released files' tensors. The seed of each tensor is the checksum of its name,
so what the authors' code answers with these weights could be computed once: NAME.npz holds, for the first two of `images`, the
logits of the first 50 classes (looks, 2, 50), the largest absolute logit of each look over all classes (looks,), and where it
looked (looks - 1, 2, 2).
"""

import gzip
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent
ENCODERS = ("model_prime_state_dict", "model_state_dict")


@dataclass(frozen=True)
class Model:
    """One of the released models; `variance` scales the running variances so that activations stay of order one."""

    name: str
    patch_px: int
    looks: int
    image_px: int
    variance: float


MODELS = {
    "resnet50_96": Model("resnet50", 96, 5, 224, 1.0),
    "densenet121_96": Model("densenet121", 96, 5, 224, 0.5),
    "densenet201_96": Model("densenet201", 96, 5, 224, 0.5),
    "regnety_600m_96": Model("regnety_600m", 96, 5, 224, 1.0),
    "regnety_1.6g_96": Model("regnety_1.6g", 96, 5, 224, 1.0),
    "mobilenetv3_large_100_96": Model("mobilenetv3_large_100", 96, 3, 224, 1.0),
    "mobilenetv3_large_125_128": Model("mobilenetv3_large_125", 128, 3, 224, 1.0),
    "efficientnet_b2_128": Model("efficientnet_b2", 128, 4, 260, 0.88),
    "efficientnet_b3_144": Model("efficientnet_b3", 144, 4, 300, 0.88),
}
ANSWERED = sorted(path.stem for path in FOLDER.glob("*.npz"))


def shapes(model: str) -> dict[str, dict[str, list[int]]]:
    """{part: {name: shape}} for the four state dicts of a released file, names without `module.`."""
    keys = json.loads(gzip.decompress((FOLDER / "keys.json.gz").read_bytes()))[model]
    return {**dict.fromkeys(ENCODERS, keys["encoder"]), "fc": keys["fc"], "policy": keys["policy"]}


def draw(part: str, name: str, shape: list[int], variance: float) -> Tensor:
    """The tensor of this name: matrices keep the size of what goes through them, scales lie near 1, shifts near 0."""
    if name.endswith("num_batches_tracked"):
        return torch.zeros((), dtype=torch.int64)
    values = np.random.default_rng(zlib.crc32(f"{part}.{name}".encode())).standard_normal(shape)
    if name.endswith("running_var"):
        values = variance * (1 + 0.2 * np.abs(values))
    elif name.endswith("running_mean"):
        values = 0.1 * values
    elif len(shape) > 1:
        values = values * math.sqrt(2 / math.prod(shape[1:]))
    elif name.endswith("bias") or "bias_" in name:
        values = 0.1 * values
    else:
        values = 1 + 0.1 * values
    return torch.from_numpy(np.asarray(values, np.float32))


def checkpoint(model: str, *, bare: bool = False, told: bool = True) -> dict[str, Any]:
    """What torch.load would give.

    bare   encoder keys without `module.`, as the authors' training script saves them
    told   with the fields that say which model it is
    """
    facts = MODELS[model]
    made: dict[str, Any] = {}
    if told:
        made = {
            "model_name": facts.name,
            "patch_size": facts.patch_px,
            "flops": [float(i + 1) for i in range(facts.looks)],
        }
    for part, tensors in shapes(model).items():
        prefix = "module." if part in ENCODERS and not bare else ""
        made[part] = {prefix + name: draw(part, name, shape, facts.variance) for name, shape in tensors.items()}
    return made


def images(px: int, count: int = 2) -> Tensor:
    """(count, 3, px, px), normalised already: each the sum of 24 waves."""
    y, x = np.mgrid[0:px, 0:px] / px
    made = np.zeros((count, 3, px, px))
    for index in range(count):
        random = np.random.default_rng(100 + index)
        for _ in range(24):
            across, down, phase = random.uniform(1, 40, 1), random.uniform(1, 40, 1), random.uniform(0, 6.28, 3)
            height = random.uniform(0.1, 0.5)
            made[index] += height * np.sin(2 * np.pi * (across * x + down * y)[None] + phase[:, None, None])
    return torch.from_numpy(made.astype(np.float32))


def answers(model: str) -> dict[str, Tensor]:
    """logits, largest, locations: what the authors' code answers."""
    with np.load(FOLDER / f"{model}.npz") as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}
