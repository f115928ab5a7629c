"""Encoders of clips, with the temporal shift (TSM).

In each residual block some channels come from the next frame, some from the previous one. It has no weights and costs no
multiply-adds. It is put before the first convolution of a block, inside the residual branch: what the block adds has seen its
neighbours in time, the shortcut has not. The backbone stays the same module, and its weights keep their names.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from glancefocus.errors import BadSetting
from glancefocus.network.modules import Encoder, Encoding

# timm's residual blocks -> the first convolution of their branch.
_FIRST_CONVOLUTION = {
    "BasicBlock": "conv1",
    "Bottleneck": "conv1",
    "PreActBasic": "conv1",
    "PreActBottleneck": "conv1",
    "NormFreeBlock": "conv1",
    "InvertedResidual": "conv_pw",
    "EdgeResidual": "conv_exp",
    "ConvNeXtBlock": "conv_dw",
}
# With that many in one stage (ResNet-101 and deeper) every second block of all stages is shifted, as in TSM.
_MANY_BLOCKS = 23


def shift_frames(maps: Tensor, frames: int, div: int) -> Tensor:
    """Maps in which 1/div of the channels are those of the next frame, and as many those of the frame before.

    maps     (B x frames, C, H, W), the frames of a clip one after the other
    returns  the same shape; where there is no next frame or none before, zeros
    """
    moved = maps.shape[1] // div
    if moved == 0:
        return maps
    clips = maps.view(-1, frames, *maps.shape[1:])
    if torch.compiler.is_exporting():
        return _joined(clips, moved).flatten(0, 1)
    shifted = maps.clone().view(clips.shape)
    shifted[:, :-1, :moved] = clips[:, 1:, :moved]
    shifted[:, -1, :moved] = 0
    shifted[:, 1:, moved : 2 * moved] = clips[:, :-1, moved : 2 * moved]
    shifted[:, 0, moved : 2 * moved] = 0
    return shifted.flatten(0, 1)


def _joined(clips: Tensor, moved: int) -> Tensor:
    """The same put together from pieces: in a graph, writing into slices (which keeps the layout) becomes scattered indices."""
    nothing = torch.zeros_like(clips[:, :1, :moved])
    later = torch.cat([clips[:, 1:, :moved], nothing], dim=1)
    earlier = torch.cat([nothing, clips[:, :-1, moved : 2 * moved]], dim=1)
    return torch.cat([later, earlier, clips[:, :, 2 * moved :]], dim=2)


@dataclass(frozen=True)
class ShiftBefore:
    """Called by torch with what a convolution is about to be given."""

    frames: int
    div: int

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (shift_frames(inputs[0], self.frames, self.div), *inputs[1:])


def add_temporal_shift(backbone: nn.Module, frames: int, div: int) -> int:
    """Let every residual block of a backbone see its neighbours in time; returns in how many places."""
    convolutions = list(_shifted_convolutions(backbone))
    if not convolutions:
        raise BadSetting(
            f"the temporal shift goes into residual blocks of convolutions; {type(backbone).__name__} has none that are supported. "
            "Choose a ResNet, RegNet, MobileNet, EfficientNet or ConvNeXt, or shift_div=0 for frames that are only averaged."
        )
    for convolution in convolutions:
        convolution.register_forward_pre_hook(ShiftBefore(frames, div))
    return len(convolutions)


def _shifted_convolutions(backbone: nn.Module) -> Iterator[nn.Module]:
    stages = list(_stages(backbone))
    step = 2 if any(len(stage) >= _MANY_BLOCKS for stage in stages) else 1
    for stage in stages:
        for block in stage[::step]:
            # Inverted residuals that change the resolution or the width have no shortcut to keep the frame itself.
            if getattr(block, "has_skip", True):
                yield getattr(block, _FIRST_CONVOLUTION[type(block).__name__])


def _stages(backbone: nn.Module) -> Iterator[list[Any]]:
    """The residual blocks, those that follow one another in one container together."""
    for module in backbone.modules():
        blocks = [child for child in module.children() if type(child).__name__ in _FIRST_CONVOLUTION]
        if blocks:
            yield blocks


class ClipEncoder(Encoder):
    """A backbone that sees the frames of a clip as a batch; its answers and vectors are averaged over them.

    frames     of a clip
    shift_div  1/shift_div of the channels is shifted each way in time; 0: no shift, every frame for itself
    """

    def __init__(self, backbone: nn.Module, frames: int, shift_div: int) -> None:
        super().__init__(backbone)
        self.frames = frames
        if shift_div > 0:
            add_temporal_shift(backbone, frames, shift_div)

    def forward(self, images: Tensor) -> Encoding:
        """What is in B clips.

        images  (B x frames, 3, H, W), the frames of a clip one after the other
        map     (B, frames x channels, S, S), first all channels of the first frame
        vector  (B, features), the mean over the frames. The backbone's own head is linear, so that its answer to the mean is the
                mean of its answers: TSM's consensus
        """
        each = super().forward(images)
        _, channels, rows, columns = each.map.shape
        maps = each.map.reshape(-1, self.frames * channels, rows, columns)
        return Encoding(maps, each.vector.reshape(-1, self.frames, each.vector.shape[1]).mean(dim=1))

    def answers_and_evidence(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The mean over a clip's frames of both."""
        answers, each = super().answers_and_evidence(images, labels.repeat_interleave(self.frames))
        mean = answers.reshape(-1, self.frames, answers.shape[1]).mean(dim=1)
        return mean, each.reshape(-1, self.frames, *each.shape[1:]).mean(dim=1)
