"""The result of a prediction: the answer for every image, the number of looks it took, where they were, and what they cost.

`Costs` are the multiply-adds of each part of a network, which budgets, outcomes and reports share.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glancefocus.errors import BadSetting
from glancefocus.look import Look
from glancefocus.region import Box, Placement, top_left
from glancefocus.settings import View
from glancefocus.values import Answer


@dataclass(frozen=True)
class Costs:
    """Multiply-adds of each part, for one image.

    encoder_macs            the glance encoder on a glance, without its own head
    encoder_with_head_macs  the same with it
    focus_encoder_macs      the focus encoder on each candidate view, in their order: {name of the view: macs}
    policy_macs             the aim after the glance
    classifier_macs         the answer after look 1, 2, ... T
    backbone_macs           the plain backbone, head included, on the whole image
    focus_policy_macs       the aim after each candidate view: {name of the view: macs}; the others cost as after the glance
    view_order              NetworkSettings.view_order; not stored, since it follows from the network
    """

    encoder_macs: int
    encoder_with_head_macs: int
    focus_encoder_macs: dict[str, int]
    policy_macs: int
    classifier_macs: tuple[int, ...]
    backbone_macs: int
    focus_policy_macs: dict[str, int] = field(default_factory=dict)
    view_order: tuple[int, ...] | None = None

    @property
    def looks(self) -> int:
        """Largest number of looks, the glance included."""
        return len(self.classifier_macs)

    @functools.cached_property
    def _focus(self) -> list[tuple[int, int]]:
        """(encoder's, policy's) multiply-adds of each candidate."""
        aims = self.focus_policy_macs
        return [(macs, aims.get(name, self.policy_macs)) for name, macs in self.focus_encoder_macs.items()]

    @property
    def macs_after_look(self) -> tuple[int, ...]:
        """Everything spent when leaving after look 1, 2, ... T; with the views in order, else the last, which is the largest."""
        return self.macs_along(self.view_order or [len(self._focus) - 1] * (self.looks - 1))

    def macs_along(self, candidates: Sequence[int]) -> tuple[int, ...]:
        """Everything spent when leaving after the glance, after a look at the first of these candidates, the second, ..."""
        spent, aim_macs = [self.encoder_macs + self.classifier_macs[0]], self.policy_macs
        for candidate, answer_macs in zip(candidates, self.classifier_macs[1:], strict=False):
            encoder_macs, next_aim_macs = self._focus[candidate]
            spent.append(spent[-1] + aim_macs + encoder_macs + answer_macs)
            aim_macs = next_aim_macs
        return tuple(spent)

    def macs_of(self, candidates: Sequence[int], aims_first: bool = False) -> int:
        """Everything spent when leaving after these looks; aims_first: one more aim, unless it was the last look."""
        spent = self.macs_along(candidates)[-1]
        if aims_first and len(candidates) < self.looks - 1:
            spent += self._focus[candidates[-1]][1] if candidates else self.policy_macs
        return spent

    def macs_of_tree(self, aims_first: bool = False) -> tuple[int, ...]:
        """The same for every sequence of candidates that a look table has, in the order of its nodes."""
        views = [[n] for n in self.view_order] if self.view_order else [[*range(len(self._focus))]] * (self.looks - 1)
        paths = (path for looks in range(self.looks) for path in itertools.product(*views[:looks]))
        return tuple(self.macs_of(path, aims_first) for path in paths)

    def spent(self, looks: Tensor, candidate: Tensor, aims_first: bool = False) -> Tensor:
        """What each image cost, (N,) float64.

        looks       (N,) number of looks taken
        candidate   (N, at most T - 1) candidate view of each focus look; those beyond `looks` do not count
        aims_first  the score needs the next aim, so images that left before the last look had paid for it already
        """
        looks, candidate = looks.cpu(), candidate.cpu()
        # A first column of -1, so that there is always something to compare rows by.
        candidate = torch.cat([torch.full_like(looks, -1)[:, None], candidate], dim=1)
        taken = torch.where(torch.arange(1, candidate.shape[1] + 1) <= looks[:, None], candidate, -1)
        paths, which = torch.unique(taken, dim=0, return_inverse=True)
        if paths.numel() and int(paths.max()) >= len(self._focus):
            known = list(self.focus_encoder_macs)
            raise BadSetting(f"the table of costs has no candidate view {int(paths.max())}, only {known}.")
        spent = [self.macs_of([each for each in path if each >= 0], aims_first) for path in paths.tolist()]
        return torch.tensor(spent, dtype=torch.float64)[which]

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for JSON; `read_costs` in bundle/files.py reads them."""
        lists = {"classifier_macs": list(self.classifier_macs), "macs_after_look": list(self.macs_after_look)}
        return {name: value for name, value in {**asdict(self), **lists}.items() if name != "view_order"}


@dataclass(frozen=True)
class Outcome:
    """The result for N images, one row for each; T is the largest number of looks.

    answer      (N,) index of the class
    confidence  (N,) softmax probability of that class
    looks       (N,) number of looks taken, the glance included
    sure        (N,) True: the image stopped because its score was above its threshold, see thresholds. False: it had no looks or
                no time left. This does not mean that the score is high: a threshold may be below one half.
    logits      (N, classes) at the last look taken
    where       (N, T - 1, 2) as (y, x) in [0, 1]; NaN for looks that were not taken. A view of the whole image has no place:
                use `boxes`
    candidate   (N, T - 1) number of the candidate view of each focus look; -1 for looks that were not taken
    answer_after, confidence_after  (N, T) after each look; -1 and NaN for looks that were not taken
    classes     a name for each class; None if the classes have no names
    costs       multiply-adds of every part; None if unknown
    aims_first  the policy aimed before the image could stop, and this cost is counted
    thresholds  the score had to be above this to stop after each look; None if unknown
    score       the score that is compared with them: confidence, entropy, ...
    notes       what is unusual about each image, such as "upscaled from 20x9 px"; empty: nothing for any image
    problems    why a part of an image could not be read, so that its answer is worth nothing; empty texts: no problem
    placements  where each image lies in its picture
    image_px    (N, 2) height and width of each image; None if unknown
    views       the candidate views of the network; empty if unknown
    first_where (N, 2) where the first look was; NaN for a glance, which sees the whole image; None if unknown
    first_view  what the first look saw, but for its place; None if unknown
    logits_after  (N, T, classes), NaN for looks that were not taken; None once batches were joined, to save memory
    """

    answer: Tensor
    confidence: Tensor
    looks: Tensor
    sure: Tensor
    logits: Tensor
    where: Tensor
    candidate: Tensor
    answer_after: Tensor
    confidence_after: Tensor
    classes: tuple[str, ...] | None = None
    costs: Costs | None = None
    aims_first: bool = False
    thresholds: tuple[float, ...] | None = None
    score: str = "confidence"
    notes: tuple[tuple[str, ...], ...] = ()
    problems: tuple[str, ...] = ()
    placements: tuple[Placement, ...] = ()
    image_px: Tensor | None = None
    views: tuple[View, ...] = ()
    first_where: Tensor | None = None
    first_view: View | None = None
    logits_after: Tensor | None = None

    def __len__(self) -> int:
        return int(self.answer.shape[0])

    @property
    def out_of_looks(self) -> Tensor:
        """(N,) True: the score was never above a threshold, until no look, or no time, was left."""
        return ~self.sure

    @property
    def label(self) -> list[str]:
        """The name of each answer; its number if the classes have no names."""
        return [self.name(index) for index in self.answer.tolist()]

    @property
    def cost_macs(self) -> Tensor:
        """(N,) multiply-adds that were computed for each image."""
        if self.costs is None:
            raise ValueError("this outcome was recorded without a table of costs")
        return self.costs.spent(self.looks, self.candidate, self.aims_first)

    @property
    def patch_px(self) -> Tensor:
        """(N, T - 1) side of what the encoder got in each focus look; 0 for looks that were not taken."""
        if not self.views:
            raise ValueError("this outcome was recorded without the candidate views of its network")
        return torch.tensor([*(view.px for view in self.views), 0])[self.candidate]

    @property
    def boxes(self) -> list[list[Box]]:
        """For each image the boxes of its focus looks, in pixels of its picture; see also first_box."""
        if self.image_px is None:
            raise ValueError("this outcome was recorded without the sizes of its images")
        return [self._boxes_of(row) for row in range(len(self))]

    def first_box(self, row: int) -> Box | None:
        """The box of the first look at an image; None for a glance, which sees the whole image."""
        view, where = self.first_view, self.first_where
        return None if view is None or view.is_whole or where is None else self._box(row, view, where[row])

    def _boxes_of(self, row: int) -> list[Box]:
        taken = zip(self.candidate[row].tolist(), self.where[row], strict=True)
        return [self._box(row, self.views[each], where) for each, where in taken if each >= 0]

    def _box(self, row: int, view: View, where: Tensor) -> Box:
        assert self.image_px is not None
        height_px, width_px = self.image_px[row].tolist()
        if view.is_whole:
            return self.placements[row].box_in_picture(0, 0, height_px, width_px)
        px = view.extent_px(height_px, width_px)
        top, left = top_left(where[None], height_px, width_px, px)[0].tolist()
        return self.placements[row].box_in_picture(top, left, px, px)

    def name(self, index: int) -> str:
        """The name of a class; its number if the classes have no names."""
        return str(index) if self.classes is None else self.classes[index]

    def threshold(self, row: int) -> float | None:
        """The threshold that the score of an image was above when it stopped; None if it was out of looks, or it is unknown."""
        if self.thresholds is None or not bool(self.sure[row]):
            return None
        return self.thresholds[int(self.looks[row]) - 1]

    def stopped(self, row: int) -> str:
        """Why an image stopped: "above threshold 0.42", "all stop here" (below all scores), "out of looks" or "out of time"."""
        if not bool(self.sure[row]):
            most = self.where.shape[1] + 1
            return "out of looks" if int(self.looks[row]) == most else "out of time"
        threshold = self.threshold(row)
        if threshold is None:
            return "above its threshold"
        if threshold < 0:  # every score is in [0, 1]
            return "all stop here"
        what = "above threshold" if self.score == "confidence" else f"{self.score} above"
        return f"{what} {threshold:.2f}" if threshold < math.inf else f"{what} {threshold}"

    def top(self, row: int, k: int) -> list[tuple[str, float]]:
        """The k likeliest classes of one image with their probabilities."""
        probabilities, indexes = self.logits[row].float().softmax(dim=0).topk(min(k, self.logits.shape[1]))
        return [(self.name(i), p) for i, p in zip(indexes.tolist(), probabilities.tolist(), strict=True)]

    def answers(self, topk: int) -> list[Answer]:
        """The answer for each image as plain values: what `gf predict --json` prints, and a server sends. `file` is empty.

        A threshold that is not finite becomes None, because JSON has no infinity.
        """
        costs, boxes, patch_px = self.cost_macs.tolist(), self.boxes, self.patch_px
        return [
            {
                "file": "",
                "label": self.name(int(self.answer[row])),
                "confidence": float(self.confidence[row]),
                "looks": taken,
                "sure": bool(self.sure[row]),
                "threshold": self.threshold(row) if math.isfinite(self.threshold(row) or 0.0) else None,
                "where": self.where[row, : taken - 1].tolist(),
                "boxes": [list(box) for box in boxes[row]],
                "patch_px": patch_px[row, : taken - 1].tolist(),
                "views": [self.views[each].name for each in self.candidate[row, : taken - 1].tolist()],
                "cost_macs": int(costs[row]),
                "top": [{"label": name, "confidence": share} for name, share in self.top(row, topk)],
                "notes": list(self.notes[row]) if self.notes else [],
            }
            for row, taken in enumerate(self.looks.tolist())
        ]

    @staticmethod
    def join(parts: Sequence["Outcome"]) -> "Outcome":
        """One outcome of several batches, in their order."""
        joined: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts])
            for name, value in vars(parts[0]).items()
            if isinstance(value, Tensor) and name != "logits_after"
        }
        notes: tuple[tuple[str, ...], ...] = ()
        if any(part.notes for part in parts):
            notes = tuple(itertools.chain.from_iterable(part.notes or ((),) * len(part) for part in parts))
        for name in ("placements", "problems"):
            joined[name] = tuple(itertools.chain.from_iterable(getattr(part, name) for part in parts))
        return replace(parts[0], **joined, notes=notes, logits_after=None)


class OutcomeRecorder:
    """Builds an Outcome while the loop runs. Every glance adds rows; finished rows can be taken from the front.

    During the loop a look is only put into a list. All looks are written into numpy arrays on the CPU later, when the result is
    asked for. Written between two looks at a single image, each row would take several times as long, because a look of the
    network evicts everything from the CPU's caches.
    """

    def __init__(self, looks: int) -> None:
        self.max_looks = looks
        self._looks: list[tuple[Look, Tensor, Tensor]] = []
        self._glances = self._taken = 0
        self._table: dict[str, NDArray[Any]] = {}
        self._device = torch.device("cpu")

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None:
        """Keep a look, the rows that leave after it, and whether they were above their threshold."""
        self._looks.append((look, leaving, sure))

    def finish(self, **more: Any) -> Outcome:
        """The outcome of all rows that were not taken yet."""
        self._write_all()
        return self.take(len(self._table["looks"]), **more)

    def finished(self, count: int) -> bool:
        """Whether the first `count` rows have left."""
        self._write_all()
        return bool((self._table["looks"][:count] > 0).all())

    def take(self, count: int, **more: Any) -> Outcome:
        """The outcome of the first `count` rows, which are removed from the recorder."""
        self._write_all()
        front = {name: column[:count] for name, column in self._table.items()}
        self._drop_front(count)
        return self._outcome(front, **more)

    def take_rows(self, rows: Sequence[int], **more: Any) -> Outcome:
        """The outcome of these rows, which have left, in this order; rows may be taken in any order, each once."""
        self._write_all()
        places = np.asarray(rows) - self._taken
        taken = {name: column[places] for name, column in self._table.items()}
        self._table["looks"][places] = -1  # taken
        kept = (self._table["looks"] >= 0).nonzero()[0]
        self._drop_front(int(kept[0]) if len(kept) else len(self._table["looks"]))
        return self._outcome(taken, **more)

    def _drop_front(self, count: int) -> None:
        self._table = {name: column[count:] for name, column in self._table.items()}
        self._taken += count

    def _outcome(self, front: dict[str, NDArray[Any]], **more: Any) -> Outcome:
        each, last = np.arange(len(front["looks"])), front["looks"] - 1
        columns = {
            "answer": front["answer"][each, last],
            "confidence": front["confidence"][each, last],
            "answer_after": front["answer"],
            "confidence_after": front["confidence"],
            "logits": front["logits_after"][each, last],
            **{name: front[name] for name in ("looks", "sure", "where", "candidate", "first_where", "logits_after")},
        }
        tensors: dict[str, Any] = {name: torch.from_numpy(a).to(self._device) for name, a in columns.items()}
        return Outcome(**tensors, **more)

    def _write_all(self) -> None:
        looks, self._looks = self._looks, []
        for one in looks:
            self._write(*one)

    def _write(self, look: Look, leaving: Tensor, sure: Tensor) -> None:
        logits = _array(look.logits)
        if look.number == 1 and not self._knows(look):
            self._device = look.logits.device
            self._add_rows(logits)
        table, index = self._table, look.number - 1
        # After a single glance the rows are in order, and a slice is faster than an index of rows.
        all_rows = self._glances == 1 and len(logits) == len(table["looks"])
        rows: Any = slice(None) if all_rows else _array(look.rows) - self._taken
        confidence, answer = look.best
        table["answer"][rows, index] = _array(answer)
        table["confidence"][rows, index] = _array(confidence)
        table["logits_after"][rows, index] = logits
        if look.number == 1 and look.aim is not None:
            table["first_where"][rows] = _array(look.aim.where)
        elif look.where is not None:
            table["where"][rows, index - 1] = _array(look.where)
            candidate = look.candidate
            table["candidate"][rows, index - 1] = _array(candidate) if isinstance(candidate, Tensor) else candidate
        left, was_sure = _array(leaving), _array(sure)
        if left.any():
            if not left.all():
                rows, was_sure = _array(look.rows)[left] - self._taken, was_sure[left]
            table["sure"][rows], table["looks"][rows] = was_sure, look.number

    def _knows(self, look: Look) -> bool:
        """Whether a glance was recorded before: its rows then waited, and leave now because time is up."""
        return bool(self._table) and int(look.rows[-1]) - self._taken < len(self._table["looks"])

    def _add_rows(self, logits: NDArray[Any]) -> None:
        self._glances += 1
        count, most = len(logits), self.max_looks
        fresh = {
            "answer": np.full((count, most), -1),
            "confidence": np.full((count, most), np.nan, np.float32),
            "where": np.full((count, most - 1, 2), np.nan, np.float32),
            "candidate": np.full((count, most - 1), -1, np.int64),
            "first_where": np.full((count, 2), np.nan, np.float32),
            "logits_after": np.full((count, most, logits.shape[1]), np.nan, logits.dtype),
            "sure": np.zeros(count, np.bool_),
            "looks": np.zeros(count, np.int64),
        }
        old = self._table
        self._table = {name: np.concatenate([old[name], column]) for name, column in fresh.items()} if old else fresh


def _array(tensor: Tensor) -> NDArray[Any]:
    """A tensor of any device as an array; numpy has no bfloat16."""
    array: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)
    return array
