"""Puts a network together: from settings, from a preset's name, or around any timm backbone."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from glancefocus.errors import BadSetting
from glancefocus.network.encoder import ClipEncoder, Encoder, build_backbone
from glancefocus.network.model import CascadedClassifier, GlanceFocus, RecurrentClassifier
from glancefocus.network.policy import LearntPolicy
from glancefocus.network.presets import network_settings
from glancefocus.network.weights import forget_answers, load_backbone_weights
from glancefocus.settings import GLANCE, NetworkSettings
from glancefocus.values import Seed, checked


def create(
    preset: str | None = None,
    *,
    backbone: str | None = None,
    classes: int | None = None,
    weights: str | Path | None = None,
    seed: int | None = None,
    **changes: Any,
) -> GlanceFocus:
    """A new network, in evaluation mode.

    preset    a name of `gf models`; or
    backbone  any timm name
    weights   for both encoders: "pretrained" (the ones that timm names), or a file. None: not trained at all
    seed      makes the random weights repeatable
    changes   any field of NetworkSettings: glance_px=, patch_px=, looks=, classifier=, policy=dict(...), ...

        net = gf.create("gf-resnet50-96", classes=10)
        net = gf.create(backbone="convnext_atto", classes=10, glance_px=64, patch_px=64, looks=3)
    """
    settings = network_settings(preset, backbone=backbone, classes=classes, **changes)
    devices: list[int] = []  # the CPU's generator is forked always; weights are made there
    with torch.random.fork_rng(devices=devices, enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(checked(Seed, seed, "seed"))
        net = build(settings, pretrained=weights == "pretrained")
    if weights is not None and weights != "pretrained":
        load_encoders(net, weights)
    return net


def load_encoders(net: GlanceFocus, weights: str | Path) -> None:
    """Weights of a backbone out of a file, for both encoders."""
    encoders = {id(e): e for e in (net.glance_encoder, net.focus_encoder)}
    for encoder in encoders.values():
        load_backbone_weights(encoder.backbone, weights)


def build(settings: NetworkSettings, pretrained: bool = False) -> GlanceFocus:
    """The network that the settings describe, in evaluation mode, with fresh weights."""

    def encoder() -> Encoder:
        backbone = build_backbone(settings.backbone, settings.classes, settings.backbone_options, pretrained)
        if pretrained and getattr(backbone, "pretrained_cfg", {}).get("num_classes") != settings.classes:
            forget_answers(backbone)
        return Encoder(backbone) if settings.frames == 1 else ClipEncoder(backbone, settings.frames, settings.shift_div)

    glance_encoder = encoder()
    focus_encoder = glance_encoder if settings.shared_encoder else encoder()
    features = glance_encoder.vector_features
    if settings.classifier == "cascaded":
        classifier: RecurrentClassifier | CascadedClassifier = CascadedClassifier(
            features, settings.classes, settings.looks
        )
    else:
        classifier = RecurrentClassifier(features, settings.classes, settings.classifier_units)
    sides, map_channels = _map_sides(glance_encoder, settings)
    codes = tuple(
        settings.view_codes.index(settings.code_of(each)) for each in (*range(len(settings.candidates)), GLANCE)
    )
    policy = LearntPolicy(
        settings.policy,
        map_channels,
        sides[settings.glance_px],
        tuple(sides[view.px] for view in settings.candidates),
        codes,
        settings.frames,
    )
    return GlanceFocus(settings, glance_encoder, focus_encoder, classifier, policy).eval()


def _map_sides(encoder: Encoder, settings: NetworkSettings) -> tuple[dict[int, int], int]:
    """{px: side of the feature map} for every size that is looked at, and the map's channels; found without computing."""
    tensors = {**dict(encoder.named_parameters()), **dict(encoder.named_buffers())}
    on_meta = {name: tensor.to("meta") for name, tensor in tensors.items()}
    was_training = encoder.training
    encoder.eval()
    sides, channels = {}, 0
    for px in sorted({settings.glance_px, *(view.px for view in settings.candidates)}):
        image = torch.empty(settings.frames, 3, px, px, device="meta")
        try:
            with torch.no_grad():
                map_ = torch.func.functional_call(encoder, on_meta, (image,)).map
        except (RuntimeError, AssertionError, ValueError) as error:
            raise BadSetting(
                f"the backbone {settings.backbone!r} does not take images of {px} px: {str(error).splitlines()[0]} "
                "Choose another size or another backbone."
            ) from None
        if map_.dim() != 4 or map_.shape[-1] != map_.shape[-2]:
            raise BadSetting(f"the backbone {settings.backbone!r} gives no square feature map to aim by.")
        sides[px], channels = int(map_.shape[-1]), int(map_.shape[1])
    encoder.train(was_training)
    return sides, channels


IMAGES = 4


def make_up_weights(net: GlanceFocus, generator: torch.Generator) -> GlanceFocus:
    """Give an untrained network's batch norms weights and statistics like those of a trained one.

    timm starts the last batch norm of each block at zero: whole blocks would compute with zeros, and exporters leave them out.
    """
    norms = [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        with torch.no_grad():
            norm.weight.copy_(0.5 + torch.rand(norm.weight.shape, generator=generator))
            norm.bias.copy_(0.1 * torch.randn(norm.bias.shape, generator=generator))
        norm.momentum = 1.0
    view = net.settings.view
    frames = () if net.settings.frames == 1 else (net.settings.frames,)
    images = torch.randn(IMAGES, *frames, 3, view.height_px, view.width_px, generator=generator)
    net.train()
    with torch.no_grad():
        look = net.glance(images)
        for candidate in range(len(net.settings.candidates)) if net.settings.looks > 1 else ():
            net.focus(look, net.policy.aim(look, candidate))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return net.eval()
