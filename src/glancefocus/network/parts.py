"""A network taken apart into graphs of tensors, for runtimes and exports. The loop stays outside of them.

    glance       glances [, place] -> logits, memory, map                            place: of a patch, if the classifier gets it
    aim_96       map, policy_memory [, next_size] [, place] -> where, policy_memory, value       where the policy is learnt,
                                                                                      one for every code that a look can have
    focus        patches, memory [, place] -> logits, memory, map                     with a recurrent classifier
    focus_112    patches, memory -> logits, memory, map                               with a summed one, for every candidate
    focus        patches -> vector, map                                               with a cascaded one, which also has
    answer_2     memory -> logits                                                     for every look after the glance

Glances and patches are (B, 3, px, px), for clips (B, frames, 3, px, px); every other tensor has the batch first too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import (
    PLACE_FEATURES,
    Aimed,
    CascadedClassifier,
    Encoding,
    RecurrentClassifier,
    SummedClassifier,
)
from glancefocus.settings import GLANCE, NetworkSettings


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


def aim_part(code: str) -> str:
    """The name of the part that aims after a look of this code, see NetworkSettings.view_codes."""
    return f"aim_{code}"


def focus_part(settings: NetworkSettings, candidate: int) -> str:
    """The name of the part that takes a look at this candidate view."""
    return f"focus_{settings.candidates[candidate].name}" if settings.classifier == "summed" else "focus"


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


def whole_backbone(net: GlanceFocus, size: tuple[int, int] | None = None) -> Part:
    """The plain backbone with its own head: the baseline to compare with.

    backbone     images -> logits
    size         (height, width) of the images; None: that of the view
    """
    settings = net.settings
    frames = () if settings.frames == 1 else (settings.frames,)
    shape = (*frames, 3, *((settings.view.height_px, settings.view.width_px) if size is None else size))
    return Part("backbone", BackbonePart(net.eval()), ("images",), ("logits",), (shape,))


def _parts(net: GlanceFocus) -> Iterator[Part]:
    settings = net.settings
    cascaded = isinstance(net.classifier, CascadedClassifier)
    frames = () if settings.frames == 1 else (settings.frames,)
    glance_px, sides_px = settings.glance_px, tuple(view.px for view in settings.candidates)
    units, features = settings.policy.units, net.glance_encoder.vector_features
    names: tuple[str, ...] = ("glances",)
    shapes: tuple[tuple[int, ...], ...] = ((*frames, 3, glance_px, glance_px),)
    if settings.classifier_place and settings.first_view != "glance":
        names, shapes = (*names, "place"), (*shapes, (PLACE_FEATURES,))
    yield Part("glance", GlancePart(net), names, ("logits", "memory", "map"), shapes, (glance_px,))
    if settings.looks == 1:
        return
    channels = settings.frames * net.glance_encoder.map_channels
    last_looks = {settings.code_of(each): each for each in (*range(len(settings.candidates)), GLANCE)}
    aiming = settings.view_codes if settings.looks > 2 else [settings.code_of(GLANCE)]
    for code in aiming if settings.policy.kind == "learnt" else ():
        policy = net.learnt_policy
        side = policy.side_of(last_looks[code])
        names, shapes = ("map", "policy_memory"), ((channels, side, side), (units,))
        if policy.several:
            names, shapes = (*names, "next_size"), (*shapes, (len(settings.candidates),))
        if policy.extents is not None:
            names, shapes = (*names, "place"), (*shapes, (PLACE_FEATURES,))
        yield Part(
            aim_part(code), AimPart(net, last_looks[code]), names, ("where", "policy_memory_after", "value"), shapes
        )
    if settings.classifier == "summed":
        for each, px in enumerate(sides_px):
            inputs = (*frames, 3, px, px), (settings.classes,)
            names, outputs = ("patches", "memory"), ("logits", "memory_after", "map")
            yield Part(focus_part(settings, each), FocusPart(net, each), names, outputs, inputs, (px,))
        return
    seen, different_px = (*frames, 3, sides_px[0], sides_px[0]), tuple(dict.fromkeys(sides_px))
    if not cascaded:
        names, shapes = ("patches", "memory"), (seen, (settings.classifier_units,))
        if settings.classifier_place:
            names, shapes = (*names, "place"), (*shapes, (PLACE_FEATURES,))
        yield Part("focus", FocusPart(net, 0), names, ("logits", "memory_after", "map"), shapes, different_px)
        return
    yield Part("focus", FocusEncoderPart(net), ("patches",), ("vector", "map"), (seen,), different_px)
    for look in range(2, settings.looks + 1):
        yield Part(answer_part(look), AnswerPart(net, look), ("memory",), ("logits",), ((look * features,),))


def _as_batch(images: Tensor) -> Tensor:
    """The frames of clips one after the other; images stay as they are."""
    return images.flatten(0, 1) if images.dim() == 5 else images


def _first_memory(net: GlanceFocus, vector: Tensor, place: Tensor | None) -> Tensor:
    """The classifier's memory after the first look, without multiplying the GRU's first memory, which is zero, by its weights."""
    if not isinstance(net.classifier, RecurrentClassifier):
        return net.remember_glance(vector)
    gru = net.classifier.gru
    given = net.classifier_input(net.glance_encoder, vector, place)
    reset, update, new = F.linear(given, gru.weight_ih, gru.bias_ih).chunk(3, dim=1)
    no_reset, no_update, no_new = gru.bias_hh.chunk(3)
    new = torch.tanh(new + torch.sigmoid(reset + no_reset) * no_new)
    return new - torch.sigmoid(update + no_update) * new


class GlancePart(nn.Module):
    def __init__(self, net: GlanceFocus) -> None:
        super().__init__()
        self.net = net

    def forward(self, glances: Tensor, place: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        encoding: Encoding = self.net.glance_encoder(_as_batch(glances))
        memory = _first_memory(self.net, encoding.vector, place)
        return self.net.first_answer(encoding.vector, memory), memory, encoding.map


class FocusPart(nn.Module):
    """A look at one candidate view; recurrent and summed classifiers answer alike at every number of looks."""

    def __init__(self, net: GlanceFocus, candidate: int) -> None:
        super().__init__()
        self.encoder, self.classifier = net.encoder_of(candidate), net.classifier
        self.candidate = candidate

    def forward(self, patches: Tensor, memory: Tensor, place: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        encoding: Encoding = self.encoder(_as_batch(patches))
        summed = isinstance(self.classifier, SummedClassifier)  # see GlanceFocus.classifier_input
        given = self.encoder.own_head(encoding.vector) if summed else encoding.vector
        given = given if place is None else torch.cat([given, place], dim=1)
        memory = self.classifier.remember(given, memory, self.candidate)
        return self.classifier.answer(memory, 2), memory, encoding.map

    def extra_repr(self) -> str:
        """Everything besides the weights that the graph depends on: graphs in the cache are found by it."""
        return f"candidate={self.candidate}"


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
        self.encoder = net.focus_encoder if net.whole_encoder is None else net.whole_encoder

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
    """The policy after a look at one candidate.

    After the map and the memory come `next_size` (B, candidates), one-hot, if there are several, and `place` (B, 3), if it is used.
    """

    def __init__(self, net: GlanceFocus, last: int) -> None:
        super().__init__()
        self.policy = net.learnt_policy
        self.last = last

    def forward(
        self, map_: Tensor, policy_memory: Tensor, third: Tensor | None = None, fourth: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        next_size, place = (third, fourth) if self.policy.several else (None, third)
        aimed: Aimed = self.policy(map_, self.last, policy_memory, next_size, place)
        return tuple(aimed)

    def extra_repr(self) -> str:
        """As in FocusPart."""
        return f"last={self.last}, codes={self.policy.codes}, side={self.policy.side}"


class WithBest(nn.Module):
    """A part, and the best answer of its logits, which are its output of this number."""

    def __init__(self, part: nn.Module, number: int) -> None:
        super().__init__()
        self.part = part
        self.number = number

    def forward(self, seen: Tensor, memory: Tensor | None = None, place: Tensor | None = None) -> tuple[Tensor, ...]:
        made = self.part(*(each for each in (seen, memory, place) if each is not None))
        outputs: tuple[Tensor, ...] = made if isinstance(made, tuple) else (made,)
        confidence, answer = outputs[self.number].float().softmax(dim=1).max(dim=1)
        return *outputs, confidence, answer
