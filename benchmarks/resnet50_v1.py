"""The command gf with one more backbone: ResNet-50 as first published, with the stride in the first convolution of a block.

    python benchmarks/resnet50_v1.py train photos.csv --backbone resnet50_v1 --weights resnet50_v1.pth -o runs/resnet50

timm's `resnet50` has the stride in the second convolution. Weights from Keras (keras_resnet50.py) need it in the first one. All
words go to `gf`.
"""

import sys

from glancefocus.machine import ensure_torchvision

ensure_torchvision()
import timm  # noqa: E402  (torchvision must be whole before timm imports it)
from torch import nn  # noqa: E402


def resnet50_v1(pretrained: bool = False, **options: object) -> nn.Module:
    """timm's ResNet-50 with the strides of the first version: 3.86 instead of 4.09 billion multiply-adds at 224 px."""
    if pretrained:
        raise ValueError("timm has no weights of resnet50_v1: give a file with --weights.")
    net: nn.Module = timm.create_model("resnet50", **options)
    for stage in (net.layer2, net.layer3, net.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return net


resnet50_v1.__module__ = "timm.models.resnet"  # timm files a model under the module that defines it
timm.models.register_model(resnet50_v1)


if __name__ == "__main__":
    from glancefocus.cli.main import main

    sys.exit(main())
