"""What all stages share: their context, one update of an optimiser, and glances of a frozen encoder that are encoded once."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from glancefocus.data.sources import Data
from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.errors import BadRun
from glancefocus.interrupts import interruptible
from glancefocus.look import Look, Scene, as_batch, in_parts
from glancefocus.loop import KnownGlance, LookingNetwork
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import GLANCE_WEIGHT, Encoding, SummedClassifier
from glancefocus.network.policy import learning_network
from glancefocus.progress import Progress
from glancefocus.training.checkpoint import KnownEvidence, Numbers, TorchState
from glancefocus.training.settings import STAGES, TrainSettings

if TYPE_CHECKING:
    from glancefocus.training.teacher import Teacher


@dataclass
class TrainingContext:
    """The parts that every stage uses.

    on_progress     is called with (what, done, total) during long computations
    known_evidence  of the training images; slow to compute, so it is kept for all stages that need it
    teacher         the trained backbone that stages learn from; None: no stage so far needs it
    """

    net: GlanceFocus
    data: Data
    settings: TrainSettings
    accelerator: Accelerator
    on_progress: Progress | None = None
    known_evidence: KnownEvidence | None = None
    teacher: "Teacher | None" = None

    @property
    def workers(self) -> int:
        return self.settings.data.workers


@dataclass(frozen=True)
class Moment:
    """The position of an update in its stage, and its randomness.

    Both follow from the step's number, so a resumed run repeats them.

    progress   in [0, 1) along the stage
    generator  on the CPU, seeded anew for every update
    rows       (B,) int64 indices of the batch in the training data; None: unknown
    seed       of the augmentation of the batch; None: unknown
    """

    progress: float
    generator: torch.Generator
    rows: Tensor | None = None
    seed: int | None = None


class NonFinite(BadRun):
    """Training produced numbers that are infinite or NaN, and has to stop."""


class Stage(Protocol):
    """One stage of training.

    data  the images that it is trained and validated on
    """

    name: str
    data: Data
    epochs: int
    optimizer: Any

    def begin(self) -> None:
        """Once, before the first update of a stage that is not resumed."""
        ...

    def train_mode(self) -> None:
        """Before each epoch: set trained parts to training mode, frozen parts to evaluation mode."""
        ...

    def update(self, images: Any, labels: Tensor, moment: Moment) -> Numbers:
        """Learn from one batch, see data.splits.Batch; returns numbers for the journal."""
        ...

    def validate(self, split: Split) -> Numbers:
        """After each epoch; returns numbers for the journal. `val_accuracy` is a list with one entry per look."""
        ...

    def finish(self) -> str | None:
        """After the last epoch; returns a sentence for the journal, or None."""
        ...

    def state(self) -> TorchState:
        """What a resumed stage needs in addition to the weights and the optimiser."""
        ...

    def load_state(self, state: TorchState) -> None: ...


def train_only(context: TrainingContext, trained: Iterable[nn.Module]) -> None:
    """Enable gradients and training mode for these parts of the network only."""
    context.net.requires_grad_(False)
    context.net.eval()
    for module in trained:
        module.requires_grad_(True)
        module.train()
        if context.settings.keep_statistics:
            for part in module.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.eval()  # its weights are trained, its mean and variance are not updated


def make_optimizer(kind: str, groups: list[dict[str, Any]], weight_decay: float) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum 0.9 as in the paper, AdamW or RMSprop; each group stores its initial learning rate."""
    for group in groups:
        group["initial_lr"] = group["lr"]
    if kind == "adamw":
        return torch.optim.AdamW(groups, weight_decay=weight_decay)
    if kind == "rmsprop":
        return torch.optim.RMSprop(groups, alpha=0.9, eps=1e-3, momentum=0.9, weight_decay=weight_decay)
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=weight_decay)


def set_rates(optimizer: Any, progress: float, warmup: float = 0.0) -> None:
    """Warm-up from zero over this share of the stage, then a cosine back to zero; progress in [0, 1]."""
    along = (progress - warmup) / (1 - warmup)
    factor = progress / warmup if along < 0 else 0.5 * (1 + math.cos(math.pi * along))
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def descend(
    context: TrainingContext, step: nn.Module, optimizer: Any, images: Any, labels: Tensor, **more: Any
) -> tuple[float, list[float]]:
    """One update with a module that returns (loss, accuracy after each look) of a batch; returns the same for the whole batch.

    With `accumulation` a batch is computed in parts, and the gradients are accumulated.

    more  further arguments of the module; tensors among them have one row per image and are split like the batch
    """
    accelerator = context.accelerator
    count = len(labels)
    parts = min(context.settings.accumulation, count)  # their sizes differ by at most one
    optimizer.zero_grad()
    total = 0.0
    accuracies: list[list[float]] = []  # one list per part
    chunks = list(zip(in_parts(images, parts), labels.tensor_split(parts), strict=True))
    divided = {name: value.tensor_split(parts) for name, value in more.items() if isinstance(value, Tensor)}
    for index, (some_images, some_labels) in enumerate(chunks):
        own = {name: pieces[index] for name, pieces in divided.items()}
        share = len(some_labels) / count
        with _sync(step, index == len(chunks) - 1), _single_images(context.settings, len(some_labels)):
            with accelerator.autocast():
                loss, accuracy = step(some_images, some_labels, **{**more, **own})
            accelerator.backward(loss * share)
        total += float(loss.detach()) * share
        accuracies.append(accuracy)
    if not math.isfinite(total):
        raise NonFinite(f"the loss became {total}")
    take_step(optimizer)
    return total, [sum(column) / parts for column in zip(*accuracies, strict=True)]


def take_step(optimizer: Any) -> None:
    """One step of the optimiser; gradients that are not finite are detected in the weights."""
    optimizer.step()
    weights = [weight.detach() for group in optimizer.param_groups for weight in group["params"]]
    largest = float(nn.utils.get_total_norm(weights, math.inf))
    if not math.isfinite(largest):
        raise NonFinite(f"a weight became {largest}")


def check_finite(tensors: dict[str, Tensor]) -> None:
    """Refuse weights or statistics that are not finite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise NonFinite(f"{name} became infinite or not a number")


def what_to_lower(stage: str, settings: TrainSettings) -> str:
    """Advice for a stage whose numbers became infinite or NaN."""
    rates = {
        "recognise": "recognise.encoder_lr and recognise.classifier_lr",
        "finetune": "finetune.encoder_lr and finetune.classifier_lr",
        "joint": "joint.encoder_lr, joint.classifier_lr and aim.lr",
    }.get(stage, f"{stage if stage in STAGES else 'glance'}.lr")  # rivals are tuned like the glance encoder
    return f"Lower {rates}" + ("" if settings.precision == "no" else ", or leave out --precision,")


@contextlib.contextmanager
def _single_images(settings: TrainSettings, count: int) -> Iterator[None]:
    """A batch norm on a feature map of one pixel needs at least two images: turn torch's ValueError into a clear one."""
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
    """Processes exchange gradients only after the last part of a batch."""
    no_sync = getattr(step, "no_sync", None)
    if last or no_sync is None:
        yield
    else:
        with no_sync():
            yield


class KeptGlances:
    """The first looks at `count` images, each encoded when it is first needed.

    limit_bytes  if all of them would need more memory than this, none is kept
    """

    def __init__(self, net: GlanceFocus, count: int, limit_bytes: int) -> None:
        self.net = net
        self.limit_bytes = limit_bytes
        self.known = torch.zeros(count, dtype=torch.bool)
        self.columns: dict[str, Tensor] = {}
        self.full = limit_bytes <= 0

    def look(self, scene: Scene, rows: Tensor) -> Look:
        """The first look at a scene of the images with these indices."""
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
            # The answer of a classifier that is being trained changes, so it is computed again from the vector.
            answers = {} if is_trained(self.net.classifier) else {"memory": look.memory, "logits": look.logits}
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
    """The first looks of one stage, encoded once if the glance encoder is frozen and images are not augmented.

    What is kept depends on the weights and the images only, not on the order in which training needs it: all images are encoded in
    their order, in batches of one size, before the first is used. So it is not part of a checkpoint, and a resumed run sees the
    same numbers as an uninterrupted one.
    """

    def __init__(self, context: TrainingContext, epochs: int) -> None:
        self.context = context
        # Every process encodes all images, so this only pays off with more epochs than processes.
        self.pays_off = epochs > context.accelerator.num_processes
        self._train: KeptGlances | None = None
        self._val: KeptGlances | None = None

    def network(self, scene: Scene, rows: Tensor | None, generator: torch.Generator) -> LookingNetwork:
        """The network for a scene of these training images, with their glances if they are kept; rows None: unknown.

        generator  of random first views, which are not kept: they are drawn anew for every batch
        """
        net, train = self.context.net, self.context.data.train
        if net.settings.first_view == "random":
            return learning_network(net, generator)
        if rows is None or not self.pays_off or not train.fixed or is_trained(net.glance_encoder):
            return net
        if self._train is None:
            self._train = self._kept(train)
            self._fill(self._train, train)
        return KnownGlance(net, self._train.look(scene, rows.cpu()))  # with several GPUs, rows are on the GPU

    def of_validation(self, split: Split) -> Callable[[Scene, Sequence[int]], Look] | None:
        """A function that returns the first look of a batch of validation images; None: glances are not kept."""
        if not self.pays_off or is_trained(self.context.net.glance_encoder):
            return None
        if self._val is None:
            self._val = self._kept(split)
        kept = self._val
        return lambda scene, rows: kept.look(scene, torch.as_tensor(list(rows)))

    def forget(self) -> None:
        self._train = self._val = None

    def _kept(self, split: Split) -> KeptGlances:
        return KeptGlances(self.context.net, len(split), self.context.settings.keep_glances_mib << 20)

    def _fill(self, kept: KeptGlances, split: Split) -> None:
        context = self.context
        view, device = context.net.settings.view, context.accelerator.device
        order = in_order(len(split), context.settings.batch_size)
        with torch.no_grad(), interruptible():  # it takes minutes and changes nothing, so it may be interrupted
            # After the first batch it is known whether all of them fit.
            for some in (order[:1], order[1:]):
                if kept.full:
                    return
                for rows, (images, _) in zip(
                    some, scene_batches(split, view, some, None, context.workers), strict=True
                ):
                    kept.look(as_batch(images.to(device), view), torch.as_tensor(rows))
                    if context.on_progress is not None and not kept.full:
                        context.on_progress("encoding glances", rows[-1] + 1, len(split))


LEAST_FOR_WEIGHTS = 30
"""With fewer held-out images the weights of summed answers stay as they are."""


def weigh_looks(context: TrainingContext) -> None:
    """Fit the weights of a summed classifier to the validation images; other classifiers are left as they are.

    The weights minimise the cross-entropy after every sequence of one or two focus looks, at the places that the policy aims at.
    """
    net, split = context.net, context.data.val
    if not isinstance(net.classifier, SummedClassifier) or net.settings.looks < 2 or len(split) < LEAST_FOR_WEIGHTS:
        return
    net.eval()
    candidates, view, device = range(len(net.candidates)), net.settings.view, context.accelerator.device
    answers: list[list[Tensor]] = [[] for _ in range(len(candidates) + 1)]
    labels = []
    with torch.inference_mode(), interruptible():
        order = in_order(len(split), WEIGHING_BATCH)
        for images, truth in scene_batches(split, view, order, None, context.workers):
            glance = net.glance(as_batch(images.to(device), view))
            looks = [*(net.focus(glance, net.policy.aim(glance, each)) for each in candidates), glance]
            for own, look in zip(answers, looks, strict=True):
                own.append(net.own_answer(look).float().cpu())
            labels.append(truth)
    weight = fitted_weights([torch.cat(own) for own in answers], torch.cat(labels), two=net.settings.looks > 2)
    net.classifier.weight.copy_(weight.to(device))


WEIGHING_BATCH = 24


def fitted_weights(answers: list[Tensor], labels: Tensor, *, two: bool) -> Tensor:
    """(K + 1,) the weights of answers (N, classes) of each candidate and, last, of the glance.

    two  also fit the sums of two focus looks
    """
    first = torch.tensor([1.0] * (len(answers) - 1) + [GLANCE_WEIGHT])
    candidates = range(len(answers) - 1)
    sums = [[each] for each in candidates]
    if two:
        sums += [[one, other] for one, other in itertools.combinations(candidates, 2)]
    log_weight = first.log().requires_grad_()
    optimizer = torch.optim.LBFGS([log_weight], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        weight = log_weight.exp()
        after = [sum((weight[each] * answers[each] for each in looks), weight[-1] * answers[-1]) for looks in sums]
        mean = torch.stack([F.cross_entropy(logits, labels) for logits in after]).mean()
        # As if one more image spoke for the weights that we start with: few images cannot move them far.
        total = mean + (log_weight - first.log()).square().sum() / len(labels)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    with torch.enable_grad(), torch.inference_mode(False):
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    found = log_weight.detach().exp()
    return found if bool(found.isfinite().all()) else first


def is_trained(module: nn.Module) -> bool:
    """Whether some of its weights are being trained."""
    return any(weight.requires_grad for weight in module.parameters())
