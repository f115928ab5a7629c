"""Trains comparison networks with several exits (network/multi_exit.py); a killed training goes on after its last epoch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.data.augmentation import mix
from glancefocus.data.sources import Data
from glancefocus.data.splits import Split, in_order, scene_batches, shuffled
from glancefocus.errors import BadRun
from glancefocus.files import fingerprint, write_file
from glancefocus.look import as_batch
from glancefocus.network.multi_exit import DepthEnsemble, MultiExit
from glancefocus.network.weights import open_safely
from glancefocus.settings import ViewSettings
from glancefocus.training.stage import NonFinite, set_rates
from glancefocus.values import Epochs, Rate, Seed, TrainBatchSize, WeightDecay, check_fields, to_plain


@dataclass(frozen=True)
class MultiExitTraining:
    """How all exits are trained together: the sum of their cross-entropies, by SGD with Nesterov momentum 0.9.

    The defaults are those of MSDNet's paper for ImageNet. Members of an ensemble share no weights, so each learns from its own
    cross-entropy, at this rate.

    rates  steps: divided by 10 after one and two thirds of the epochs, as published; cosine: as our own stages
    """

    epochs: Epochs = 90
    lr: Rate = 0.1
    weight_decay: WeightDecay = 1e-4
    batch_size: TrainBatchSize = 256
    rates: Literal["steps", "cosine"] = "steps"
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)


LOSS = "sum over the exits"
"""Part of the hashes of trainings, so that one with another loss is not continued."""


def train_exits(
    net: MultiExit,
    data: Data,
    view: ViewSettings,
    settings: MultiExitTraining,
    file: Path,
    *,
    workers: int = 0,
    on_epoch: Callable[[int, list[float]], None] | None = None,
) -> MultiExit:
    """Train a network on whole images; its weights are written to the file after every epoch, from which a later call continues.

    on_epoch  called with the number of epochs done and the accuracy of each exit on the validation images
    """
    device = next(net.parameters()).device
    optimizer = torch.optim.SGD(
        net.parameters(), lr=settings.lr, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay
    )
    optimizer.param_groups[0]["initial_lr"] = settings.lr
    of_what = fingerprint([LOSS, to_plain(settings), repr(net), len(data.train)], data.train.labels)
    for epoch in range(_resumed(file, net, optimizer, of_what), settings.epochs):
        net.train()
        seed = mix(settings.seed, epoch)
        order = shuffled(len(data.train), settings.batch_size, seed)
        batches = scene_batches(data.train, view, order, seed, workers)
        for step, (images, labels) in enumerate(batches):
            progress = (epoch + step / len(order)) / settings.epochs
            if settings.rates == "cosine":
                set_rates(optimizer, progress)
            else:
                optimizer.param_groups[0]["lr"] = settings.lr * 0.1 ** int(3 * progress)
            _update(net, optimizer, as_batch(images.to(device), view).whole, labels.to(device))
        content = {"of": of_what, "epochs": epoch + 1, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
        write_file(file, lambda stream, content=content: torch.save(content, stream))  # type: ignore[misc]
        if on_epoch is not None:
            on_epoch(epoch + 1, accuracy_of_exits(net, data.val, view, workers=workers))
    return net.eval()


def _resumed(file: Path, net: MultiExit, optimizer: torch.optim.Optimizer, of_what: str) -> int:
    """The number of epochs that are done already; their weights are loaded."""
    if not file.exists():
        return 0
    content = _opened(file)
    if content.get("of") != of_what:
        raise BadRun(
            f"{file} holds the training of another network, or with other settings or images. Remove it, or name another file."
        )
    net.load_state_dict(content["net"])
    optimizer.load_state_dict(content["optimizer"])
    return int(content["epochs"])


def epochs_done(file: Path) -> int:
    """The number of epochs after which a training wrote this file; 0 if there is none."""
    return int(_opened(file).get("epochs", 0)) if file.exists() else 0


def _opened(file: Path) -> dict[str, Any]:
    content = open_safely(file)
    return content if isinstance(content, dict) else {}


def _update(net: MultiExit, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    answers = net.own_answers(images) if isinstance(net, DepthEnsemble) else net(images)
    loss = torch.stack([F.cross_entropy(logits.float(), labels) for logits in answers]).sum()
    if not bool(loss.isfinite()):
        raise NonFinite(f"the loss became {float(loss)}. Lower the learning rate.")
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


@torch.inference_mode()
def accuracy_of_exits(
    net: MultiExit, split: Split, view: ViewSettings, *, batch_size: int = 64, workers: int = 0
) -> list[float]:
    """The accuracy of each exit on whole images."""
    net.eval()
    device, right = next(net.parameters()).device, None
    for images, labels in scene_batches(split, view, in_order(len(split), batch_size), None, workers):
        answers = net(as_batch(images.to(device), view).whole)
        now = torch.stack([(logits.argmax(dim=1).cpu() == labels).sum() for logits in answers])
        right = now if right is None else right + now
    assert right is not None, "the split has images"
    return [int(count) / len(split) for count in right]
