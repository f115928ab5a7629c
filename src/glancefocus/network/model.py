"""GlanceFocus: the whole network. `glance` makes the first look, `focus` the next; nothing is remembered in between."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from glancefocus.errors import BadSetting
from glancefocus.look import Aim, Look, padded_alike, rows_by_size
from glancefocus.network.classifier import CascadedClassifier, RecurrentClassifier
from glancefocus.network.encoder import Encoder, Encoding
from glancefocus.network.policy import LearntPolicy
from glancefocus.scene import Scene, as_scene, frames_of
from glancefocus.settings import NetworkSettings


class GlanceFocus(nn.Module):
    """Glance encoder, focus encoder, classifier, policy, put together as the settings say."""

    def __init__(
        self,
        settings: NetworkSettings,
        glance_encoder: Encoder,
        focus_encoder: Encoder,
        classifier: RecurrentClassifier | CascadedClassifier,
        policy: LearntPolicy,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.glance_encoder = glance_encoder
        self.focus_encoder = focus_encoder
        self.classifier = classifier
        self.policy = policy

    def glance(self, scene: Scene | Tensor | Sequence[Tensor]) -> Look:
        """The first look: the whole of each image at low resolution.

        scene  a scene, or a normalised batch (B, 3, H, W), or a list of images of any sizes; for a network of clips
               (B, frames, 3, H, W)
        """
        scene = as_scene(scene)
        settings = self.settings
        check_frames(scene, settings.frames)
        return self.first_look(scene, self.glance_encoder(scene.glance(settings.glance_px, settings.glance_resize)))

    def first_look(self, scene: Scene, encoding: Encoding, answer: tuple[Tensor, Tensor] | None = None) -> Look:
        """The first look at a scene whose glance is encoded already; answer: memory and logits, where they are known, too."""
        memory, logits = self.answer_glance(encoding.vector) if answer is None else answer
        return Look(
            number=1,
            scene=scene,
            rows=torch.arange(logits.shape[0], device=logits.device),
            logits=logits,
            vector=encoding.vector,
            map=encoding.map,
            px=self.settings.glance_px,
            memory=memory,
        )

    def focus(self, look: Look, aim: Aim) -> Look:
        """The next look: one patch of each image at full resolution, where it was aimed."""
        encoding = self.encode_patches(look.scene, aim)
        memory = self.classifier.remember(encoding.vector, look.memory)
        number = look.number + 1
        return Look(
            number=number,
            scene=look.scene,
            rows=look.rows,
            logits=self.classifier.answer(memory, number),
            vector=encoding.vector,
            map=encoding.map,
            px=aim.patch_px,
            memory=memory,
            policy_memory=aim.memory,
            aim=aim,
        )

    def encode_patches(self, scene: Scene, aim: Aim) -> Encoding:
        """What the focus encoder makes of the patches; rows of different patch sizes are grouped, not padded."""
        px = aim.patch_px
        if isinstance(px, int):
            encoding: Encoding = self.focus_encoder(scene.patch(aim.where, px))
            return encoding
        groups = rows_by_size(px)
        encodings = [self.focus_encoder(scene.keep(rows).patch(aim.where[rows], size)) for size, rows in groups]
        maps = padded_alike([e.map for e in encodings])
        order = torch.cat([rows for _, rows in groups]).argsort()
        return Encoding(torch.cat(maps)[order], torch.cat([e.vector for e in encodings])[order])

    def own_answer(self, look: Look) -> Tensor:
        """What the encoder of this look would answer alone, (B, classes): the regulariser of Eq. 9."""
        encoder = self.glance_encoder if look.number == 1 else self.focus_encoder
        return encoder.own_head(look.vector)

    def answer_glance(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """The classifier's memory of the glance, and the first answer, from whom the settings say."""
        memory = self.classifier.remember(vector, None)
        return memory, self.first_answer(vector, memory)

    def first_answer(self, vector: Tensor, memory: Tensor) -> Tensor:
        """(B, classes) after the glance."""
        first = self.settings.first_answer
        # While stages train, some parts are in training mode and some are not: here it is the classifier's that counts.
        if first == "own_head" or (first == "own_head_evaluating" and not self.classifier.training):
            return self.glance_encoder.own_head(vector)
        return self.classifier.answer(memory, 1)


def check_frames(scene: Scene, frames: int) -> None:
    """Refuse images where clips are looked at, clips where images are, and clips of another length."""
    if frames_of(scene) != frames:
        raise BadSetting(
            f"this network looks at {_what(frames)}, but got {_what(frames_of(scene))}. "
            "Give it a tensor of shape (batch, frames, 3, height, width), or a network of as many frames."
        )


def _what(frames: int) -> str:
    return "images" if frames == 1 else f"clips of {frames} frames"
