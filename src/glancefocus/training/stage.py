"""What all stages share: the workshop that they work in, the moment that an update happens at, one step of an optimiser."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from glancefocus.data.sources import Data
from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.errors import BadRun
from glancefocus.interrupts import let_through
from glancefocus.look import Look
from glancefocus.loop import KnownGlance, LookingNetwork
from glancefocus.network.encoder import Encoding
from glancefocus.network.model import GlanceFocus
from glancefocus.progress import Progress
from glancefocus.scene import Scene, as_batch
from glancefocus.training.settings import STAGES, TrainSettings


@dataclass
class Workshop:
    """What every stage works with.

    tell  who hears about what takes a while, as (what, done, of so many)
    known_evidence  of the training images, see BackboneEvidence: it takes a while, and several stages ask for it
    """

    net: GlanceFocus
    data: Data
    settings: TrainSettings
    accelerator: Accelerator
    tell: Progress | None = None
    known_evidence: dict[str, Any] | None = None

    @property
    def workers(self) -> int:
        return self.settings.data.workers


@dataclass(frozen=True)
class Moment:
    """When an update happens, and its own randomness: both follow from the step's number, so a resumed run repeats them.

    progress   in [0, 1) along the stage
    generator  on the CPU, seeded anew for every update
    rows       (B,) int64 which images of the training data the batch consists of; None: nobody knows
    seed       that these were augmented with; None: nobody knows
    """

    progress: float
    generator: torch.Generator
    rows: Tensor | None = None
    seed: int | None = None


class NonFinite(BadRun):
    """Training has come to numbers that are infinite or none, and can only stop."""


class Stage(Protocol):
    """One stage of training. `best` is kept across restarts with the rest of its state.

    data  what it learns from and is judged by
    """

    name: str
    data: Data
    epochs: int
    optimizer: Any

    def begin(self) -> None:
        """Once, before the first update of a stage that is not resumed."""
        ...

    def train_mode(self) -> None:
        """Before each epoch: what is trained goes into training mode, what is frozen into evaluation mode."""
        ...

    def update(self, images: Tensor, labels: Tensor, moment: Moment) -> dict[str, Any]:
        """Learn from one batch; returns numbers to show."""
        ...

    def validate(self, split: Split) -> dict[str, Any]:
        """After each epoch, numbers to show; `val_accuracy` is a list with one entry a look."""
        ...

    def finish(self) -> None:
        """After the last epoch."""
        ...

    def state(self) -> dict[str, Any]:
        """What a resumed stage needs besides the weights and the optimiser."""
        ...

    def load_state(self, state: dict[str, Any]) -> None: ...


def train_only(workshop: Workshop, trained: Iterable[nn.Module]) -> None:
    """Gradients for these parts, none for the rest; the network is put into the modes that go with it."""
    workshop.net.requires_grad_(False)
    workshop.net.eval()
    for module in trained:
        module.requires_grad_(True)
        module.train()
        if workshop.settings.keep_statistics:
            for part in module.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.eval()  # its weights learn, its mean and variance stay


def make_optimizer(kind: str, groups: list[dict[str, Any]], weight_decay: float) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum 0.9 as in the paper, or AdamW; each group remembers the rate that it starts from."""
    for group in groups:
        group["initial_lr"] = group["lr"]
    if kind == "adamw":
        return torch.optim.AdamW(groups, weight_decay=weight_decay)
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=weight_decay)


def set_rates(optimizer: Any, progress: float, warmup: float = 0.0) -> None:
    """Up from zero over the warm-up's share of the stage, then along a cosine back to zero; progress in [0, 1]."""
    along = (progress - warmup) / (1 - warmup)
    factor = progress / warmup if along < 0 else 0.5 * (1 + math.cos(math.pi * along))
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def descend(
    workshop: Workshop, step: nn.Module, optimizer: Any, images: Tensor, labels: Tensor, **more: Any
) -> tuple[float, list[dict[str, Any]]]:
    """One update of a step module that gives (loss, numbers) for a batch; large batches are accumulated in parts.

    more  for the step; tensors among it have a row for every image and are divided like the batch
    """
    accelerator = workshop.accelerator
    parts = min(workshop.settings.accumulation, images.shape[0])  # of sizes that differ by one at the most
    optimizer.zero_grad()
    total, numbers = 0.0, []
    chunks = list(zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True))
    divided = {name: value.tensor_split(parts) for name, value in more.items() if isinstance(value, Tensor)}
    for index, (some_images, some_labels) in enumerate(chunks):
        own = {name: pieces[index] for name, pieces in divided.items()}
        share = some_images.shape[0] / images.shape[0]
        with _sync(step, index == len(chunks) - 1), _single_images(workshop.settings, some_images.shape[0]):
            with accelerator.autocast():
                loss, facts = step(some_images, some_labels, **{**more, **own})
            accelerator.backward(loss * share)
        total += float(loss.detach()) * share
        numbers.append(facts)
    if not math.isfinite(total):
        raise NonFinite(f"the loss became {total}")
    take_step(optimizer)
    return total, numbers


def take_step(optimizer: Any) -> None:
    """One step of the optimiser; gradients that are not finite show in the weights."""
    optimizer.step()
    weights = [weight.detach() for group in optimizer.param_groups for weight in group["params"]]
    largest = float(nn.utils.get_total_norm(weights, math.inf))
    if not math.isfinite(largest):
        raise NonFinite(f"a weight became {largest}")


def check_finite(tensors: dict[str, Tensor]) -> None:
    """Refuse a network with weights or statistics that are not finite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise NonFinite(f"{name} became infinite or not a number")


def what_to_lower(stage: str, settings: TrainSettings) -> str:
    """The advice for a stage whose numbers became too large."""
    rates = {
        "recognise": "recognise.encoder_lr and recognise.classifier_lr",
        "finetune": "finetune.encoder_lr and finetune.classifier_lr",
        "joint": "joint.encoder_lr, joint.classifier_lr and aim.lr",
    }.get(stage, f"{stage if stage in STAGES else 'backbone'}.lr")  # rivals are tuned as the backbone was
    return f"Lower {rates}" + ("" if settings.precision == "no" else ", or leave out --precision,")


@contextlib.contextmanager
def _single_images(settings: TrainSettings, count: int) -> Iterator[None]:
    """A batch norm after a map of one pixel cannot learn from a single image: that is a sentence."""
    try:
        yield
    except ValueError as error:
        if count > 1 or "more than 1 value per channel" not in str(error):
            raise
        raise BadRun(
            f"batches of {settings.batch_size} images are computed one image at a time (--accumulation {settings.accumulation}, or "
            "as many processes as images), and batch norms of this network need at least two. Use fewer parts or processes, or a "
            "larger --batch-size."
        ) from None


@contextlib.contextmanager
def _sync(step: nn.Module, last: bool) -> Iterator[None]:
    """Gradients travel between processes only with the last part of a batch."""
    no_sync = getattr(step, "no_sync", None)
    if last or no_sync is None:
        yield
    else:
        with no_sync():
            yield


def mean_of(numbers: list[dict[str, Any]], name: str) -> list[float]:
    """A list of numbers averaged over the parts of a batch, element by element."""
    rows = [part[name] for part in numbers]
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


class KeptGlances:
    """The first looks at so many images, each encoded when it is first asked for.

    limit_bytes  where all of them would take more than this, none is kept
    """

    def __init__(self, net: GlanceFocus, count: int, limit_bytes: int) -> None:
        self.net = net
        self.limit_bytes = limit_bytes
        self.known = torch.zeros(count, dtype=torch.bool)
        self.columns: dict[str, Tensor] = {}
        self.full = limit_bytes <= 0

    def look(self, scene: Scene, rows: Tensor) -> Look:
        """The first look at a scene that consists of these images."""
        if self.full or not bool(self.known[rows].all()):
            look = self.net.glance(scene)
            self._keep(look, rows)
            return look
        map_, vector, *answer = (column[rows] for column in self.columns.values())
        return self.net.first_look(scene, Encoding(map_, vector), (answer[0], answer[1]) if answer else None)

    def _keep(self, look: Look, rows: Tensor) -> None:
        if self.full:
            return
        if not self.columns:
            # The answer of a classifier that is being trained changes; it is worked out anew from the vector.
            answers = {} if learns(self.net.classifier) else {"memory": look.memory, "logits": look.logits}
            columns = {"map": look.map, "vector": look.features, **answers}
            count = self.known.shape[0]
            row_bytes = sum(column[0].numel() * column.element_size() for column in columns.values())
            self.full = row_bytes * count > self.limit_bytes
            if self.full:
                return
            self.columns = {name: column.new_empty(count, *column.shape[1:]) for name, column in columns.items()}
        for name, column in self.columns.items():
            column[rows] = getattr(look, name).detach()
        self.known[rows] = True


class FrozenGlances:
    """The first looks of one stage: looked up where they cannot have changed since the last time, made anew otherwise."""

    def __init__(self, workshop: Workshop, epochs: int) -> None:
        self.workshop = workshop
        # Every process keeps all of them, so it must go through them more often than that.
        self.worth = epochs > workshop.accelerator.num_processes
        self._train: KeptGlances | None = None
        self._val: KeptGlances | None = None

    def network(self, scene: Scene, rows: Tensor | None) -> LookingNetwork:
        """The network, for a scene of these training images; None: nobody knows which they are."""
        net, train = self.workshop.net, self.workshop.data.train
        if rows is None or not self.worth or not train.fixed or learns(net.glance_encoder):
            return net
        if self._train is None:
            self._train = self._kept(train)
            self._fill(self._train, train)
        return KnownGlance(net, self._train.look(scene, rows.cpu()))  # several GPUs get them with the batch

    def of_validation(self, split: Split) -> Callable[[Scene, Sequence[int]], Look] | None:
        """Who makes the first looks of a validation, which goes through its images in the same batches every time."""
        if not self.worth or learns(self.workshop.net.glance_encoder):
            return None
        if self._val is None:
            self._val = self._kept(split)
        kept = self._val
        return lambda scene, rows: kept.look(scene, torch.as_tensor(list(rows)))

    def forget(self) -> None:
        self._train = self._val = None

    def _kept(self, split: Split) -> KeptGlances:
        return KeptGlances(self.workshop.net, len(split), self.workshop.settings.keep_glances_mib << 20)

    def _fill(self, kept: KeptGlances, split: Split) -> None:
        workshop = self.workshop
        view, device = workshop.net.settings.view, workshop.accelerator.device
        order = in_order(len(split), workshop.settings.batch_size)
        with torch.no_grad(), let_through():  # it takes minutes, and changes nothing
            # The first batch tells whether they fit.
            for some in (order[:1], order[1:]):
                if kept.full:
                    return
                for rows, (images, _) in zip(
                    some, scene_batches(split, view, some, None, workshop.workers), strict=True
                ):
                    kept.look(as_batch(images.to(device), view), torch.as_tensor(rows))
                    if workshop.tell is not None and not kept.full:
                        workshop.tell("encoding glances", rows[-1] + 1, len(split))


def learns(module: nn.Module) -> bool:
    """Some of its weights are being trained."""
    return any(weight.requires_grad for weight in module.parameters())
