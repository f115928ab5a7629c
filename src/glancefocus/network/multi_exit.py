"""Comparison networks with several exits: MSDNet, and ensembles of backbones of growing depth.

They see the whole image at full resolution and answer after each exit, the next one cheaper than starting anew. Their exits are
recorded like looks (evaluation/records.py), so that the solvers, curves and reports of look records work for them.

MSDNet: Huang, Chen, Li, Wu, van der Maaten, Weinberger, *Multi-Scale Dense Networks for Resource Efficient Image Classification*
(ICLR 2018).
"""

import copy
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from glancefocus.errors import BadSetting
from glancefocus.network.build import build_backbone
from glancefocus.network.macs import WithoutNorms, count_macs
from glancefocus.values import Classes, PositiveShare, Range, check_fields

Layers = Annotated[int, Range(1, 64)]
Width = Annotated[int, Range(1, 1024)]
Factor = Annotated[int, Range(1, 64)]


@dataclass(frozen=True)
class MSDNetSettings:
    """One MSDNet. The defaults are the published one for ImageNet with 5 exits, 4 layers apart.

    exits       number of classifiers
    base        layers before the first exit
    step        layers between exits; with growing=True 1 x step + 1, 2 x step + 1, ... instead
    channels    of the first layer at the finest scale, before `widths`
    growth      channels that each layer adds, before `widths`
    widths      factor on channels and growth of each scale, the finest first; their number is the number of scales
    bottleneck  at each scale, the 1x1 convolution has at most this many times the channels of the following 3x3 convolution
    reduction   share of the channels that a transition keeps, where the finest scale is left behind
    stem        large: for images of about 224 px, 7x7 with stride 2 and pooling; small: for about 32 px, 3x3 with stride 1
    """

    classes: Classes = 1000
    exits: Layers = 5
    base: Layers = 4
    step: Layers = 4
    growing: bool = False
    channels: Width = 32
    growth: Width = 16
    widths: tuple[Factor, ...] = (1, 2, 4, 4)
    bottleneck: tuple[Factor, ...] = (1, 2, 4, 4)
    reduction: PositiveShare = 0.5
    stem: Literal["large", "small"] = "large"

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= len(self.widths) == len(self.bottleneck) <= 8:
            raise BadSetting(
                "widths and bottleneck must have one number for each scale, 1 to 8 of them, but got "
                f"{list(self.widths)} and {list(self.bottleneck)}."
            )
        if self.growth < 2 and len(self.widths) > 1:
            raise BadSetting(f"growth is divided between two scales, so it must be at least 2, but got {self.growth}.")

    @property
    def layers_per_exit(self) -> list[int]:
        """Layers before the first exit, between the first and the second, ..."""
        later = [self.step * number + 1 if self.growing else self.step for number in range(1, self.exits)]
        return [self.base, *later]


MSDNET_IMAGENET = {f"msdnet-{step}": MSDNetSettings(base=step, step=step) for step in (4, 6, 7)}
"""The three networks of the paper for ImageNet, by the number of layers between exits."""


def _convolution(channels: int, made: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, made, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(made), nn.ReLU(inplace=True)
    )


def _branch(channels: int, made: int, stride: int, bottleneck: int) -> nn.Sequential:
    """A 1x1 convolution to few channels, then a 3x3 one."""
    few = min(channels, bottleneck * made)
    return nn.Sequential(_convolution(channels, few, 1), _convolution(few, made, 3, stride))


class _FirstLayer(nn.Module):
    """From the image to all scales, each by a convolution with stride 2 from the one before."""

    def __init__(self, settings: MSDNetSettings) -> None:
        super().__init__()
        widths = [settings.channels * width for width in settings.widths]
        if settings.stem == "large":
            first: nn.Module = nn.Sequential(
                nn.Conv2d(3, widths[0], 7, 2, 3),
                nn.BatchNorm2d(widths[0]),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(3, 2, 1),
            )
        else:
            first = _convolution(3, widths[0], 3)
        self.scales = nn.ModuleList([first, *(_convolution(a, b, 3, 2) for a, b in itertools.pairwise(widths))])

    def forward(self, image: Tensor) -> list[Tensor]:
        maps = []
        for scale in self.scales:
            image = scale(image)
            maps.append(image)
        return maps


class _Layer(nn.Module):
    """Adds channels at every scale that is left, from the same scale and from the next finer one.

    channels     that go in, before `widths`
    finest_in    number of the finest scale that goes in, 0 for the finest of all
    finest       number of the finest scale that comes out
    """

    def __init__(self, settings: MSDNetSettings, channels: int, finest_in: int, finest: int) -> None:
        super().__init__()
        self.finest_in, self.finest = finest_in, finest
        widths, narrow = settings.widths, settings.bottleneck
        self.same, self.finer = nn.ModuleList(), nn.ModuleDict()
        for scale in range(finest, len(widths)):
            made = settings.growth * widths[scale]
            if scale > finest_in:
                made //= 2
                before = _branch(channels * widths[scale - 1], made, 2, narrow[scale - 1])
                self.finer[str(scale)] = before
            self.same.append(_branch(channels * widths[scale], made, 1, narrow[scale]))

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        grown = []
        for number, same in enumerate(self.same):
            scale = self.finest + number
            own = maps[scale - self.finest_in]
            added = [same(own)]
            if str(scale) in self.finer:
                added.insert(0, self.finer[str(scale)](maps[scale - 1 - self.finest_in]))
            grown.append(torch.cat([own, *added], dim=1))
        return grown


class _Transition(nn.Module):
    """Fewer channels at every scale."""

    def __init__(self, settings: MSDNetSettings, channels: int, kept: int, finest: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            [_convolution(channels * width, kept * width, 1) for width in settings.widths[finest:]]
        )

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        return [scale(map_) for scale, map_ in zip(self.scales, maps, strict=True)]


class _Exit(nn.Module):
    """The classifier at the coarsest scale."""

    def __init__(self, settings: MSDNetSettings, channels: int) -> None:
        super().__init__()
        inner = channels if settings.stem == "large" else 128
        self.convolutions = nn.Sequential(_convolution(channels, inner, 3, 2), _convolution(inner, inner, 3, 2))
        self.linear = nn.Linear(inner, settings.classes)

    def forward(self, maps: list[Tensor]) -> Tensor:
        logits: Tensor = self.linear(self.convolutions(maps[-1]).mean(dim=(2, 3)))
        return logits


class MSDNet(nn.Module):
    """Dense layers at several scales, with a classifier after every few of them. Finer scales are left behind on the way."""

    def __init__(self, settings: MSDNetSettings) -> None:
        super().__init__()
        self.settings = settings
        widths, steps = settings.widths, settings.layers_per_exit
        # All scales but the coarsest are dropped one by one, after equal numbers of layers.
        interval = math.ceil(sum(steps) / len(widths))
        channels, number = settings.channels, 0
        self.blocks, self.classifiers = nn.ModuleList(), nn.ModuleList()
        for step in steps:
            layers: list[nn.Module] = [_FirstLayer(settings)] if number == 0 else []
            for _ in range(step):
                finest_in, finest = max(0, number - 1) // interval, number // interval
                layers.append(_Layer(settings, channels, finest_in, finest))
                channels += settings.growth
                if finest > finest_in and settings.reduction < 1:
                    kept = math.floor(settings.reduction * channels)
                    layers.append(_Transition(settings, channels, kept, finest))
                    channels = kept
                number += 1
            self.blocks.append(nn.Sequential(*layers))
            self.classifiers.append(_Exit(settings, channels * widths[-1]))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    @property
    def exit_count(self) -> int:
        return len(self.classifiers)

    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, classes) logits of every exit."""
        answers, maps = [], images
        for block, classifier in zip(self.blocks, self.classifiers, strict=True):
            maps = block(maps)
            answers.append(classifier(maps))
        return answers


class DepthEnsemble(nn.Module):
    """Backbones of growing depth, one after the other: after each one, the answer is the mean of the probabilities so far.

    The ensemble of DenseNets that MSDNet's paper and the paper (section 5.2.1) compare with.
    """

    def __init__(self, backbones: Sequence[str], classes: int, options: dict[str, object] | None = None) -> None:
        super().__init__()
        if not backbones:
            raise BadSetting("an ensemble needs at least one backbone, but got none.")
        self.members = nn.ModuleList([build_backbone(name, classes, dict(options or {})) for name in backbones])

    @property
    def exit_count(self) -> int:
        return len(self.members)

    def own_answers(self, images: Tensor) -> list[Tensor]:
        """(B, classes) logits of every member alone, which each learns by."""
        return [member(images) for member in self.members]

    def forward(self, images: Tensor) -> list[Tensor]:
        """(B, classes) after each member: logarithms of the mean probabilities, which are logits, too."""
        probabilities = [logits.float().softmax(dim=1) for logits in self.own_answers(images)]
        sums = torch.stack(probabilities).cumsum(dim=0)
        return [(total / count).clamp_min(1e-12).log() for count, total in enumerate(sums, start=1)]


MultiExit = MSDNet | DepthEnsemble


def count_exits(net: MultiExit, height_px: int, width_px: int) -> tuple[int, ...]:
    """Multiply-adds spent when stopping at each exit, for one image; the classifiers of the exits before are among them."""
    net = copy.deepcopy(net).to("meta").eval()
    with torch.device("meta"), torch.no_grad(), WithoutNorms():
        given = torch.empty(1, 3, height_px, width_px)
        if isinstance(net, DepthEnsemble):
            each = [count_macs(functools.partial(member, given)) for member in net.members]
            return tuple(itertools.accumulate(each))
        spent = []
        for block, classifier in zip(net.blocks, net.classifiers, strict=True):
            before, given = given, block(given)
            spent.append(count_macs(lambda b=block, x=before: b(x)) + count_macs(lambda c=classifier, x=given: c(x)))  # type: ignore[misc]
    return tuple(itertools.accumulate(spent))
