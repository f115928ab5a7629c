"""First looks that need no glance: what a frozen glance encoder makes of images that do not change is encoded once and kept.

What is kept follows from the weights and the images alone, never from the order in which training asks for it: all images are
encoded in their order, in batches of one size, before the first is needed. So it is no part of a checkpoint, and a resumed
run sees the same numbers as one that was never killed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from glancefocus.data.splits import Split, in_order, scene_batches
from glancefocus.interrupts import let_through
from glancefocus.look import Look
from glancefocus.loop import KnownGlance, LookingNetwork
from glancefocus.network.encoder import Encoding
from glancefocus.network.model import GlanceFocus
from glancefocus.scene import Scene, as_batch
from glancefocus.training.stage import Workshop


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
