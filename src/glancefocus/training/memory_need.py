"""How much memory training will take, worked out on the meta device before anything is computed."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from glancefocus.evaluation.every_look import seen_at_once
from glancefocus.network.build import build
from glancefocus.settings import NetworkSettings
from glancefocus.training.settings import RecogniseSettings, TrainSettings

PROCESS_BYTES = 700 << 20  # Python, torch and timm, before any data
WORKER_BYTES = 400 << 20  # of each process that reads files
SPARE = 1.25  # gradients in flight, buffers of convolutions, memory that the allocator keeps
EVALUATING = 0.25  # of what is kept for learning is needed for answering: the largest layers, one after the other


def training_bytes(settings: TrainSettings, held_bytes: int = 0) -> int:
    """The most that a run takes, over all of its stages, in this process and those that read files.

    held_bytes  of pictures that are held in memory
    """
    per_image = bytes_per_image(settings)
    batch = -(-settings.batch_size // settings.accumulation)
    workers = 0 if held_bytes else settings.data.workers
    dearest = max(batch * per_image[stage] for stage in settings.plan())
    answering = EVALUATING * seen_at_once(settings.network) * per_image["backbone"]
    program = PROCESS_BYTES + workers * WORKER_BYTES + held_bytes + weight_bytes(settings)
    return round(program + SPARE * dearest + answering)


def weight_bytes(settings: TrainSettings) -> int:
    """Weights, gradients and two numbers of the optimiser for each."""
    numbers: int = sum(p.numel() for p in _on_meta(settings.network).parameters())
    return 4 * 4 * numbers


def bytes_per_image(settings: TrainSettings) -> dict[str, int]:
    """{stage: bytes that are kept of one image from the forward pass for the backward pass}."""
    network = settings.network
    net, view = _on_meta(network), network.view
    whole = _kept(net.focus_encoder, network.frames, view.height_px, view.width_px)
    glance = _kept(net.glance_encoder, network.frames, network.glance_px, network.glance_px)
    patch = max(_kept(net.focus_encoder, network.frames, px, px) for px in network.patch_px)
    image = 3 * 4 * network.frames * view.height_px * view.width_px
    patches = (network.looks - 1) * patch

    def looks(stage: RecogniseSettings) -> int:
        if stage.freeze_encoders:
            return patch // 4  # no gradients: only what one layer needs at a time
        return patches + (0 if stage.freeze_glance else glance)

    needs = {
        "small": whole,
        "backbone": whole,
        "small_glance": glance,
        "glance": glance,
        "recognise": looks(settings.recognise),
        "finetune": looks(settings.finetune),
        "point": patch,
        "aim": patch,
        "joint": patches + glance + whole,
    }
    return {stage: need + 2 * image for stage, need in needs.items()}


def _on_meta(settings: NetworkSettings) -> Any:
    with torch.device("meta"):
        return build(settings)


def _kept(encoder: nn.Module, frames: int, height: int, width: int) -> int:
    """Bytes that autograd keeps of one pass; weights, which are there anyway, do not count."""
    own = {id(p) for p in encoder.parameters()}
    was_training = encoder.training
    encoder.train()
    images = torch.empty(
        2 * frames, 3, height, width, device="meta"
    )  # two: a batch norm refuses to learn from one value
    with _counting(own) as total:
        encoder(images)
    encoder.train(was_training)
    return total() // 2


@contextlib.contextmanager
def _counting(own: set[int]) -> Iterator[Callable[[], int]]:
    """Counts the bytes of every tensor that autograd keeps while the block runs, each once."""
    seen: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if id(tensor) not in own:
            seen[tensor.untyped_storage()._cdata] = tensor
        return tensor

    def total() -> int:
        return sum(t.numel() * t.element_size() for t in seen.values())

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield total
