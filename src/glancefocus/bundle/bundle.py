"""A bundle: one folder with everything that prediction needs: settings, weights, classes, costs, thresholds, and a model card."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

import glancefocus
from glancefocus.bundle import files, predicting
from glancefocus.bundle.predicting import Viewed
from glancefocus.bundle.sharing import hub_name, local_folder, model_card, publish
from glancefocus.data.images import Picture
from glancefocus.data.labelled import imagenet_classes
from glancefocus.data.split_record import SplitRecord
from glancefocus.errors import BadBundle, BadCheckpoint, BadSetting
from glancefocus.exits.curve import Latency, Point, best_thresholds
from glancefocus.files import fingerprint, write_text
from glancefocus.loop import ExitRule, every_look, score_named, shared_time
from glancefocus.machine import check_threads, device_name
from glancefocus.network.build import build, load_exactly
from glancefocus.network.checkpoints import load_official
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.outcome import Costs, Outcome
from glancefocus.progress import Progress
from glancefocus.runtime.choose import RuntimeOptions, check_name, open_runtime, set_threads
from glancefocus.settings import NetworkSettings
from glancefocus.stream import FULL_BATCH, refuse_deadline
from glancefocus.values import BatchSize, Milliseconds, checked, to_plain


@dataclass
class Bundle:
    """A trained network, ready to predict.

    net         the network, in whichever runtime it is used
    classes     a name for each class
    costs       multiply-adds of every part, see count_costs
    thresholds  one for each look, used by predict; a list for each look where they also choose among several candidate views. None:
                take every look
    curve       operating points to choose from by budget: {"thresholds": [...], "mean_macs": ..., "accuracy": ...}
    notes       facts for the model card, such as measured accuracies
    score       the score that is compared with the thresholds: confidence, entropy, value or random
    temperatures  one for each look, by which its logits are divided; None: the network was not calibrated
    latencies   milliseconds of the looks on every device that was measured
    split       which files trained the network and which were held out; None if unknown, as for imported checkpoints
    elsewhere   milliseconds from another device, used instead of those measured here; not stored
    """

    net: GlanceFocus
    classes: tuple[str, ...]
    costs: Costs
    thresholds: tuple[Any, ...] | None = None
    curve: list[Point] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    score: str = "confidence"
    temperatures: tuple[float, ...] | None = None
    latencies: list[Latency] = field(default_factory=list)
    split: SplitRecord | None = None
    elsewhere: Latency | None = None

    def __post_init__(self) -> None:
        settings = self.net.settings
        if len(self.classes) != settings.classes:
            raise BadBundle(
                f"the network answers with {settings.classes} classes, but {len(self.classes)} names were given."
            )
        if self.thresholds is not None and len(self.thresholds) != settings.looks:
            raise BadBundle(
                f"there must be {settings.looks} thresholds, one for each look, not {len(self.thresholds)}."
            )
        counted = self.costs.looks, tuple(self.costs.focus_encoder_macs), self.costs.view_order
        if counted != (settings.looks, settings.focus, settings.view_order):
            raise BadBundle("the table of costs was counted for another network than this one.")
        for latency in self.latencies:
            if [len(row) for row in latency.focus_ms] != [settings.view_choices] * (settings.looks - 1):
                raise BadBundle(f"the milliseconds measured on {latency.device} are those of another network.")
        try:
            score_named(self.score)
            self.exit_rule()
        except BadSetting as error:
            raise BadBundle(f"the bundle's thresholds, score or temperatures do not fit its network: {error}") from None
        self.net.eval()

    @property
    def network(self) -> GlanceFocus:
        """Another name of `net`."""
        return self.net

    @property
    def settings(self) -> NetworkSettings:
        """The settings of the network: sizes, looks, view."""
        return self.net.settings

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.net.parameters()).device

    def to(self, device: str | torch.device) -> "Bundle":
        """This bundle on another device."""
        if self.runtime is not None and torch.device(device).type != self.device.type:
            raise BadSetting(
                f"the runtime {self.runtime!r} was opened on the {self.device.type}. "
                f"Load the bundle with device={str(device)!r} and the runtime together."
            )
        self.net.to(device)
        return self

    def use(
        self, runtime: str, *, threads: int | None = None, batch: int | None = None, light_weights: bool = False
    ) -> "Bundle":
        """Predict with another runtime from now on, see open_runtime; the answers stay the same, except with light weights.

        runtime        eager, compile, onnx, openvino, plain; auto: the fastest one here for batches of `batch` images
        light_weights  onnx: int8 weights in memory-bound layers, faster for single images and small batches; they are rounded,
                       so a few answers may differ
        """
        options = RuntimeOptions(light_weights=light_weights)
        self.net = open_runtime(self.net, runtime, threads=threads, batch=batch, options=options)
        return self

    @property
    def runtime(self) -> str | None:
        """The runtime that computes the network; None: its own modules."""
        return self.net.runtime

    @property
    def fingerprint(self) -> str:
        """Hash of everything that answers depend on: weights, settings, temperatures, and light weights if they are used."""
        light = [self.runtime] if self.net.light_weights else []
        tensors = [value for named in sorted(self._tensors().items()) for value in named]
        return fingerprint([self.settings.to_hash(), self.temperatures, *light], *tensors)

    def calibration(self) -> ExitRule:
        """The rule that takes every look and divides the logits by the bundle's temperatures."""
        return replace(every_look(self.settings.looks), temperatures=self.temperatures)

    def exit_rule(
        self,
        *,
        thresholds: Sequence[Any] | None = None,
        looks: int | None = None,
        budget_macs: float | None = None,
        budget_ms: float | None = None,
    ) -> ExitRule:
        """The rule by which predict stops; give one of these, or none to use the bundle's own thresholds.

        thresholds   one for each look, or for each look but the last: an image stops when its score is above
        looks        take exactly this many looks
        budget_macs  mean multiply-adds of an image; the thresholds come from the bundle's curve
        budget_ms    the same in milliseconds, which must have been measured on this device
        """
        return predicting.exit_rule(
            self, thresholds=thresholds, looks=looks, budget_macs=budget_macs, budget_ms=budget_ms
        )

    def latency_here(self) -> Latency | None:
        """The milliseconds measured on this device, in this runtime, and threads, or `elsewhere`; None: not measured."""
        if self.elsewhere is not None:
            return self.elsewhere
        here = device_name(self.device), torch.get_num_threads(), self.runtime
        own = [latency for latency in self.latencies if (latency.device, latency.threads, latency.runtime) == here]
        return own[-1] if own else None

    def predict(
        self,
        pictures: Picture | Viewed | Sequence[Picture | Viewed],
        *,
        thresholds: Sequence[Any] | None = None,
        looks: int | None = None,
        budget_macs: float | None = None,
        budget_ms: float | None = None,
        deadline_ms: float | None = None,
        batch_size: int = 32,
        merge: bool | None = None,
    ) -> Outcome:
        """Classify pictures or clips.

        pictures  files, bytes, PIL pictures, arrays (height, width, 3) of uint8, tensors (3, height, width) of uint8 or of floats
                  in [0, 1]; one or several, of any sizes. A tensor (B, 3, height, width) is B pictures. A network for clips takes
                  video files, folders of frames, bytes, and arrays and tensors with one more dimension in front, the frames. A
                  picture that is smaller than a patch is upscaled, and outcome.notes reports it.
        thresholds, looks, budget_macs, budget_ms  when to stop, see exit_rule
        deadline_ms  for all pictures together, from now: when time is up, they get the best answers so far; every picture gets
                     its glance
        merge        pool the undecided pictures of several batches; the answers are the same. None: if there are several batches,
                     no deadline, and thresholds by which pictures can stop early
        """
        started = time.perf_counter()
        if merge:
            refuse_deadline(deadline_ms)
        rule = self.exit_rule(thresholds=thresholds, looks=looks, budget_macs=budget_macs, budget_ms=budget_ms)
        batch_size = checked(BatchSize, batch_size, "batch_size")
        sources = predicting.listed(pictures, self.settings.frames)
        viewed = predicting.in_order(sources, self.view)
        if deadline_ms is not None:
            ends_at = started + checked(Milliseconds, deadline_ms, "deadline_ms") / 1000
            batches = predicting.cut(list(viewed), batch_size)  # all are read first, then they share the time
            shares = shared_time(ends_at, len(batches))
            return predicting.joined(predicting.run_apart(self, batches, rule, shares))
        if merge is None:
            merge = len(sources) > batch_size and rule.can_stop_early
        # Batches are limited by free memory, too, but to find out how much is free takes time; one picture is one batch.
        small = predicting.in_batches(viewed, batch_size) if len(sources) > 1 else ([one] for one in viewed)
        return predicting.joined(
            predicting.run_pooled(self, small, rule, batch_size) if merge else predicting.run_apart(self, small, rule)
        )

    def predict_stream(
        self,
        pictures: Iterable[Picture | Viewed | None],
        *,
        batch_size: int = 8,
        full_batch: int = FULL_BATCH,
        wait_ms: float | None = None,
        deadline_ms: float | None = None,
        merge: bool | None = None,
        **stopping: Any,
    ) -> Iterator[Outcome]:
        """Classify a stream of pictures: yields an outcome for every batch, in their order. Memory stays bounded.

        pictures    as for predict, one after the other. None: no picture has arrived yet, so do not wait until a batch is full.
                    To skip unreadable files, read each with view, which raises BadImage, and pass on what it returns.
        batch_size  pictures glanced at together; fewer if they are large
        full_batch, wait_ms  see stream.look_at_stream
        deadline_ms  for each batch: when time is up, its pictures get the best answers so far
        merge       pool the undecided pictures of several batches; the answers are the same. None: if there is no deadline
        stopping    thresholds, looks, budget_macs or budget_ms, see exit_rule
        """
        if merge:
            refuse_deadline(deadline_ms)
        rule = self.exit_rule(**stopping)
        viewed = map(partial(predicting.arrived, self.view), pictures)  # a generator would keep the last one in memory
        batches = predicting.in_batches(viewed, checked(BatchSize, batch_size, "batch_size"))
        if deadline_ms is not None:
            seconds = checked(Milliseconds, deadline_ms, "deadline_ms") / 1000
            return predicting.run_apart(self, batches, rule, lambda: time.perf_counter() + seconds)
        if merge is False:
            return predicting.run_apart(self, batches, rule)
        return predicting.run_pooled(self, batches, rule, full_batch, wait_ms)

    def predict_images(self, images: Sequence[Tensor], rule: ExitRule, batch_size: int = 32) -> Outcome:
        """As predict, for images that are resized and normalised already; rule: see exit_rule."""
        batches = predicting.cut([Viewed(image) for image in images], checked(BatchSize, batch_size, "batch_size"))
        return predicting.joined(predicting.run_apart(self, batches, rule))

    def view(
        self,
        picture: Picture,
        *,
        max_pixels: int | None = None,
        keep_pictures: bool = False,
        progress: Progress | None = None,
    ) -> Viewed:
        """Read a picture or clip as the network looks at it; predict and predict_stream take the result. Raises BadImage.

        max_pixels     refuse a picture with more pixels than this; None: the usual limit
        keep_pictures  keep the picture, or some frames of a clip, to draw on
        progress       reports the making of tiles, for a picture that is too large to be decoded whole
        """
        return predicting.view(picture, self.settings, predicting.Reading(max_pixels, keep_pictures, progress))

    @property
    def least_px(self) -> int:
        """Side of the largest patch; smaller pictures are upscaled until it fits."""
        return predicting.least_px(self.settings)

    def save(self, folder: str | Path) -> Path:
        """Write the bundle to a folder, completely or not at all. An older bundle there is replaced; other folders are refused."""
        folder = Path(folder)
        foreign = folder.exists() and not (folder / files.SETTINGS_FILE).exists()
        if foreign and (folder.is_file() or any(folder.iterdir())):
            raise BadBundle(f"{folder} exists and is not a bundle; it was left as it is. Choose another place.")
        try:
            files.replace_bundle(folder.absolute(), self._tensors(), self._texts(), self.split)
        except OSError as error:
            raise BadBundle(f"the bundle cannot be written to {folder}: {error.strerror or error}.") from error
        return folder

    def update(self, folder: str | Path) -> None:
        """Write thresholds, curve, notes and the record of the split into an existing bundle; its weights stay as they are."""
        folder = Path(folder)
        try:
            for name, text in self._texts().items():
                write_text(folder / name, text)
            files.update_split(folder, self.split)
        except OSError as error:
            raise BadBundle(f"the bundle {folder} cannot be written: {error.strerror or error}.") from error

    def push_to_hub(
        self, name: str, *, private: bool | None = None, token: str | None = None, split: bool = True
    ) -> str:
        """Publish the bundle as `user/name` on Hugging Face's hub, see hub.publish; returns its address."""
        return publish(self, hub_name(name), private=private, token=token, split=split)

    def _texts(self) -> dict[str, str]:
        """{file: content} of all text files."""
        card = model_card(self.settings, self.classes, self.costs, self.notes, self.curve)
        return {files.CARD_FILE: card, files.SETTINGS_FILE: json.dumps(self._plain(), indent=1, allow_nan=False) + "\n"}

    def _plain(self) -> dict[str, Any]:
        return {
            "format": files.FORMAT,
            "glancefocus": glancefocus.__version__,
            "network": to_plain(self.settings),
            "classes": list(self.classes),
            "costs": self.costs.to_plain(),
            "thresholds": self.thresholds,
            "score": self.score,
            "temperatures": self.temperatures,
            "latencies": [latency.to_plain() for latency in self.latencies],
            "curve": self.curve,
            "notes": self.notes,
        }

    def _tensors(self) -> dict[str, Tensor]:
        """Everything that is stored; weights that encoders share are stored once."""
        tensors, repeated = self.net.state_dict(), self.net.repeated_tensors()
        return {name: each.detach().cpu().contiguous() for name, each in tensors.items() if name not in repeated}

    @staticmethod
    def load(folder: str | Path) -> "Bundle":
        """The bundle in a folder; a missing or damaged file is reported as BadBundle."""
        folder = Path(folder)
        check_threads()
        plain, file = files.read_settings(folder), folder / files.SETTINGS_FILE
        settings = files.read_network(plain, file)
        beside = files.read_beside_network(plain, file, settings)
        tensors = files.read_weights(folder, settings)
        try:
            net = build(settings)
            shared = {name: tensors[first] for name, first in net.repeated_tensors().items() if first in tensors}
            load_exactly(net, {**tensors, **shared}, "network", str(folder / files.WEIGHTS_FILE))
        except BadSetting as error:
            raise BadBundle(f"{file} does not describe a network: {error}") from None
        except BadCheckpoint as error:
            raise BadBundle(str(error)) from None
        return Bundle(net=net, split=files.read_split(folder), **beside)


def load(
    path: str | Path,
    *,
    model: str | None = None,
    patch_px: int | None = None,
    looks: int | None = None,
    device: str | torch.device | None = None,
    runtime: str | None = None,
    threads: int | None = None,
    batch: int | None = None,
    light_weights: bool = False,
) -> Bundle:
    """Load a bundle from its folder or from the hub (hf://user/name, hf://user/name@revision), or a checkpoint of the paper.

    model, patch_px, looks         for a checkpoint of the paper that does not contain them
    device                         None: the GPU if there is one, otherwise the CPU
    runtime, batch, light_weights  the runtime that predicts, see Bundle.use; None: torch
    threads                        CPU threads of this whole process; None: unchanged
    """
    if runtime is not None:
        check_name(runtime)
    elif light_weights:
        raise BadSetting(
            "light weights are for ONNX Runtime. Name it, too (runtime='onnx', or --runtime onnx), or leave them out."
        )
    path = local_folder(path) if files.is_hub_name(path) else Path(path)
    if path.is_dir() or (not path.exists() and not path.suffix):
        if any(value is not None for value in (model, patch_px, looks)):
            raise BadSetting(f"{path} is a bundle, which contains model, patch_px and looks. Leave them out.")
        bundle = Bundle.load(path)
    else:
        bundle = _from_official(path, model, patch_px, looks)
    bundle.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bundle.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if threads is not None:
        set_threads(threads)
    return bundle if runtime is None else bundle.use(runtime, batch=batch, light_weights=light_weights)


def _from_official(path: Path, model: str | None, patch_px: int | None, looks: int | None) -> Bundle:
    official = load_official(path, model=model, patch_px=patch_px, looks=looks)
    curve = cast(list[Point], official.curve)
    return Bundle(
        net=official.net,
        classes=imagenet_classes(official.net.settings.classes),
        costs=count_costs(official.net.settings),
        thresholds=best_thresholds(curve),
        curve=curve,
        notes={"source": "a checkpoint of the paper"},
    )
