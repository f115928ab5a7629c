"""Encoders: any timm backbone, giving a feature map for the policy and a pooled vector for the classifier.

Encoders of clips use the temporal shift (TSM): in each residual block some channels come from the next frame, some from the
previous one. It has no weights and costs no multiply-adds. It is put before the first convolution of a block, inside the residual
branch: what the block adds has seen its neighbours in time, the shortcut has not. The backbone stays the same module, and its
weights keep their names.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from glancefocus.errors import BadSetting, UnknownName
from glancefocus.network.backbones import check_options
from glancefocus.torchvision_whole import ensure_torchvision

ensure_torchvision()
import timm  # noqa: E402  (torchvision must be whole before timm imports it)

from glancefocus.network.backbones import cannot_be_had, create_options  # noqa: E402


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

    def own_head(self, vector: Tensor) -> Tensor:
        """What the backbone alone would answer, (B, classes): FC_t of the paper's regulariser (Eq. 9)."""
        head = self.backbone.get_classifier()
        if isinstance(head, tuple):  # distilled transformers have two heads and answer with their mean
            return torch.stack([h(vector) for h in head]).mean(dim=0)
        if isinstance(head, nn.Conv2d):  # of one pixel
            return head(vector[:, :, None, None]).flatten(1)  # type: ignore[no-any-return]
        answer: Tensor = head(vector)
        return answer

    def evidence(self, images: Tensor, labels: Tensor) -> Tensor:
        """(B, rows, columns) how much each place of the map speaks for the label of its image, against the other classes.

        The map times the gradient of the own head's answer. Where the head is linear in the mean of the map it is the class
        activation map: its mean is the answer, but for the head's biases. A head that does not read the map: zeros.
        Not for inference mode, which knows no gradients.
        """
        with torch.no_grad():
            features = self.backbone.forward_features(images)
        with torch.enable_grad():
            features = features.detach().requires_grad_()
            answers = self.own_head(self.backbone.forward_head(features, pre_logits=True).flatten(1))
            others = answers.sum(dim=1) - (own := answers.gather(1, labels[:, None])[:, 0])
            speaks_for = own - others / max(1, answers.shape[1] - 1)
            (gradient,) = torch.autograd.grad(speaks_for.sum(), features)
        map_ = self._as_map((features * gradient).detach(), images.shape[-2:])
        return map_.sum(dim=1) * map_.shape[-2] * map_.shape[-1]

    def _as_map(self, features: Tensor, image_hw: torch.Size) -> Tensor:
        if features.dim() == 4:
            channels_last = features.shape[1] != self.map_channels and features.shape[3] == self.map_channels
            return features.permute(0, 3, 1, 2) if channels_last else features
        tokens = features[:, getattr(self.backbone, "num_prefix_tokens", 0) :]
        patch_px = self.backbone.patch_embed.patch_size
        patch_h, patch_w = (patch_px, patch_px) if isinstance(patch_px, int) else patch_px
        rows, columns = image_hw[0] // patch_h, image_hw[1] // patch_w
        return tokens.transpose(1, 2).reshape(tokens.shape[0], tokens.shape[2], rows, columns)


def expected_colours(backbone: str) -> dict[str, Any]:
    """mean and std that the weights of a timm backbone were trained with; nothing for a name that timm does not know."""
    _check_tag(backbone)
    config = timm.models.get_pretrained_cfg(backbone, allow_unregistered=True)
    return {} if config is None else {"mean": tuple(config.mean), "std": tuple(config.std)}


def hub_id(backbone: str) -> str | None:
    """Where the weights that timm names for a backbone are on Hugging Face's hub; None where they are not there."""
    config = timm.models.get_pretrained_cfg(backbone, allow_unregistered=True) if timm.is_model(backbone) else None
    found = None if config is None else config.hf_hub_id
    return found if isinstance(found, str) and found else None


def check_backbone(name: str) -> None:
    """Refuse a name that no backbone has, with the nearest ones that do."""
    if name in _BEYOND_TIMM:
        return
    if timm.is_model(name):
        _check_tag(name)
        return
    if ":" in name or "/" in name:
        raise BadSetting(
            f"the backbone {name!r} lies outside of timm. Name one of timm's own, such as 'resnet50', "
            "and give its weights as a file."
        )
    raise UnknownName("backbone", name, [*timm.list_models(), *_BEYOND_TIMM], "`gf models` lists the presets.")


def _check_tag(name: str) -> None:
    """Refuse weights that timm does not know for a backbone: what follows the point in resnet50.a1_in1k."""
    try:
        timm.models.get_pretrained_cfg(name, allow_unregistered=True)
    except RuntimeError:
        architecture = name.partition(".")[0]
        known = timm.list_pretrained(f"{architecture}.*")
        raise UnknownName("backbone", name, known, f"Leave out what follows the point: {architecture}.") from None


def has_pretrained_weights(backbone: str) -> bool:
    """Whether timm names weights for a backbone."""
    return bool(timm.is_model_pretrained(backbone))


def build_backbone(
    name: str, classes: int, options: dict[str, Any] | None = None, pretrained: bool = False
) -> nn.Module:
    """A timm backbone by name, with free input size where it is a transformer.

    name        one of timm's own, or of _BEYOND_TIMM. Not hf-hub:... or local-dir:..., with which timm would read a network's
                description from elsewhere: bundles name their backbone, and must be able to load without a network
    options     see backbone_options.py
    pretrained  with the weights that timm names for it; they are downloaded when they are not in the local cache
    """
    check_backbone(name)
    check_options(options or {})
    make = _BEYOND_TIMM.get(name) or functools.partial(timm.create_model, name)
    wanted = {**(options or {}), "num_classes": classes, "pretrained": pretrained}
    if pretrained and name not in _BEYOND_TIMM and ":" not in name:
        wanted |= create_options(name)
    try:
        backbone = _with_free_size(make, wanted)
    except BadSetting:
        raise
    except TypeError as error:
        raise BadSetting(f"the backbone {name!r} does not take these options ({options}): {error}.") from None
    except Exception as error:  # timm asserts, looks up and divides by what it is given
        if not pretrained and not options and not isinstance(error, (RuntimeError, MemoryError)):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if pretrained:
            raise cannot_be_had(name, reason) from None
        raise BadSetting(
            f"the backbone {name!r} cannot be built for {classes} classes with {options or {}}: {reason}"
        ) from None
    if not hasattr(backbone, "forward_features") or not hasattr(backbone, "forward_head"):
        raise BadSetting(f"the backbone {name!r} has no feature map to aim by. Choose another one.")
    return backbone


def _with_free_size(make: Any, wanted: dict[str, Any]) -> nn.Module:
    """Built so that it takes images of any size: transformers say so by an option, which other networks refuse."""
    try:
        return make(**wanted, dynamic_img_size=True)  # type: ignore[no-any-return]
    except TypeError:
        return make(**wanted)  # type: ignore[no-any-return]


def _mobilenetv3_large_125(**options: Any) -> nn.Module:
    """MobileNetV3-Large 1.25: in the paper, but not among timm's names; its builder takes any width."""
    from timm.models.mobilenetv3 import _gen_mobilenet_v3

    if options.pop("pretrained", False):
        raise BadSetting("there are no public weights of mobilenetv3_large_125. Give a file instead.")
    return _gen_mobilenet_v3("mobilenetv3_large_100", 1.25, pretrained=False, **options)  # type: ignore[no-any-return]


_BEYOND_TIMM = {"mobilenetv3_large_125": _mobilenetv3_large_125}


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
_MANY_BLOCKS = 23  # in one stage: ResNet-101 and deeper shift in every second block only, as TSM does


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
            f"the temporal shift goes into residual blocks of convolutions, and {type(backbone).__name__} has none that it knows. "
            "Choose a ResNet, RegNet, MobileNet, EfficientNet or ConvNeXt, or shift_div=0 for frames that are only averaged."
        )
    for convolution in convolutions:
        convolution.register_forward_pre_hook(ShiftBefore(frames, div))
    return len(convolutions)


def _shifted_convolutions(backbone: nn.Module) -> Iterator[nn.Module]:
    for stage in _stages(backbone):
        step = 2 if len(stage) >= _MANY_BLOCKS else 1
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

    def evidence(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean over a clip's frames, whose answers are averaged, too."""
        each = super().evidence(images, labels.repeat_interleave(self.frames))
        return each.reshape(-1, self.frames, *each.shape[1:]).mean(dim=1)
