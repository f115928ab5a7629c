"""Encoders of clips: the same timm backbones over all frames, with the temporal shift between them."""

from torch import Tensor, nn

from glancefocus.network.encoder import Encoder, Encoding
from glancefocus.network.temporal_shift import add_temporal_shift


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

    def evidence(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean over a clip's frames, whose answers are averaged, too."""
        each = super().evidence(images, labels.repeat_interleave(self.frames))
        return each.reshape(-1, self.frames, *each.shape[1:]).mean(dim=1)
