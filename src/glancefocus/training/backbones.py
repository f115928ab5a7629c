"""The plain backbone that a run keeps, and the same backbone tuned on smaller images: what glancefocus is compared with."""

import shutil
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from accelerate import Accelerator

from glancefocus.data.datasets import Data
from glancefocus.errors import BadCheckpoint, BadRun
from glancefocus.evaluation.rivals import image_size, patch_side, rival_name, sizes_to_tune, sizes_with_costs
from glancefocus.network.assemble import build
from glancefocus.network.glance_focus import GlanceFocus
from glancefocus.network.multiply_adds import count_costs
from glancefocus.network.weights import load_exactly, open_safely
from glancefocus.training.checkpoint import write_run_file
from glancefocus.training.run_folder import BACKBONE_FILE
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import Workshop

GoThrough = Callable[[Workshop, Path, list[str]], None]
"""Goes through stages, with a checkpoint in a folder."""


def load_backbone(settings: TrainSettings, folder: Path) -> GlanceFocus | None:
    """The run's plain backbone, as the focus encoder of a network that is otherwise fresh; None where none was trained."""
    file = folder / BACKBONE_FILE
    if not file.exists():
        return None
    net = build(settings.network)
    try:
        tensors = open_safely(file)
        load_exactly(net.focus_encoder.backbone, tensors, "backbone", str(file))
    except BadCheckpoint as error:
        raise BadRun(f"{error} Delete it to train the backbone again.") from None
    return net


def save_weights(file: Path, module: torch.nn.Module) -> None:
    """The weights of a module as a safetensors file."""
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    content = safetensors.torch.save(state)
    write_run_file(file, lambda stream: stream.write(content))


def tune_rivals(
    settings: TrainSettings, data: Data, accelerator: Accelerator, folder: Path, go_through: GoThrough
) -> None:
    """Tune the run's backbone at two smaller sizes, where that is not done yet, with the settings of the stage backbone.

    Each starts from the run's backbone and is kept in its folder as rival-160.safetensors; one that was stopped goes on in
    rival-160/.
    """
    net = load_backbone(settings, folder)
    if net is None:
        return
    network, costs = settings.network, count_costs(settings.network)
    image_hw, patch_px = image_size(data.val, network), patch_side(net.focus_encoder)
    sizes = sizes_with_costs(network, image_hw, patch_px, costs.macs_after_look[0])
    for name in map(rival_name, sizes_to_tune(sizes, costs)):
        if (folder / f"{name}.safetensors").exists():
            continue
        net = load_backbone(settings, folder)
        assert net is not None
        net.to(accelerator.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if accelerator.is_main_process:
            (folder / name).mkdir(exist_ok=True)
        accelerator.wait_for_everyone()
        go_through(Workshop(net, data, settings, accelerator), folder / name, [name])
        if accelerator.is_main_process:
            save_weights(folder / f"{name}.safetensors", net.focus_encoder.backbone)
            shutil.rmtree(folder / name)
