"""ImageNet weights of Keras' ResNet-50, from the files of TensorFlow.js, for the backbone of resnet50_v1.py.

    python benchmarks/keras_resnet50.py ResNet50/ resnet50_v1.pth

ResNet50/ holds model.json and the shards that it names, such as group1-shard1of25.bin. The weights expect channels in the order
blue, green, red, from 0 to 255, less the means of ImageNet. Here both are folded into the first convolution, so that the network
takes what all others of timm take. Biases of convolutions and the larger epsilon of Keras are folded into the batch norms.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import resnet50_v1
import torch
from torch import Tensor

MEAN_BGR = torch.tensor([103.939, 116.779, 123.68])
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])  # red, green, blue
EPSILON = 1e-3 - 1e-5  # Keras' less torch's
BLOCKS = {2: "abc", 3: "abcd", 4: "abcdef", 5: "abc"}


def read_shards(folder: Path) -> dict[str, Tensor]:
    """All tensors by their names in Keras, such as res2a_branch2a/kernel."""
    manifest = json.loads((folder / "model.json").read_text())["weightsManifest"]
    tensors: dict[str, Tensor] = {}
    for group in manifest:
        content = b"".join((folder / name).read_bytes() for name in group["paths"])
        start = 0
        for weight in group["weights"]:
            count = int(np.prod(weight["shape"]))
            values = np.frombuffer(content, np.float32, count, start).reshape(weight["shape"])
            tensors[weight["name"]] = torch.from_numpy(values.copy())
            start += 4 * count
        if start != len(content):
            raise ValueError(f"the shards in {folder} have {len(content):,} bytes, model.json describes {start:,}.")
    return tensors


def without_preparation(kernel: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The first convolution for images as timm prepares them.

    kernel  (outputs, 3, 7, 7) for blue, green, red from 0 to 255, less MEAN_BGR
    returns kernel and bias for (image - MEAN) / DEVIATION, in the order red, green, blue
    """
    kernel = kernel.flip(1)
    offset = 255 * MEAN - MEAN_BGR.flip(0)
    bias = bias + (kernel * offset[None, :, None, None]).sum(dim=(1, 2, 3))
    return kernel * (255 * DEVIATION)[None, :, None, None], bias


def convolution_names() -> dict[str, tuple[str, str]]:
    """{name in timm: (name of the convolution in Keras, name of its batch norm)}"""
    names = {"conv1": ("conv1", "bn_conv1")}
    for number, blocks in BLOCKS.items():
        for index, block in enumerate(blocks):
            ours, theirs = f"layer{number - 1}.{index}", f"{number}{block}_branch"
            for place, part in enumerate("abc", start=1):
                names[f"{ours}.conv{place}"] = (f"res{theirs}2{part}", f"bn{theirs}2{part}")
            if index == 0:
                names[f"{ours}.downsample.0"] = (f"res{theirs}1", f"bn{theirs}1")
    return names


def norm_of(convolution: str) -> str:
    """The name in timm of the batch norm behind a convolution."""
    return convolution.replace("downsample.0", "downsample.1").replace("conv", "bn")


def converted(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under timm's names."""
    state: dict[str, Tensor] = {}
    for ours, (convolution, norm) in convolution_names().items():
        kernel, bias = tensors[f"{convolution}/kernel"].permute(3, 2, 0, 1), tensors[f"{convolution}/bias"]
        if ours == "conv1":
            kernel, bias = without_preparation(kernel, bias)
        state[f"{ours}.weight"] = kernel.contiguous()
        prefix = norm_of(ours)
        state[f"{prefix}.weight"], state[f"{prefix}.bias"] = tensors[f"{norm}/gamma"], tensors[f"{norm}/beta"]
        state[f"{prefix}.running_mean"] = tensors[f"{norm}/moving_mean"] - bias
        state[f"{prefix}.running_var"] = tensors[f"{norm}/moving_variance"] + EPSILON
        state[f"{prefix}.num_batches_tracked"] = torch.tensor(0)
    state["fc.weight"], state["fc.bias"] = tensors["fc1000/kernel"].T.contiguous(), tensors["fc1000/bias"]
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path, help="folder with model.json and its shards")
    parser.add_argument("output", type=Path, help="file of weights to write")
    options = parser.parse_args()
    state = converted(read_shards(options.shards))
    resnet50_v1.resnet50_v1().load_state_dict(state)  # every name and shape fits
    torch.save(state, options.output)


if __name__ == "__main__":
    main()
