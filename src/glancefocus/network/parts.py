"""A network taken apart into graphs of tensors, for runtimes and exports. The loop stays outside of them.

    glance       glances -> logits, memory, map
    aim_96       map, policy_memory [, next_size] -> where, policy_memory, value      one for every size that a look can have
    focus        patches, memory -> logits, memory, map                               with a recurrent classifier
    focus        patches -> vector, map                                               with a cascaded one, which also has
    answer_2     memory -> logits                                                     for every look after the glance

Glances and patches are (B, 3, px, px), for clips (B, frames, 3, px, px); every other tensor has the batch first too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.network.encoder import Encoding
from glancefocus.network.model import CascadedClassifier, GlanceFocus, RecurrentClassifier
from glancefocus.network.policy import Aimed


@dataclass(frozen=True)
class Part:
    """One graph.

    inputs, outputs  their names, in order
    shapes           of the inputs, without the batch
    px               the sizes of images that this part takes; empty where it takes none. `shapes` is for the first.
    """

    name: str
    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    px: tuple[int, ...] = ()

    def example(
        self, batch: int, px: int | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, ...]:
        """Random inputs; px: the size of the images, where it is not the first."""
        shapes = [(*shape[:-2], px, px) if px is not None and i == 0 else shape for i, shape in enumerate(self.shapes)]
        return tuple(torch.randn(batch, *shape, generator=generator) for shape in shapes)


def aim_part(px: int) -> str:
    return f"aim_{px}"


def answer_part(look: int) -> str:
    return f"answer_{look}"


def take_apart(net: GlanceFocus) -> list[Part]:
    """Every part of a network, in evaluation mode; they share its weights."""
    return list(_parts(net.eval()))


def with_best(part: Part) -> Part:
    """The same part; if it answers, `confidence` and `answer` (see Look.best) are two more outputs, at no cost in a graph."""
    if "logits" not in part.outputs:
        return part
    module = WithBest(part.module, part.outputs.index("logits"))
    return replace(part, module=module, outputs=(*part.outputs, "confidence", "answer"))


def whole_backbone(net: GlanceFocus) -> Part:
    """The plain backbone with its own head, at the size of the view: the baseline to compare with.

    backbone     images -> logits
    """
    settings = net.settings
    frames = () if settings.frames == 1 else (settings.frames,)
    shape = (*frames, 3, settings.view.height_px, settings.view.width_px)
    return Part("backbone", BackbonePart(net.eval()), ("images",), ("logits",), (shape,))


def _parts(net: GlanceFocus) -> Iterator[Part]:
    settings, policy = net.settings, net.policy
    cascaded = isinstance(net.classifier, CascadedClassifier)
    frames = () if settings.frames == 1 else (settings.frames,)
    glance_px, patch_px = settings.glance_px, settings.patch_px
    units, features = policy.gru.hidden_size, net.glance_encoder.vector_features
    yield Part(
        "glance",
        GlancePart(net),
        ("glances",),
        ("logits", "memory", "map"),
        ((*frames, 3, glance_px, glance_px),),
        (glance_px,),
    )
    if settings.looks == 1:
        return
    channels = settings.frames * net.glance_encoder.map_channels
    for px in sorted({glance_px, *patch_px} if settings.looks > 2 else {glance_px}):
        side = policy.map_sides[px]
        shapes: tuple[tuple[int, ...], ...] = ((channels, side, side), (units,))
        names: tuple[str, ...] = ("map", "policy_memory")
        if policy.multi_scale:
            names, shapes = (*names, "next_size"), (*shapes, (len(patch_px),))
        yield Part(aim_part(px), AimPart(net, px), names, ("where", "policy_memory_after", "value"), shapes)
    seen = (*frames, 3, patch_px[0], patch_px[0])
    if not cascaded:
        yield Part(
            "focus",
            FocusPart(net),
            ("patches", "memory"),
            ("logits", "memory_after", "map"),
            (seen, (settings.classifier_units,)),
            patch_px,
        )
        return
    yield Part("focus", FocusEncoderPart(net), ("patches",), ("vector", "map"), (seen,), patch_px)
    for look in range(2, settings.looks + 1):
        yield Part(answer_part(look), AnswerPart(net, look), ("memory",), ("logits",), ((look * features,),))


def _as_batch(images: Tensor) -> Tensor:
    """The frames of clips one after the other; images stay as they are."""
    return images.flatten(0, 1) if images.dim() == 5 else images


def _first_memory(classifier: nn.Module, vector: Tensor) -> Tensor:
    """The classifier's memory after the glance, without multiplying the GRU's first memory, which is zero, by its weights."""
    if isinstance(classifier, CascadedClassifier):
        return vector
    assert isinstance(classifier, RecurrentClassifier)
    gru = classifier.gru
    reset, update, new = F.linear(vector, gru.weight_ih, gru.bias_ih).chunk(3, dim=1)
    no_reset, no_update, no_new = gru.bias_hh.chunk(3)
    new = torch.tanh(new + torch.sigmoid(reset + no_reset) * no_new)
    return new - torch.sigmoid(update + no_update) * new


class GlancePart(nn.Module):
    def __init__(self, net: GlanceFocus) -> None:
        super().__init__()
        self.net = net

    def forward(self, glances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        encoding: Encoding = self.net.glance_encoder(_as_batch(glances))
        memory = _first_memory(self.net.classifier, encoding.vector)
        return self.net.first_answer(encoding.vector, memory), memory, encoding.map


class FocusPart(nn.Module):
    def __init__(self, net: GlanceFocus) -> None:
        super().__init__()
        self.encoder, self.classifier = net.focus_encoder, net.classifier

    def forward(self, patches: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        encoding: Encoding = self.encoder(_as_batch(patches))
        memory = self.classifier.remember(encoding.vector, memory)
        return (
            self.classifier.answer(memory, 2),
            memory,
            encoding.map,
        )  # a recurrent classifier answers alike at every look


class FocusEncoderPart(nn.Module):
    def __init__(self, net: GlanceFocus) -> None:
        super().__init__()
        self.encoder = net.focus_encoder

    def forward(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        encoding: Encoding = self.encoder(_as_batch(patches))
        return encoding.vector, encoding.map


class BackbonePart(nn.Module):
    def __init__(self, net: GlanceFocus) -> None:
        super().__init__()
        self.encoder = net.focus_encoder

    def forward(self, images: Tensor) -> Tensor:
        encoding: Encoding = self.encoder(_as_batch(images))
        return self.encoder.own_head(encoding.vector)


class AnswerPart(nn.Module):
    def __init__(self, net: GlanceFocus, look: int) -> None:
        super().__init__()
        assert isinstance(net.classifier, CascadedClassifier)
        self.linear = net.classifier.linears[str(look)]

    def forward(self, memory: Tensor) -> Tensor:
        logits: Tensor = self.linear(memory)
        return logits


class AimPart(nn.Module):
    """The policy after a look of one size. `next_size` (B, sizes) is one-hot over the patch sizes, where there are several."""

    def __init__(self, net: GlanceFocus, px: int) -> None:
        super().__init__()
        self.policy = net.policy
        self.px = px

    def forward(self, map_: Tensor, policy_memory: Tensor, next_size: Tensor | None = None) -> tuple[Tensor, ...]:
        aimed: Aimed = self.policy(map_, self.px, policy_memory, next_size)
        return tuple(aimed)


class WithBest(nn.Module):
    """A part, and the best answer of its logits, which are its output of this number."""

    def __init__(self, part: nn.Module, number: int) -> None:
        super().__init__()
        self.part = part
        self.number = number

    def forward(self, seen: Tensor, memory: Tensor | None = None) -> tuple[Tensor, ...]:
        made = self.part(seen) if memory is None else self.part(seen, memory)
        outputs: tuple[Tensor, ...] = made if isinstance(made, tuple) else (made,)
        confidence, answer = outputs[self.number].float().softmax(dim=1).max(dim=1)
        return *outputs, confidence, answer
