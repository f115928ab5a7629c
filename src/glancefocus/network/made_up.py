"""Made-up weights for measuring time: a network that nobody trained, but that computes as a trained one does."""

import torch
from torch import nn

from glancefocus.network.glance_focus import GlanceFocus

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
        for px in net.settings.patch_px if net.settings.looks > 1 else ():
            net.focus(look, net.policy.aim(look, px))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return net.eval()
