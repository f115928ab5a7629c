"""The loop around the graphs of an exported network: what adaptive.py does, in numpy."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from glancefocus.export.standalone.answers import answer
from glancefocus.export.standalone.stopping import cost_macs
from glancefocus.export.standalone.views import Array, Seen, shrink


class RunGraph(Protocol):
    """Who computes a graph: its outputs, in order."""

    def __call__(self, graph: str, *inputs: Array) -> list[Array]: ...


@dataclass
class Row:
    """One picture while it is being looked at.

    px       side of what the last look saw
    next_px  side of the patch that is aimed
    places   (y, x) in [0, 1] of every patch so far, as the policy aimed it
    patches  (top, left, px) of the same in the image that is looked at
    scores   its score after every look
    sure     whether it stopped because the last of them was above the threshold
    threshold  what its last score was compared with
    answers  its logits after every look
    """

    seen: Seen
    px: int
    memory: Array
    map: Array
    logits: Array
    policy_memory: Array
    next_px: int
    where: Array | None = None
    value: float = 0.0
    sure: bool = False
    threshold: float = math.inf
    places: list[Array] = field(default_factory=list)
    patches: list[tuple[int, int, int]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    answers: list[Array] = field(default_factory=list)

    @property
    def looks(self) -> int:
        return len(self.scores)


class Looker:
    """An exported network.

    about   what glancefocus.json says
    graphs  who computes its graphs
    """

    def __init__(self, about: dict[str, Any], graphs: RunGraph) -> None:
        self.about = about
        self.graphs = graphs
        self.names = {graph["name"] for graph in about["graphs"]}
        self.sizes: list[int] = about["patch_px"]
        self.by_value = about["score"] == "value"

    def look(self, images: Sequence[Seen], thresholds: Sequence[Any] | None = None) -> list[Row]:
        """Look at every image until its score is above a threshold; without thresholds every look is taken, with patches of the
        largest size."""
        looks = self.about["looks"] if thresholds is None else len(thresholds)
        rows = looking = self._glance(images)
        for number in range(1, looks + 1):
            self._judge(looking, math.inf if thresholds is None else thresholds[number - 1], last=number == looks)
            looking = [row for row in looking if not row.sure]
            if number == looks or not looking:
                break
            if not self.by_value:
                self._aim(looking)
            self._focus(looking, number + 1)
        return rows

    def _glance(self, images: Sequence[Seen]) -> list[Row]:
        px, nothing = self.about["glance_px"], np.zeros(self.about["policy_units"], dtype=np.float32)
        small = [[shrink(frame, px, self.about["glance_resize"]) for frame in seen.frames] for seen in images]
        outputs = self._run("glance", [(self._normalised(frames),) for frames in small])
        return [
            Row(seen, px, memory, map_, logits, nothing, self.sizes[-1])
            for seen, (logits, memory, map_) in zip(images, outputs, strict=True)
        ]

    def _judge(self, rows: list[Row], threshold: Any, last: bool) -> None:
        """Say of every row what its score is, whether that is enough to stop, and else what size the next patch has."""
        if self.by_value and not last:
            self._aim(rows)  # what the critic expects is known only then
        limits = np.array(threshold if isinstance(threshold, list) else [threshold], dtype=np.float32)
        for row in rows:
            if self.about["temperatures"] is not None:
                row.logits = row.logits / np.float32(self.about["temperatures"][row.looks])
            score = np.float32(1 / (1 + math.exp(row.value))) if self.by_value else self.score(row.logits)
            row.scores.append(float(score))
            row.answers.append(row.logits)
            row.threshold = max(threshold) if isinstance(threshold, list) else threshold
            row.sure = bool(score > limits.max()) and not (last and (limits.max() <= 0 or self.by_value))
            if len(limits) > 1 and not row.sure and not last:
                # The smallest threshold that the score is not above; of equal ones the first.
                row.next_px = self.sizes[min((limit, i) for i, limit in enumerate(limits) if score <= limit)[1]]

    def score(self, logits: Array) -> np.float32:
        """The score of an answer, in [0, 1]: its largest probability, or 1 less its entropy as a share of the largest."""
        probabilities = softmax(logits)
        if self.about["score"] == "entropy":
            logs = np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))
            return np.float32(1 + (probabilities * logs).sum() / math.log(len(probabilities)))
        return np.float32(probabilities.max())

    def _aim(self, rows: list[Row]) -> None:
        """Say of every row where to look next."""
        for px, group in _by(rows, lambda row: row.px):
            inputs = [(row.map, row.policy_memory, *_code(row.next_px, self.sizes)) for row in group]
            for row, (where, memory, value) in zip(group, self._run(f"aim_{px}", inputs), strict=True):
                row.where, row.policy_memory, row.value = where, memory, float(value)

    def _focus(self, rows: list[Row], number: int) -> None:
        """The next look of every row: one patch at full resolution, where it was aimed."""
        for px, group in _by(rows, lambda row: row.next_px):
            patches = [self._patch(row, px) for row in group]
            graph = f"focus_{px}" if f"focus_{px}" in self.names else "focus"
            if self.about["classifier"] == "recurrent":
                inputs = [(patch, row.memory) for patch, row in zip(patches, group, strict=True)]
                for row, (logits, memory, map_) in zip(group, self._run(graph, inputs), strict=True):
                    row.logits, row.memory, row.map, row.px = logits, memory, map_, px
                continue
            for row, (vector, map_) in zip(group, self._run(graph, [(patch,) for patch in patches]), strict=True):
                row.memory, row.map, row.px = np.concatenate([row.memory, vector]), map_, px
            answers = self._run(f"answer_{number}", [(row.memory,) for row in group])
            for row, (logits,) in zip(group, answers, strict=True):
                row.logits = logits

    def _patch(self, row: Row, px: int) -> Array:
        assert row.where is not None
        height, width = row.seen.frames[0].shape[:2]
        room = np.array([height - px, width - px], dtype=np.float32)
        top, left = np.floor(row.where.clip(0, 1) * room).astype(int).tolist()
        row.places.append(row.where)
        row.patches.append((top, left, px))
        return self._normalised([frame[top : top + px, left : left + px] for frame in row.seen.frames])

    def _normalised(self, frames: list[Array]) -> Array:
        """(3, px, px), or (frames, 3, px, px) of a clip, as the network expects it; frames (px, px, 3) in 0..255."""
        mean, std = (np.array(self.about["view"][name], dtype=np.float32) for name in ("mean", "std"))
        done = [((frame.astype(np.float32) / 255 - mean) / std).transpose(2, 0, 1) for frame in frames]
        return np.ascontiguousarray(done[0] if self.about["frames"] == 1 else np.stack(done))

    def _run(self, graph: str, inputs: Sequence[tuple[Array, ...]]) -> list[list[Array]]:
        """The outputs of each row; all rows at once, or as many as the graphs take."""
        size = self.about["batch"] or len(inputs)
        done: list[list[Array]] = []
        for start in range(0, len(inputs), size):
            columns = zip(*inputs[start : start + size], strict=True)
            outputs = self.graphs(graph, *(np.stack(column) for column in columns))
            done += [list(row) for row in zip(*outputs, strict=True)]
        return done

    def answer(self, file: str, row: Row, topk: int = 1) -> dict[str, Any]:
        """What is said of a picture."""
        probabilities, classes = softmax(row.logits), self.about["classes"]
        best = np.argsort(-probabilities, kind="stable")[:topk].tolist()
        return answer(
            file,
            label=classes[best[0]],
            confidence=float(probabilities[best[0]]),
            looks=row.looks,
            sure=row.sure,
            threshold=row.threshold if row.sure else None,
            where=[[float(share) for share in place] for place in row.places],
            boxes=[row.seen.to_box(*patch) for patch in row.patches],
            patch_px=[px for _, _, px in row.patches],
            cost_macs=cost_macs(self.about, [px for _, _, px in row.patches]),
            top=[(classes[index], float(probabilities[index])) for index in best],
            notes=row.seen.notes,
        )


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max())
    probabilities: Array = powers / powers.sum()
    return probabilities


def _by(rows: list[Row], key: Callable[[Row], int]) -> list[tuple[int, list[Row]]]:
    return [(value, [row for row in rows if key(row) == value]) for value in sorted({key(row) for row in rows})]


def _code(px: int, sizes: list[int]) -> tuple[Array, ...]:
    """Which size the next patch has, one-hot; nothing where there is only one."""
    return () if len(sizes) == 1 else (np.array([float(px == size) for size in sizes], dtype=np.float32),)
