"""The torch modules of a network: the encoder around a timm backbone, the classifiers, and the learnt policy."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glancefocus.errors import BadSetting
from glancefocus.look import Aim, Look
from glancefocus.network.steps import next_view
from glancefocus.settings import GLANCE, NetworkSettings, PolicySettings, View


class Encoding(NamedTuple):
    """map (B, channels, S, S); vector (B, features)."""

    map: Tensor
    vector: Tensor


class Encoder(nn.Module):
    """A timm backbone seen through its contract: `forward_features`, `forward_head` and its own classifier.

    Transformers' tokens are put back into a map; networks that lay their maps out channels last are turned round.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone: Any = backbone

    @property
    def vector_features(self) -> int:
        """Features of the pooled vector (MobileNetV3's comes after its conv_head, so it differs from the map's channels)."""
        return int(getattr(self.backbone, "head_hidden_size", None) or self.backbone.num_features)

    @property
    def map_channels(self) -> int:
        return int(self.backbone.num_features)

    def forward(self, images: Tensor) -> Encoding:
        features = self.backbone.forward_features(images)
        vector = self.backbone.forward_head(features, pre_logits=True).flatten(1)
        return Encoding(self._as_map(features, images.shape[-2:]), vector)

    @property
    def head_modules(self) -> tuple[nn.Module, ...]:
        """The backbone's own classifier; distilled transformers have two."""
        head = self.backbone.get_classifier()
        return head if isinstance(head, tuple) else (head,)

    @property
    def norms(self) -> list[nn.Module]:
        """Its batch norms."""
        return [module for module in self.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]

    def with_own_norms(self) -> "Encoder":
        """Another encoder with the same weights, not copies of them, but for its batch norms, which start as copies."""
        own = {id(each) for norm in self.norms for each in (*norm.parameters(False), *norm.buffers(False))}
        shared = {id(each): each for each in (*self.parameters(), *self.buffers()) if id(each) not in own}
        return copy.deepcopy(self, shared)  # which takes what is in this table as copied already

    def own_head(self, vector: Tensor) -> Tensor:
        """What the backbone alone would answer, (B, classes): FC_t of the paper's regulariser (Eq. 6)."""
        head, *second = self.head_modules
        if second:  # two heads answer with their mean
            return torch.stack([h(vector) for h in self.head_modules]).mean(dim=0)
        if isinstance(head, nn.Conv2d):  # of one pixel
            return head(vector[:, :, None, None]).flatten(1)  # type: ignore[no-any-return]
        answer: Tensor = head(vector)
        return answer

    def evidence(self, images: Tensor, labels: Tensor) -> Tensor:
        """(B, rows, columns) how much each place of the map speaks for the label of its image, against the other classes.

        The map times the gradient of the own head's answer. Where the head is linear in the mean of the map it is the class
        activation map: its mean is the answer, but for the head's biases. A head that does not read the map: zeros.
        Not for inference mode, in which there are no gradients.
        """
        return self.answers_and_evidence(images, labels)[1]

    def answers_and_evidence(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(B, classes) what the own head answers, and its evidence for the labels."""
        with torch.no_grad():
            features = self.backbone.forward_features(images)
        with torch.enable_grad():
            features = features.detach().requires_grad_()
            answers = self.own_head(self.backbone.forward_head(features, pre_logits=True).flatten(1))
            others = answers.sum(dim=1) - (own := answers.gather(1, labels[:, None])[:, 0])
            speaks_for = own - others / max(1, answers.shape[1] - 1)
            (gradient,) = torch.autograd.grad(speaks_for.sum(), features)
        map_ = self._as_map((features * gradient).detach(), images.shape[-2:])
        return answers.detach(), map_.sum(dim=1) * map_.shape[-2] * map_.shape[-1]

    def _as_map(self, features: Tensor, image_hw: torch.Size) -> Tensor:
        if features.dim() == 4:
            channels_last = features.shape[1] != self.map_channels and features.shape[3] == self.map_channels
            return features.permute(0, 3, 1, 2) if channels_last else features
        tokens = features[:, getattr(self.backbone, "num_prefix_tokens", 0) :]
        patch_px = self.backbone.patch_embed.patch_size
        patch_h, patch_w = (patch_px, patch_px) if isinstance(patch_px, int) else patch_px
        rows, columns = image_hw[0] // patch_h, image_hw[1] // patch_w
        return tokens.transpose(1, 2).reshape(tokens.shape[0], tokens.shape[2], rows, columns)


class RecurrentClassifier(nn.Module):
    """A GRU over the looks' vectors and one linear layer shared by all looks (paper, section 3.2 and A.1)."""

    def __init__(self, features: int, classes: int, units: int = 1024) -> None:
        super().__init__()
        self.gru = nn.GRUCell(features, units)
        self.linear = nn.Linear(units, classes)

    def remember(self, vector: Tensor, memory: Tensor | None, candidate: int = 0) -> Tensor:
        """(B, units) the memory after this look."""
        remembered: Tensor = self.gru(vector, memory)
        return remembered

    def answer(self, memory: Tensor, look: int) -> Tensor:
        """(B, classes)"""
        logits: Tensor = self.linear(memory)
        return logits


class CascadedClassifier(nn.Module):
    """One linear layer for each number of looks 2..T on the concatenated vectors (paper, A.1).

    The first look is answered by the glance encoder's own head.
    """

    def __init__(self, features: int, classes: int, looks: int) -> None:
        super().__init__()
        self.linears = nn.ModuleDict({str(look): nn.Linear(look * features, classes) for look in range(2, looks + 1)})

    def remember(self, vector: Tensor, memory: Tensor | None, candidate: int = 0) -> Tensor:
        """(B, looks x features) every vector so far."""
        return vector if memory is None else torch.cat([memory, vector], dim=1)

    def answer(self, memory: Tensor, look: int) -> Tensor:
        """(B, classes)"""
        if str(look) not in self.linears:
            raise BadSetting(f"this cascaded classifier has no layer for look {look}, only for {list(self.linears)}.")
        logits: Tensor = self.linears[str(look)](memory)
        return logits


GLANCE_WEIGHT = 0.3
"""Weight of a glance before the weights are fitted; that of a focus look is 1."""


class SummedClassifier(nn.Module):
    """The weighted sum of what the encoders' own heads answer at each look (beyond the paper).

    The paper's classifiers learn from thousands of images how looks belong together. This one only has a weight for each
    view, so it is never much worse than its best look, and with views of the whole image it is a cascade of resolutions.

    The weights are not trained: encoders are surer of their training images than of new ones, so a glance would count too much.
    They are fitted to held-out images, see training/stage.py.

    candidates  number of candidate views; there is one weight more, for the glance
    """

    def __init__(self, candidates: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor([1.0] * candidates + [GLANCE_WEIGHT]))
        self.weight: Tensor

    def remember(self, own_answer: Tensor, memory: Tensor | None, candidate: int = 0) -> Tensor:
        """(B, classes) the sum after a look at this candidate, or at GLANCE (which is -1, so its weight is the last one)."""
        weighted = self.weight[candidate] * own_answer
        return weighted if memory is None else memory + weighted

    def answer(self, memory: Tensor, look: int) -> Tensor:
        """(B, classes)"""
        return memory


Classifier = RecurrentClassifier | CascadedClassifier | SummedClassifier


class Aimed(NamedTuple):
    """where (B, 2) in [0, 1] as (y, x); memory (B, units) the policy's after this look; value (B,) that of the critic."""

    where: Tensor
    memory: Tensor
    value: Tensor


PLACE_FEATURES = 3
"""Numbers that say what a look covered, see covered_place."""


def covered_place(extents: tuple[float, ...], candidate: int | Tensor, where: Tensor | None, like: Tensor) -> Tensor:
    """(B, 3) what looks covered: where as (y, x), and the extent; the whole image is (0.5, 0.5, 1).

    extents  of the candidate views and the first look, see LearntPolicy
    where    (B, 2); None: glances
    like     the result has the rows, type and device of this tensor
    """
    if where is None:
        return torch.tensor([0.5, 0.5, 1.0], dtype=like.dtype, device=like.device).expand(like.shape[0], PLACE_FEATURES)
    extent = torch.tensor(extents, dtype=like.dtype, device=like.device)[candidate].expand(like.shape[0])
    known = torch.where(extent[:, None] < 1, where.to(like.dtype), 0.5)
    return torch.cat([known, extent[:, None]], dim=1)


class LearntPolicy(nn.Module):
    """The patch proposal network pi: reduces the map; a GRU is its memory, an actor aims, a critic estimates values.

    Its memory travels in the Look. With several candidate views (paper, section 4.2) maps are upsampled to the largest after the
    convolution, and the views of the last and of the next look are given to the GRU one-hot. The maps of a clip's frames are
    reduced by the same convolution, frame by frame, then seen together.

    glance_side  side of the glance's feature map
    sides        the same for each candidate view
    codes        the code of each candidate, and last that of the glance, see NetworkSettings.view_codes
    extents      side of the square that each candidate covers, as a share of the image's shorter side; 1: the whole image, which
                 has no place. Last that of the first look. Used with settings.place only.
    frames       of a clip; their maps lie one after the other in the map's channels
    steps        the candidate views of a network that zooms: the next look has the one of next_view, unless another is asked for.
                 Empty: it has the last one
    candidates   the numbers of the candidate views
    run          computes `forward` instead of these modules, where another runner does, see model.Runner
    """

    def __init__(
        self,
        settings: PolicySettings,
        map_channels: int,
        glance_side: int,
        sides: tuple[int, ...],
        codes: tuple[int, ...],
        frames: int = 1,
        extents: tuple[float, ...] = (),
        steps: tuple[View, ...] = (),
    ) -> None:
        super().__init__()
        self.candidates, self.steps = range(len(sides)), steps
        self.extents = extents if settings.place else None
        self.glance_side = glance_side
        self.sides = sides
        self.codes = codes
        self.frames = frames
        self.side = max(glance_side, *sides)
        self.several = len(sides) > 1
        code_features = max(codes) + 1 + len(sides) if self.several else 0
        if settings.head == "conv":
            kernel = settings.conv_kernel
            self.conv: nn.Module = nn.Conv2d(
                map_channels // frames, settings.conv_channels, kernel, padding=kernel // 2, bias=False
            )
            self.linears = nn.Sequential(
                nn.Linear(frames * settings.conv_channels * self.side**2, settings.units),
                nn.ReLU(),
            )
        else:
            self.conv = nn.Identity()
            self.linears = nn.Sequential(
                nn.Linear(map_channels * self.side**2, settings.linear_units),
                nn.ReLU(),
                nn.Linear(settings.linear_units, settings.units),
                nn.ReLU(),
            )
        place_features = PLACE_FEATURES if settings.place else 0
        self.gru = nn.GRUCell(settings.units + code_features + place_features, settings.units)
        self.actor = nn.Linear(settings.units, 2)
        self.critic = nn.Linear(settings.units, 1)
        self.run: Callable[[Tensor, int, Tensor | None, Tensor | None, Tensor | None], Aimed] | None = None

    def aim(self, look: Look, candidate: int | Tensor | None = None) -> Aim:
        """Where to look next, without exploring.

        candidate  number of the next look's candidate view, for all rows or (B,); None: see steps
        """
        if candidate is None:
            candidate = next_view(self.steps, look) if self.steps else len(self.sides) - 1
        next_code, place = self.next_code(candidate, look.map), self.place_of(look)
        run = self if self.run is None else self.run
        if isinstance(look.candidate, int):
            aimed: Aimed = run(look.map, look.candidate, look.policy_memory, next_code, place)
        else:
            aimed = self._aim_by_candidate(run, look, look.candidate, next_code, place)
        return Aim(where=aimed.where, candidate=candidate, memory=aimed.memory, mean=aimed.where, value=aimed.value)

    def _aim_by_candidate(
        self,
        run: Callable[..., Aimed],
        look: Look,
        candidate: Tensor,
        next_code: Tensor | None,
        place: Tensor | None,
    ) -> Aimed:
        """The same for rows whose last looks had different views, which are computed view by view."""
        groups = rows_by_candidate(candidate)
        given, aimed = (look.policy_memory, next_code, place), []
        for last, rows in groups:
            side = self.side_of(last)
            own = (None if each is None else each[rows] for each in given)
            aimed.append(run(look.map[rows, :, :side, :side], last, *own))
        order = torch.cat([rows for _, rows in groups]).argsort()
        return Aimed(*(torch.cat(parts)[order] for parts in zip(*aimed, strict=True)))

    def forward(
        self,
        map_: Tensor,
        last: int,
        memory: Tensor | None,
        next_code: Tensor | None = None,
        place: Tensor | None = None,
    ) -> Aimed:
        """Where to look after a look at this candidate, or at GLANCE.

        map_       (B, channels, S, S) of the last look
        memory     (B, units) the policy's before it; None at the glance
        next_code  (B, candidates) one-hot: the view of the next look; None where there is only one candidate
        place      see place_of
        """
        memory = self.remember(self.perceive(map_, last), last, next_code, memory, place)
        return Aimed(self.mean(memory), memory, self.value(memory))

    def next_code(self, candidate: int | Tensor, like: Tensor) -> Tensor | None:
        """(B, candidates) one-hot: the view of the next look; None where there is only one candidate."""
        return one_hot(candidate, len(self.sides), like) if self.several else None

    def place_of(self, look: Look) -> Tensor | None:
        """(B, 3) what a look covered, see covered_place. None: not used."""
        if self.extents is None:
            return None
        return covered_place(self.extents, look.candidate, look.where, look.map)

    def side_of(self, candidate: int) -> int:
        """Side of the feature map of a look at this candidate, or at GLANCE."""
        return self.glance_side if candidate == GLANCE else self.sides[candidate]

    def perceive(self, map_: Tensor, last: int | Tensor) -> Tensor:
        """(B, units) what the policy sees in a map (B, channels, S, S) of looks at a candidate, one for all rows or (B,)."""
        if isinstance(last, Tensor):
            groups = [(each, rows, self.side_of(each)) for each, rows in rows_by_candidate(last)]
            seen = [self.perceive(map_[rows, :, :side, :side], each) for each, rows, side in groups]
            return torch.cat(seen)[torch.cat([rows for _, rows, _ in groups]).argsort()]
        rows, channels = map_.shape[0], map_.shape[1] // self.frames
        reduced = self.conv(map_.reshape(rows * self.frames, channels, *map_.shape[2:]))
        if reduced.shape[-1] != self.side or reduced.shape[-2] != self.side:
            reduced = F.interpolate(reduced, size=(self.side, self.side), mode="bilinear", align_corners=False)
        if isinstance(self.conv, nn.Conv2d):
            reduced = reduced.relu()
        perceived: Tensor = self.linears(reduced.reshape(rows, -1))
        return perceived

    def remember(
        self,
        perceived: Tensor,
        last: int | Tensor,
        next_code: Tensor | None,
        memory: Tensor | None,
        place: Tensor | None = None,
    ) -> Tensor:
        """(B, units) the policy's memory after this look; with several candidates the GRU also gets the last and the next view.

        place  see place_of
        """
        if next_code is not None:
            # GLANCE is -1, and codes[-1] is that of the glance.
            codes = torch.as_tensor(self.codes, device=perceived.device)
            last_code = one_hot(codes[last], max(self.codes) + 1, perceived)
            perceived = torch.cat([perceived, last_code, next_code], dim=1)
        if place is not None:
            perceived = torch.cat([perceived, place], dim=1)
        remembered: Tensor = self.gru(perceived, memory)
        return remembered

    def mean(self, memory: Tensor) -> Tensor:
        """(B, 2) in [0, 1]: where the actor aims."""
        where: Tensor = self.actor(memory).sigmoid()
        return where

    def value(self, memory: Tensor) -> Tensor:
        """(B,) the critic's estimate of the reward of further looks."""
        value: Tensor = self.critic(memory)[:, 0]
        return value


def covered_extents(settings: NetworkSettings) -> tuple[float, ...]:
    """What each candidate view covers, and last the first look, see LearntPolicy."""
    height_px, width_px = settings.view.height_px, settings.view.width_px
    return tuple(view.share_of(height_px, width_px) for view in (*settings.candidates, settings.glance_view))


def one_hot(number: int | Tensor, count: int, like: Tensor) -> Tensor:
    """(B, count) with a one at each row's number, in the type and for the rows of another tensor."""
    rows = torch.as_tensor(number, device=like.device).expand(like.shape[0])
    return (rows[:, None] == torch.arange(count, device=like.device)[None]).to(like.dtype)


def rows_by_candidate(candidate: Tensor) -> list[tuple[int, Tensor]]:
    """(candidate, rows) for every candidate view in a batch, so that each is computed as one batch; candidate (B,) int64."""
    return [(each, (candidate == each).nonzero(as_tuple=True)[0]) for each in sorted(set(candidate.tolist()))]
