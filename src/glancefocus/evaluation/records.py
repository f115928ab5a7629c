"""Look records of a data set: one pass over a split stores every look at every image, for every sequence of candidate views.

A network that zooms has one sequence in each image, see network/steps.py.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import NotRequired, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.augmentation import AugmentSettings
from glancefocus.data.folders import changed_at, size_of
from glancefocus.data.labelled import WHOLE, JoinedSplit, Labelled, TrainingViews, open_labelled, world_settings
from glancefocus.data.lists import medium_of
from glancefocus.data.scene_splits import DrawnScenes
from glancefocus.data.sources import DataSettings, check_files, settings_in_notes
from glancefocus.data.split_record import CHOOSING, SplitRecord, recorded_files
from glancefocus.data.splits import FileSplit, Row, Split, in_order, scene_batches
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadData
from glancefocus.exits.record import ABOUT_FILE, LookRecord, RecordAbout, writing_record
from glancefocus.exits.table import LookTable
from glancefocus.files import fingerprint
from glancefocus.look import Aim, Look, as_batch
from glancefocus.loop import Entropy, ExitRule, Value, entropy
from glancefocus.network.model import GlanceFocus, ModuleRunner
from glancefocus.network.multi_exit import MultiExit, count_exits
from glancefocus.progress import Progress
from glancefocus.settings import NetworkSettings, ViewSettings
from glancefocus.values import one_line

Columns = dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]


class Recording(TypedDict):
    """How a split is recorded.

    source, name  of the data and of its split, for people
    batch_size    images that are computed together; 64 by default
    workers       processes that read files; by default the main process reads them
    progress      called with (images done, images in all)
    """

    source: str
    name: str
    batch_size: NotRequired[int]
    workers: NotRequired[int]
    progress: NotRequired[Callable[[int, int], None] | None]


def record_looks(bundle: Bundle, split: Split, folder: Path, **how: Unpack[Recording]) -> LookRecord:
    """The look record of a split: read from the folder if it is there for this network and these images, otherwise made."""
    rule, settings = bundle.calibration(), bundle.settings

    def columns(images: Tensor) -> Columns:
        return _columns(list(tree_of_looks(bundle.net, images.to(bundle.device), rule)))

    views = (IN_ORDER,) if settings.zoom else tuple(view.name for view in settings.candidates)
    about = _about(split, how, bundle.fingerprint, settings.looks, views)
    return _in_order(_record(about, split, settings.view, folder, columns, how), settings)


IN_ORDER = "coarse to fine"
"""The name, in a record, of the one sequence of views of a network that zooms."""


def _in_order(record: LookRecord, settings: NetworkSettings) -> LookRecord:
    """The record. Those of networks that zoom once held every sequence of views: of such a one, the sequence in order."""
    order = settings.view_order
    return record if order is None or len(record.about.views) == 1 else record.along(order, IN_ORDER)


def _about(split: Split, how: Recording, network: str, looks: int, views: tuple[str, ...]) -> RecordAbout:
    return RecordAbout(
        network=network,
        data=data_fingerprint(split),
        source=one_line(how["source"], 1000),
        split=how["name"],
        images=len(split),
        looks=looks,
        views=views,
    )


@torch.inference_mode()
def _record(
    about: RecordAbout,
    split: Split,
    view: ViewSettings,
    folder: Path,
    columns: Callable[[Tensor], Columns],
    how: Recording,
) -> LookRecord:
    """The record in the folder, or a new one, with these columns for each batch of images."""
    place = folder / f"{about.split}-{about.network[:8]}-{about.data[:8]}"
    if place.exists():
        record = LookRecord.load(place)
        record.check_made_for(about.network, about.data)
        return record
    order, progress = in_order(len(split), how.get("batch_size", 64)), how.get("progress")
    with writing_record(place, about) as writer:
        for images, labels in scene_batches(split, view, order, None, how.get("workers", 0)):
            writer.add(labels.numpy(), **columns(images))
            if progress is not None:
                progress(writer.done, len(split))
    return LookRecord.load(place)


def tree_of_looks(net: GlanceFocus, images: Tensor, rule: ExitRule) -> Iterator[tuple[Look, Tensor]]:
    """Every look of every sequence of candidate views, each with the critic's value (B,); level by level, computed once each.

    With one candidate view, or in a network that zooms, these are simply all looks, in order.
    """
    if net.runtime is None:
        net = net.computed_by(ModuleRunner(net, whole_views={}))
    level = [rule.calibrated(net.glance(as_batch(images, net.settings.view)))]
    while level:
        following = []
        for look in level:
            last = look.number == net.settings.looks
            aims = [] if last else _next_aims(net, look)
            # The value belongs to the largest patch, which is the only one when there is one size.
            # A policy without a critic expects nothing of further looks.
            known = aims and aims[-1].value is not None
            value = Value().of(look, aims[-1]) if known else torch.ones(look.count, device=look.logits.device)
            yield look, value
            following += [rule.calibrated(net.focus(look, aim)) for aim in aims]
        level = following


def _next_aims(net: GlanceFocus, look: Look) -> list[Aim]:
    """One aim for each view that the next look may have."""
    views = [None] if net.settings.zoom else range(len(net.candidates))
    return [net.policy.aim(look, each) for each in views]


def _columns(looks: list[tuple[Look, Tensor]]) -> Columns:
    columns = {
        "confidence": [look.confidence for look, _ in looks],
        "entropy": [Entropy().of(look, None) for look, _ in looks],
        "value": [value for _, value in looks],
        "answer": [look.logits.argmax(dim=1) for look, _ in looks],
    }
    return {name: torch.stack(values, dim=1).cpu().numpy() for name, values in columns.items()}


def data_fingerprint(split: Split) -> str:
    """Fingerprint of the images and labels of a split: names, sizes and times of files, or a sample of the pixels in memory."""
    if isinstance(split, JoinedSplit):
        return fingerprint(split.labels, *map(data_fingerprint, split.parts))
    if isinstance(split, TrainingViews):
        return fingerprint([len(split), split.seed, asdict(split.augment)], data_fingerprint(split.split))
    if isinstance(split, DrawnScenes):
        return fingerprint(split.labels, split.description)
    files = getattr(split, "files", None)
    if files is not None:
        # The time counts because files of some formats, such as BMP, all have the same size.
        stats = ((file.resolve(), size_of(file), changed_at(file)) for file in map(Path, files))
        return fingerprint(split.labels, *(f"{file}|{size}|{when}\n" for file, size, when in stats))
    images = getattr(split, "images")  # noqa: B009
    return fingerprint(split.labels, f"{tuple(images.shape)}", images[:: max(1, len(split) // 64)])


class Records:
    """The look records of a data set's splits, made on first use and stored beside the bundle."""

    def __init__(
        self,
        bundle: Bundle,
        source: str,
        folder: Path,
        *,
        workers: int = 0,
        max_bad_files: int = 10,
        progress: Progress | None = None,
        train_images: int | None = None,
    ) -> None:
        """source is a data set, or the folder of one look record; records are stored in folder.

        train_images  the split `train` is this many training images, augmented as in training; None: each once, as in evaluation
        """
        self.train_images = train_images
        self.bundle = bundle
        self.source = source
        self.folder = folder
        self.workers = workers
        self.max_bad_files = max_bad_files
        self.progress = progress

    @functools.cached_property
    def labelled(self) -> Labelled:
        """The data, with the bundle's class indexes as labels; training images are only in the split `train`."""
        network = self.bundle.settings
        settings = world_settings(self.source, self._trained_on, network.view, network.frames)
        return open_labelled(
            replace(settings, max_bad_files=self.max_bad_files),
            network.view,
            self.bundle.classes,
            self.progress,
            frames=network.frames,
            record=self.bundle.split,
        )

    @functools.cached_property
    def _trained_on(self) -> DataSettings | None:
        return settings_in_notes(self.bundle.notes)

    @property
    def bad_files(self) -> list[str]:
        """What is wrong with each file that was skipped."""
        return [] if self.made_before is not None else self.labelled.bad_files

    @property
    def splits(self) -> dict[str, Split]:
        """{name: split} of the data."""
        return self.labelled.splits

    def split(self, name: str) -> Split:
        """One split, or all images."""
        if name == "train" and self.train_images is not None:
            trained_on = self._trained_on
            # A network of the paper's authors has no settings of training; its crops are resized as in evaluation.
            as_released = AugmentSettings(crop_resize=self.bundle.settings.view.interpolation)
            augment = as_released if trained_on is None else trained_on.augment
            return TrainingViews(self.splits[name], self.train_images, augment)
        return self.labelled.whole if name == WHOLE else self.splits[name]

    @functools.cached_property
    def made_before(self) -> LookRecord | None:
        """The look record, if the source is one instead of a data set."""
        if not (Path(self.source) / ABOUT_FILE).is_file():
            return None
        record = LookRecord.load(Path(self.source))
        record.check_made_for(self.bundle.fingerprint)
        return _in_order(record, self.bundle.settings)

    @property
    def names(self) -> list[str]:
        """The names of the splits."""
        return list(self.splits) if self.made_before is None else [self.made_before.about.split]

    def first_of(self, *wanted: str) -> str | None:
        """The first of these splits that exists."""
        return next((name for name in wanted if name in self.names), None)

    def of(self, name: str) -> LookRecord:
        """The record of a split."""
        if self.made_before is not None:
            return self.made_before
        progress = self.progress
        return record_looks(
            self.bundle,
            self.split(name),
            self.folder,
            source=self.source,
            name=name,
            workers=self.workers,
            progress=None if progress is None else functools.partial(progress, f"looking at {name}"),
        )

    def to_measure(self, split: str | None = None) -> str:
        """The split to measure on: the given one; otherwise test, val, or all images that did not train the network."""
        if split is None:
            name = self.first_of("test", "val", WHOLE)
            if name is None and self.made_before is None and self.labelled.trained:
                raise BadData(
                    f"all {self.labelled.trained} {self._noun} in {self.source} were used to train this network: none is left to "
                    f"measure it on. Give other {self._noun}, or measure on the training {self._noun} with --split train."
                )
            name = name or self.first_of("train")
        else:
            name = WHOLE if split == WHOLE and self.made_before is None else self.first_of(split)
        if name is None:
            raise BadData(f"{self.source} has no split {split!r}, only {', '.join(self.names)}.")
        return name

    def remarks(self, name: str) -> list[str]:
        """Remarks for the report: whether training images are among those measured, or were left out."""
        if self.made_before is not None:
            return [_TRAINED.format(f"the {self._noun} of this look record")] if name == "train" else []
        remarks, known, noun = list(self.labelled.remarks), self._known_trained(name), self._noun
        count = len(self.splits[name]) if name in self.splits else len(self.split(name))
        if known:
            which = f"these {known} {noun}" if known == count else f"{known} of these {count} {noun}"
            remarks.append(_TRAINED.format(which))
        elif self.labelled.moved and name != "train":
            new = f" {self.labelled.new} {noun} are new since training." if self.labelled.new else ""
            remarks.append(
                f"{self.labelled.moved} of {len(self.labelled.whole)} {noun} in {self.source} were used to train this network "
                f"and are left out.{new}"
            )
        elif self._trained_on is not None and self.source not in WORLDS and not self._knows_training:
            remarks.append(
                f"this bundle does not record which {noun} it was trained on. Some of these may be among them, which would make "
                "the measured accuracy too high. Train again to have them recorded."
            )
        return remarks

    @property
    def _knows_training(self) -> bool:
        return self.bundle.split is not None and self.bundle.split.knows_training

    def _known_trained(self, name: str) -> int:
        """How many images of a split are known to be training images."""
        if self.source in WORLDS:
            same = self._trained_on is not None and self._trained_on.source == self.source
            return len(self.splits["train"]) if same and name in ("train", WHOLE) else 0
        return self.labelled.trained if name in ("train", WHOLE) else 0

    @property
    def _noun(self) -> str:
        return "images" if self.bundle.settings.frames == 1 else "clips"

    def chose(self, name: str) -> bool:
        """Whether the bundle's thresholds were chosen on any image of this split."""
        thresholds_data = self.bundle.notes.get("thresholds_data")
        if self.made_before is not None:
            return bool(self.made_before.about.data == thresholds_data)
        split, record = self.split(name), self.bundle.split
        if isinstance(split, FileSplit) and record is not None:
            used_as = (record.split_of(self.labelled.contents.get(file)) for file in split.files)
            if any(name is not None and name in record.chosen_by for name in used_as):
                return True
        parts = split.parts if isinstance(split, JoinedSplit) else [split]
        return thresholds_data is not None and any(data_fingerprint(part) == thresholds_data for part in parts)

    def remember_choosing(self, name: str) -> None:
        """Record in the bundle that its thresholds were chosen on the images of this split."""
        split = None if self.made_before is not None else self.split(name)
        if not isinstance(split, FileSplit):
            return
        record = self.bundle.split
        if record is None:
            record = SplitRecord.of(self.source, self.bundle.classes, [], val_share=None, seed=0)
        contents = self.labelled.contents
        used_as = {file: record.split_of(contents.get(file)) for file in split.files}
        others: list[Row] = [
            (CHOOSING, file, label)
            for file, label in zip(split.files, split.labels.tolist(), strict=True)
            if used_as[file] in (None, CHOOSING)
        ]
        added = []
        if others:
            medium, all_bad = medium_of(self.bundle.settings.frames), len(others)
            hashed = check_files(
                others, medium, read=False, hashed=lambda size: True, max_bad_files=all_bad, progress=self.progress
            )
            hashes = [content for content in hashed.contents if content is not None]
            added = recorded_files(hashed.rows, hashes, Path(self.source))
        chosen_by = sorted({split for split in used_as.values() if split is not None and split != CHOOSING})
        self.bundle.split = record.with_choosing([*chosen_by, *([CHOOSING] if added else [])], added)


_TRAINED = "{} were used to train this network; accuracy on new ones will be lower."


def looks_folder(bundle_folder: Path) -> Path:
    """Where the look records of a bundle are stored: beside it."""
    return bundle_folder.absolute().with_name(f"{bundle_folder.absolute().name}-looks")


@torch.inference_mode()
def record_exits(
    net: MultiExit, split: Split, view: ViewSettings, folder: Path, **how: Unpack[Recording]
) -> LookRecord:
    """The record of a network with several exits, which sees whole images at full resolution; read or made as in record_looks.

    An exit is recorded like a look, so that solvers and curves work alike.
    """
    net.eval()
    device = next(net.parameters()).device

    def columns(images: Tensor) -> Columns:
        answers = torch.stack([a.float().cpu() for a in net(as_batch(images.to(device), view).whole)], dim=1)
        confidence, answer = answers.softmax(dim=2).max(dim=2)
        most = torch.log(torch.tensor(float(answers.shape[2])))
        spread = entropy(answers.flatten(0, 1)).reshape(answers.shape[:2]) / most
        values = {
            "confidence": confidence,
            "entropy": 1 - spread,
            "value": torch.ones_like(confidence),
            "answer": answer,
        }
        return {name: column.numpy() for name, column in values.items()}

    tensors = [value for named in sorted(net.state_dict().items()) for value in named]
    network = fingerprint([repr(net), view.height_px, view.width_px], *tensors)
    about = _about(split, how, network, net.exit_count, (f"whole@{max(view.height_px, view.width_px)}",))
    return _record(about, split, view, folder, columns, how)


def exits_table(net: MultiExit, record: LookRecord, view: ViewSettings, score: str = "confidence") -> LookTable:
    """The look table of a record, with the multiply-adds of each exit."""
    return record.table(count_exits(net, view.height_px, view.width_px), score=score)
