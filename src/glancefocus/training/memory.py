"""The memory that a run needs, computed before it starts, and the number of parts of a batch that fits."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from glancefocus.data.sources import Data
from glancefocus.data.splits import HeldPictures, MemorySplit
from glancefocus.errors import BadRun
from glancefocus.evaluation.every_look import seen_at_once
from glancefocus.machine import available_bytes
from glancefocus.network.build import build
from glancefocus.settings import NetworkSettings
from glancefocus.training.large_recipes import as_seen
from glancefocus.training.settings import RecogniseSettings, TrainSettings

PROCESS_BYTES = 700 << 20  # Python, torch and timm, before any data
WORKER_BYTES = 400 << 20  # per process that reads files
SPARE = 1.25  # factor for temporary gradients, buffers of convolutions, memory that the allocator keeps
EVALUATING = 0.25  # share of the memory of training that inference needs: only the largest layers, one at a time


def training_bytes(settings: TrainSettings, held_bytes: int = 0) -> int:
    """The peak memory of a run over all of its stages, in this process and those that read files.

    held_bytes  of images that are held in memory
    """
    per_image = bytes_per_image(settings)
    batch = -(-settings.batch_size // settings.accumulation)
    workers = 0 if held_bytes else settings.data.workers
    dearest = max(batch * per_image[stage] for stage in settings.plan())
    answering = EVALUATING * seen_at_once(settings.network) * per_image["backbone"]
    program = PROCESS_BYTES + workers * WORKER_BYTES + held_bytes + weight_bytes(settings)
    return round(program + SPARE * dearest + answering)


def parts_that_fit(settings: TrainSettings, data: Data, device: torch.device | None = None) -> tuple[int, int]:
    """(number of parts in which a batch is computed, peak bytes); refuses a run that does not fit in any number of parts.

    device  None: the CPU. The memory of other devices is not checked; the number of parts is then that of the settings.
    """
    held = _held_bytes(data)
    if device is not None and device.type != "cpu":
        return settings.accumulation, training_bytes(as_seen(settings, data), held)
    free = available_bytes() + PROCESS_BYTES + held  # this process already uses the last two
    parts = settings.accumulation
    images = max(stage_images(name, settings, data)[0] for name in settings.plan())
    settings = replace(as_seen(settings, data), batch_size=max(2, min(settings.batch_size, images)))  # as in shuffled
    while True:
        need = training_bytes(replace(settings, accumulation=parts), held)
        if need <= free:
            return parts, need
        if parts >= settings.batch_size:
            raise BadRun(
                f"training needs about {gigabytes(need)} of memory even for one image at a time, but {gigabytes(free)} are free. "
                "Use smaller images (--height-px, --width-px), a smaller backbone, or a machine with more memory."
            )
        parts = min(settings.batch_size, parts * 2)


def weight_bytes(settings: TrainSettings) -> int:
    """Bytes of weights, gradients and two optimiser values per weight."""
    numbers: int = sum(p.numel() for p in _on_meta(settings.network).parameters())
    return 4 * 4 * numbers


def bytes_per_image(settings: TrainSettings) -> dict[str, int]:
    """{stage: bytes that autograd keeps per image for the backward pass}."""
    network = settings.network
    net, view = _on_meta(network), network.view
    whole = _kept(net.focus_encoder, network.frames, view.height_px, view.width_px)
    glance = _kept(net.glance_encoder, network.frames, network.glance_px, network.glance_px)
    groups = net.learning_views().values()
    sides = {view.px for views in groups for view in views.values()}
    patch = max((_kept(net.focus_encoder, network.frames, px, px) for px in sides), default=0)
    image = 3 * 4 * network.frames * view.height_px * view.width_px
    # Where several encoders learn, each of their views has a look in every batch.
    looks_to_learn = max(network.looks - 1, sum(map(len, groups)) if len(groups) > 1 else 0)
    patches = looks_to_learn * patch

    def looks(stage: RecogniseSettings) -> int:
        if stage.freeze_encoders:
            return patch // 4  # no gradients: only one layer at a time
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
    """Bytes that autograd keeps per image of one forward pass, without the weights."""
    own = {id(p) for p in encoder.parameters()}
    was_training = encoder.training
    encoder.train()
    images = torch.empty(2 * frames, 3, height, width, device="meta")  # batch norms need more than one value
    with _counting(own) as total:
        encoder(images)
    encoder.train(was_training)
    return total() // 2


@contextlib.contextmanager
def _counting(own: set[int]) -> Iterator[Callable[[], int]]:
    """Count the bytes of the tensors that autograd keeps while the block runs, each storage once."""
    seen: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if id(tensor) not in own:
            seen[tensor.untyped_storage()._cdata] = tensor
        return tensor

    def total() -> int:
        return sum(t.numel() * t.element_size() for t in seen.values())

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield total


def _held_bytes(data: Data) -> int:
    total = 0
    for split in (data.train, data.val, data.test):
        if isinstance(split, HeldPictures):
            total += sum(one.nbytes for one in split.pixels)
        elif isinstance(split, MemorySplit) and split.files is not None:  # scenes of built-in worlds are memory-mapped
            total += split.images.nbytes
    return total


def stage_images(name: str, settings: TrainSettings, data: Data) -> tuple[int, int]:
    """The number of training and of validation images of a stage."""
    if name in ("small", "small_glance"):
        own: tuple[int, int] = getattr(settings, name).scenes
        return own
    return len(data.train), len(data.val)


def gigabytes(count: int) -> str:
    return f"{count / 2**30:.1f} GB"
