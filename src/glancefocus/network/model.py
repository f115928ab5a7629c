"""GlanceFocus: the network. `glance` makes the first look, `policy.aim` says where the next one goes, `focus` makes it.

Nothing is remembered between calls: everything that the next look needs travels in the Look. The arithmetic of the parts is done by
a runner, a set of functions of tensors. The network's own torch modules are the default one, which training uses; other runners
(runtime/) compute the same with folded, compiled or exported graphs. A runner cannot change what is looked at.
"""

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from glancefocus.errors import BadSetting
from glancefocus.look import Aim, Look, Scene, as_scene, frames_of, padded_alike, sizes_of
from glancefocus.network.modules import (
    Aimed,
    Classifier,
    Encoder,
    Encoding,
    LearntPolicy,
    SummedClassifier,
    covered_extents,
    covered_place,
    rows_by_candidate,
)
from glancefocus.network.places import UnlearntPolicy, first_region
from glancefocus.network.steps import extents_px, region_of
from glancefocus.region import Region, zoomed
from glancefocus.settings import GLANCE, NetworkSettings, View, whole


class Seen(NamedTuple):
    """What a runner computes from the views of one look.

    logits  (B, classes) the answer after this look
    memory  (B, .) the classifier's memory after this look
    map     (B, channels, S, S) the encoder's feature map
    vector  (B, features) the same, pooled; None where the runner does not give it
    best    see Look.known_best; None where the runner does not give it
    """

    logits: Tensor
    memory: Tensor
    map: Tensor
    vector: Tensor | None = None
    best: tuple[Tensor, Tensor] | None = None


class Runner(Protocol):
    """Computes the parts of a network. Inputs are not written to.

    The frames of clips are folded into the batch of images and patches, (B x frames, 3, px, px).
    """

    def glance(self, images: Tensor, place: Tensor | None = None) -> Seen:
        """The first look; images (B, 3, px, px), place as in `focus`; None: it is a glance, or the classifier does not use it."""
        ...

    def focus(self, patches: Tensor, memory: Tensor, number: int, candidate: int, place: Tensor | None) -> Seen:
        """Look `number` (2 for the first focus) at this candidate view.

        patches  (B, 3, px, px)
        memory   (B, .) the classifier's
        place    (B, 3) what the look covers, see covered_place; None: the classifier does not use it
        """
        ...

    def aim(
        self, map_: Tensor, last: int, memory: Tensor | None, next_code: Tensor | None, place: Tensor | None
    ) -> Aimed:
        """Where to look after a look at this candidate; see LearntPolicy.forward."""
        ...


class GlanceFocus(nn.Module):
    """Glance encoder, focus encoder, classifier and policy, and the runner that computes them.

    settings       sizes, number of looks, backbone: everything that describes the network besides its weights
    glance_encoder, focus_encoder  views to feature maps and vectors
    whole_encoder  the same for candidates that show the whole image; None: the focus encoder sees these, too
    classifier     vectors of all looks so far to an answer
    policy         a feature map to the next place; or places by a rule
    extents        of the candidate views and the first look, see LearntPolicy, if the classifier gets the place of each look;
                   otherwise None
    runtime        name of the runtime that computes the parts; None: these modules, with gradients where they are enabled
    light_weights  whether that runtime rounds weights
    """

    def __init__(
        self,
        settings: NetworkSettings,
        glance_encoder: Encoder,
        focus_encoder: Encoder,
        classifier: Classifier,
        policy: LearntPolicy | UnlearntPolicy,
        whole_encoder: Encoder | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.glance_region, self.candidates = (
            Region(whole(settings.glance_px, settings.glance_resize)),
            settings.candidates,
        )
        self.glance_encoder = glance_encoder
        self.focus_encoder = focus_encoder
        self.whole_encoder = whole_encoder
        self.classifier = classifier
        self.policy = policy
        self.extents = covered_extents(settings) if settings.classifier_place else None
        self._runner: Runner | None = None
        self.runtime: str | None = None
        self.light_weights = False

    def computed_by(
        self, runner: Runner | None, runtime: str | None = None, *, light_weights: bool = False
    ) -> "GlanceFocus":
        """The same network, sharing the weights of this one, whose parts are computed by this runner; None: by its own modules.

        runtime        the runner's name
        light_weights  it computes with weights that were rounded, so answers may differ a little
        """
        other = copy.copy(self)
        other._modules = dict(self._modules)  # else the policy below would replace that of this network
        if isinstance(self.policy, LearntPolicy):  # others have nothing to compute
            other.policy = copy.copy(self.policy)
            other.policy.run = None if runner is None else runner.aim
        other._runner, other.runtime, other.light_weights = runner, runtime, light_weights
        return other

    def repeated_tensors(self) -> dict[str, str]:
        """{name in the state dict: an earlier name of the same tensor}, where encoders share weights."""
        first: dict[int, str] = {}
        named = self.state_dict(keep_vars=True).items()
        return {name: known for name, tensor in named if (known := first.setdefault(id(tensor), name)) != name}

    @property
    def runner(self) -> Runner:
        """Computes the parts: the network's own modules, unless computed_by gave it another one."""
        return ModuleRunner(self) if self._runner is None else self._runner

    @property
    def learnt_policy(self) -> LearntPolicy:
        """`policy`, where it must be a learnt one: for the stages that train it."""
        assert isinstance(self.policy, LearntPolicy), "this network aims by a rule"
        return self.policy

    def glance(self, scene: Scene | Tensor | Sequence[Tensor], where: Tensor | None = None) -> Look:
        """The first look: the whole of each image at low resolution; or a patch, see NetworkSettings.first_view.

        scene  a scene, or a normalised batch (B, 3, H, W), or a list of images of any sizes; for a network of clips
               (B, frames, 3, H, W)
        where  (B, 2) places of random first views; None: those that follow from the pixels of each image
        """
        scene = as_scene(scene)
        check_frames(scene, self.settings.frames)
        region = self._first_region(scene, where)
        views = scene.view(region)
        where = None if region.where is None else region.where.to(views.device)
        return self._first_look(scene, self.runner.glance(views, self._first_place(where)), where)

    def first_look(self, scene: Scene, encoding: Encoding, answer: tuple[Tensor, Tensor] | None = None) -> Look:
        """The first look at a scene whose glance is encoded already.

        answer  memory and logits, where they are known too
        """
        where = self._first_region(scene).where
        where = None if where is None else where.to(encoding.vector.device)
        memory, logits = self.answer_glance(encoding.vector, self._first_place(where)) if answer is None else answer
        return self._first_look(scene, Seen(logits, memory, encoding.map, encoding.vector), where)

    def _first_region(self, scene: Scene, where: Tensor | None = None) -> Region:
        if self.settings.first_view == "glance":
            return self.glance_region
        return first_region(self.settings, scene, where)

    def _first_look(self, scene: Scene, seen: Seen, where: Tensor | None) -> Look:
        return Look(
            number=1,
            scene=scene,
            rows=_all_rows(seen.logits.shape[0], seen.logits.device),
            logits=seen.logits,
            vector=seen.vector,
            map=seen.map,
            candidate=GLANCE,
            memory=seen.memory,
            aim=None if where is None else Aim(where, GLANCE),
            known_best=seen.best,
        )

    def _first_place(self, where: Tensor | None) -> Tensor | None:
        """What first looks at these places covered, for the classifier; None: they are glances, or it does not use it."""
        return None if where is None or self.extents is None else covered_place(self.extents, GLANCE, where, where)

    def focus(self, look: Look, aim: Aim) -> Look:
        """The next look: one region of each image, where it was aimed; in the paper a patch at full resolution."""
        number, candidate = look.number + 1, aim.candidate
        where = self._place(look, aim) if self.settings.zoom else aim.where
        place = None if self.extents is None else covered_place(self.extents, candidate, where, where)
        if isinstance(candidate, int):
            views = look.scene.view(self._region(candidate, where))
            seen = self.runner.focus(views, look.memory, number, candidate, place)
        else:
            seen = self._focus_by_candidate(look, where, candidate, number, place)
        return Look(
            number=number,
            scene=look.scene,
            rows=look.rows,
            logits=seen.logits,
            vector=seen.vector,
            map=seen.map,
            candidate=candidate,
            memory=seen.memory,
            policy_memory=aim.memory,
            aim=aim,
            place=where if self.settings.zoom else None,
            known_best=seen.best,
        )

    def _place(self, look: Look, aim: Aim) -> Tensor:
        """(B, 2) where an aim relative to the region of the last look is in the whole image."""
        sizes = sizes_of(look.scene)
        place = zoomed(aim.where.to(sizes), self.region_of(look), self.extents_px(aim.candidate, sizes), sizes)
        return place.to(aim.where)

    def region_of(self, look: Look) -> Tensor:
        """(B, 4) float64 top, left, height and width of what a look saw, in pixels of each image."""
        return region_of(self.candidates, look)

    def extents_px(self, candidate: int | Tensor, sizes: Tensor) -> Tensor:
        """(B,) side of the squares that looks at candidates cover in images of these sizes; 0: the whole image."""
        return extents_px(self.candidates, candidate, sizes)

    def _focus_by_candidate(
        self, look: Look, where: Tensor, candidate: Tensor, number: int, place: Tensor | None
    ) -> Seen:
        """The same for rows with different candidate views, which are computed view by view, not padded."""
        groups = rows_by_candidate(candidate)
        seen = []
        for each, rows in groups:
            views = look.scene.keep(rows).view(self._region(each, where[rows]))
            covered = None if place is None else place[rows]
            seen.append(self.runner.focus(views, look.memory[rows], number, each, covered))
        order = torch.cat([rows for _, rows in groups]).argsort()
        vectors = [one.vector for one in seen if one.vector is not None]
        return Seen(
            logits=torch.cat([one.logits for one in seen])[order],
            memory=torch.cat([one.memory for one in seen])[order],
            map=torch.cat(padded_alike([one.map for one in seen]))[order],
            vector=torch.cat(vectors)[order] if vectors else None,
        )

    def _region(self, candidate: int, where: Tensor) -> Region:
        view = self.candidates[candidate]
        return Region(view) if view.is_whole else Region(view, where)

    def own_answer(self, look: Look) -> Tensor:
        """What the encoder of this look would answer alone, (B, classes): the regulariser of Eq. 6."""
        if look.number == 1:
            return self.glance_encoder.own_head(look.features)
        if isinstance(look.candidate, int):
            return self.encoder_of(look.candidate).own_head(look.features)
        own = self.focus_encoder.own_head(look.features)
        if self.whole_encoder is None:
            return own
        whole = torch.tensor([view.is_whole for view in self.candidates], device=own.device)[look.candidate]
        return torch.where(whole[:, None], self.whole_encoder.own_head(look.features), own)

    def encoder_of(self, candidate: int) -> Encoder:
        """The encoder that sees this candidate view."""
        own = self.whole_encoder if self.candidates[candidate].is_whole else None
        return self.focus_encoder if own is None else own

    def learning_views(self) -> dict[Encoder, dict[int, View]]:
        """{encoder: {number: view}} of the candidates, for each encoder that is trained on some; the plain backbone is not."""
        found: dict[Encoder, dict[int, View]] = {}
        for number, view in enumerate(self.candidates):
            if not (view.is_whole and self.settings.keeps_backbone):
                found.setdefault(self.encoder_of(number), {})[number] = view
        return found

    def answer_glance(self, vector: Tensor, place: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The classifier's memory of the first look, and the first answer, by the part that the settings name."""
        memory = self.remember_glance(vector, place)
        return memory, self.first_answer(vector, memory)

    def remember_glance(self, vector: Tensor, place: Tensor | None = None) -> Tensor:
        """(B, .) the classifier's memory after a first look with these features; place: see classifier_input."""
        return self.classifier.remember(self.classifier_input(self.glance_encoder, vector, place), None, GLANCE)

    def remember_again(self, look: Look) -> Tensor:
        """The same for a first look; no gradient flows into the encoder."""
        where = None if look.aim is None else look.aim.where
        return self.remember_glance(look.features.detach(), self._first_place(where))

    def classifier_input(self, encoder: Encoder, vector: Tensor, place: Tensor | None = None) -> Tensor:
        """What the classifier gets of a look: the vector, or the answer of the encoder's own head where answers are summed.

        place  (B, 3) what the look covered, which is added to the vector if the classifier uses it; None: it was a glance
        """
        if self.extents is not None:
            place = covered_place(self.extents, GLANCE, None, vector) if place is None else place.to(vector.dtype)
            return torch.cat([vector, place], dim=1)
        return encoder.own_head(vector) if isinstance(self.classifier, SummedClassifier) else vector

    def first_answer(self, vector: Tensor, memory: Tensor) -> Tensor:
        """(B, classes) after the glance."""
        first = self.settings.first_answer
        # While stages train, some parts are in training mode and some are not: here the classifier's mode counts.
        if first == "own_head" or (first == "own_head_evaluating" and not self.classifier.training):
            return self.glance_encoder.own_head(vector)
        return self.classifier.answer(memory, 1)


@dataclass(frozen=True)
class ModuleRunner:
    """The network's own torch modules, as a runner.

    whole_views  {candidate: encoding} of the views of the whole image that were seen already. Earlier looks do not change them, so
                 where a batch is looked at in several orders they are encoded once. None: they are encoded at each look.
    """

    net: GlanceFocus
    whole_views: dict[int, Encoding] | None = None

    def glance(self, images: Tensor, place: Tensor | None = None) -> Seen:
        encoding: Encoding = self.net.glance_encoder(images)
        memory, logits = self.net.answer_glance(encoding.vector, place)
        return Seen(logits, memory, encoding.map, encoding.vector)

    def focus(self, patches: Tensor, memory: Tensor, number: int, candidate: int, place: Tensor | None) -> Seen:
        net = self.net
        encoder, encoding = net.encoder_of(candidate), (self.whole_views or {}).get(candidate)
        if encoding is None:
            encoding = encoder(patches)
            if self.whole_views is not None and net.candidates[candidate].is_whole:
                self.whole_views[candidate] = encoding
        memory = net.classifier.remember(net.classifier_input(encoder, encoding.vector, place), memory, candidate)
        return Seen(net.classifier.answer(memory, number), memory, encoding.map, encoding.vector)

    def aim(
        self, map_: Tensor, last: int, memory: Tensor | None, next_code: Tensor | None, place: Tensor | None
    ) -> Aimed:
        aimed: Aimed = self.net.learnt_policy(map_, last, memory, next_code, place)
        return aimed


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)  # a tensor made in inference mode could not be used outside of it
def _all_rows(count: int, device: torch.device) -> Tensor:
    """(count,) 0, 1, ...; cached, because making a tensor takes longer than using it. Looks never write to it."""
    return torch.arange(count, device=device)


def check_frames(scene: Scene, frames: int) -> None:
    """Refuse images where clips are expected, clips where images are, and clips of another length."""
    if frames_of(scene) != frames:
        raise BadSetting(
            f"this network looks at {_described(frames)}, but got {_described(frames_of(scene))}. "
            "Give it a tensor of shape (batch, frames, 3, height, width), or use a network with that number of frames."
        )


def _described(frames: int) -> str:
    return "images" if frames == 1 else f"clips of {frames} frames"
