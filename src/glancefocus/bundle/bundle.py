"""A bundle: one folder that can answer. Settings, weights, classes, costs, thresholds, and a model card for people."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import glancefocus
from glancefocus.bundle.card import model_card
from glancefocus.bundle.files import (
    CARD_FILE,
    FORMAT,
    SETTINGS_FILE,
    WEIGHTS_FILE,
    read_network,
    read_settings,
    read_split,
    read_weights,
    replace_bundle,
    told_beside_the_network,
    update_split,
)
from glancefocus.bundle.hub import hub_name, publish
from glancefocus.bundle.stopping import Stopping
from glancefocus.costs import Costs, Latency, device_name
from glancefocus.data.clip_views import view_any_clip
from glancefocus.data.split_record import SplitRecord
from glancefocus.data.views import Picture, Placement, notes_of, several, view_any
from glancefocus.errors import BadBundle, BadCheckpoint, BadImage, BadSetting
from glancefocus.exits.curve import Point
from glancefocus.exits.rule import Deadline, ExitRule, every_look
from glancefocus.exits.score import score_named
from glancefocus.files import fingerprint, write_text
from glancefocus.free_memory import batch_bytes, bytes_of, in_small_batches
from glancefocus.loop import look_until_sure
from glancefocus.network.build import build
from glancefocus.network.model import GlanceFocus
from glancefocus.network.weights import load_exactly
from glancefocus.outcome import Outcome
from glancefocus.runtime.choose import RuntimeOptions, open_runtime
from glancefocus.runtime.forking import check_threads
from glancefocus.scene import Scene, as_scene
from glancefocus.settings import NetworkSettings, to_plain
from glancefocus.stream import FULL_BATCH, in_batches, look_at_stream, refuse_deadline, without_gradients
from glancefocus.values import BatchSize, Milliseconds, checked


@dataclass
class Bundle:
    """A network that can be asked.

    classes     a name for each class
    costs       multiply-adds of every part, see count_costs
    thresholds  one for each look (with several patch sizes a row of them), what predict stops by; None: every look is taken
    curve       operating points to choose from by budget: {"thresholds": [...], "mean_macs": ..., "accuracy": ...}
    notes       facts for the model card, such as accuracies that were measured
    score       what the thresholds are for: confidence, entropy, value or random
    temperatures  one for each look, what its logits are divided by; None: the network was not calibrated
    latencies   how long looking takes, for every device that was measured
    split       which files trained the network and which were held out; None where that is not known, as of imported checkpoints
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
        if len(self.costs.classifier_macs) != settings.looks or set(self.costs.focus_encoder_macs) != set(
            settings.patch_px
        ):
            raise BadBundle("the table of costs was counted for another network than this one.")
        focus_looks, sizes = settings.looks - 1, len(settings.patch_px)
        for latency in self.latencies:
            if [len(row) for row in latency.focus_ms] != [sizes] * focus_looks:
                raise BadBundle(f"the milliseconds measured on {latency.device} are those of another network.")
        try:
            score_named(self.score)
            self.exit_rule()
        except BadSetting as error:
            raise BadBundle(f"the bundle's thresholds, score or temperatures do not fit its network: {error}") from None
        self.net.eval()

    @property
    def network(self) -> GlanceFocus:
        return self.net

    @property
    def settings(self) -> NetworkSettings:
        return self.net.settings

    @property
    def device(self) -> torch.device:
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
        """Compute the network by another runtime from now on, see open_runtime; answers stay the same, but for light weights.

        runtime        eager, compile, onnx, openvino, plain; auto: the fastest here for batches of this size
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
        """Of the weights, settings and temperatures, and of light weights where they look: answers depend on nothing else."""
        light = [self.runtime] if self.net.light_weights else []
        tensors = [value for named in sorted(self._tensors().items()) for value in named]
        return fingerprint([to_plain(self.settings), self.temperatures, *light], *tensors)

    def calibration(self) -> ExitRule:
        """The rule that takes every look, with the bundle's temperatures."""
        return replace(every_look(self.settings.looks), temperatures=self.temperatures)

    def exit_rule(
        self,
        *,
        thresholds: Sequence[Any] | None = None,
        looks: int | None = None,
        budget_macs: float | None = None,
        budget_ms: float | None = None,
    ) -> ExitRule:
        """When predict stops: by given thresholds, after so many looks, within an average budget, or as the bundle says."""
        stopping = Stopping(
            self.settings, self.costs, self.thresholds, self.curve, self.score, self.temperatures, self.latency_here()
        )
        return stopping.rule(thresholds=thresholds, looks=looks, budget_macs=budget_macs, budget_ms=budget_ms)

    def latency_here(self) -> Latency | None:
        """What was measured on the device that this bundle is on, in the same runtime, with as many threads as now."""
        here = device_name(self.device), torch.get_num_threads(), self.runtime
        own = [latency for latency in self.latencies if (latency.device, latency.threads, latency.runtime) == here]
        return own[-1] if own else None

    def predict(
        self,
        pictures: Picture | Sequence[Picture],
        *,
        thresholds: Sequence[Any] | None = None,
        looks: int | None = None,
        budget_macs: float | None = None,
        budget_ms: float | None = None,
        deadline_ms: float | None = None,
        batch_size: int = 32,
        merge: bool = False,
    ) -> Outcome:
        """What is in these pictures.

        pictures  files, bytes, PIL pictures, arrays (height, width, 3) of uint8, tensors (3, height, width) of uint8 or of floats
                  in [0, 1]; one or several, of any sizes. A tensor (B, 3, height, width) is B pictures. A network of clips takes
                  video files, folders of frames, bytes, and arrays and tensors with one more dimension, which is time. One that is
                  smaller than a patch is upscaled, which outcome.notes says.
        thresholds, looks, budget_macs, budget_ms  when to stop, see exit_rule
        deadline_ms  for all pictures together, from now: the best answers so far when time is up; every picture gets its glance
        merge        undecided pictures of several batches are pooled; the answers are the same
        """
        started = time.perf_counter()
        if deadline_ms is not None:
            deadline_ms = checked(Milliseconds, deadline_ms, "deadline_ms")
        rule = self.exit_rule(thresholds=thresholds, looks=looks, budget_macs=budget_macs, budget_ms=budget_ms)
        placements: list[Placement] = []

        def images() -> Iterator[Tensor]:
            for picture in several(pictures, self.settings.frames):
                image, placement = self.view(picture)
                placements.append(placement)
                yield image

        if deadline_ms is not None:  # what is left of the time is shared once everything was read
            outcome = self.predict_images(list(images()), rule, batch_size, started + deadline_ms / 1000, merge=merge)
        else:
            batch_size = checked(BatchSize, batch_size, "batch_size")
            batches = in_small_batches(images(), bytes_of, batch_size, batch_bytes())
            apart = (self.predict_images(batch, rule, batch_size) for batch in batches)
            parts = list(self.predict_batches(batches, rule, full_batch=batch_size) if merge else apart)
            if not parts:
                raise BadImage("there are no pictures to look at.")
            outcome = Outcome.join(parts)
        return replace(outcome, notes=notes_of(placements))

    def predict_stream(
        self,
        pictures: Iterable[Picture | None],
        *,
        batch_size: int = 8,
        full_batch: int = FULL_BATCH,
        wait_ms: float | None = None,
        **stopping: Any,
    ) -> Iterator[Outcome]:
        """An outcome for every batch of a stream of pictures, in their order; undecided pictures are pooled.

        pictures    as predict takes them, one after the other; None: nothing has come, so a batch that is begun is not waited for
        batch_size  pictures glanced at together
        full_batch, wait_ms  see merging.look_at_stream
        stopping    thresholds, looks, budget_macs or budget_ms, see exit_rule
        """
        images = (None if picture is None else self.view(picture)[0] for picture in pictures)
        rule = self.exit_rule(**stopping)
        return self.predict_batches(in_batches(images, batch_size), rule, full_batch=full_batch, wait_ms=wait_ms)

    def predict_batches(
        self,
        batches: Iterable[Sequence[Tensor] | None],
        rule: ExitRule,
        *,
        full_batch: int = FULL_BATCH,
        wait_ms: float | None = None,
    ) -> Iterator[Outcome]:
        """The same for batches of images that are viewed and normalised already."""
        scenes = (self._scene(batch) if batch else None for batch in batches)
        outcomes = look_at_stream(self.net, scenes, rule, full_batch=full_batch, wait_ms=wait_ms)
        return (self._named(outcome, rule) for outcome in without_gradients(outcomes))

    def view(self, picture: Picture) -> tuple[Tensor, Placement]:
        """The image (3, H, W) of a picture, and where it lies in it; of a clip (F, 3, H, W).

        It is normalised; one of many megapixels is uint8, and normalised where it is looked at.
        """
        check_threads()
        view, frames = self.settings.view, self.settings.frames
        if frames > 1:
            return view_any_clip(picture, frames, view, self.least_px)
        return view_any(picture, view, self.least_px)

    @property
    def least_px(self) -> int:
        """Side of the largest patch: pictures that are smaller are upscaled until it fits."""
        return max(self.settings.patch_px) if self.settings.looks > 1 else 1

    def predict_images(
        self,
        images: Sequence[Tensor],
        rule: ExitRule,
        batch_size: int = 32,
        ends_at: float | None = None,
        *,
        merge: bool = False,
    ) -> Outcome:
        """The same for images that are viewed and normalised already.

        ends_at  seconds of time.perf_counter; what is left of the time is shared by the batches that are left
        """
        batch_size = checked(BatchSize, batch_size, "batch_size")
        if not images:
            raise BadImage("there are no pictures to look at.")
        parts = []
        starts = range(0, len(images), batch_size)
        if merge:
            refuse_deadline(ends_at)
            batches = (images[start : start + batch_size] for start in starts)
            return Outcome.join(list(self.predict_batches(batches, rule, full_batch=batch_size)))
        for done, start in enumerate(starts):
            scene = self._scene(images[start : start + batch_size])
            if ends_at is not None:
                now = time.perf_counter()
                rule = replace(
                    rule, deadline=Deadline(time.perf_counter, now, now + (ends_at - now) / (len(starts) - done))
                )
            with torch.inference_mode():
                parts.append(look_until_sure(self.net, scene, rule))
        return self._named(Outcome.join(parts), rule)

    def _scene(self, images: Sequence[Tensor]) -> Scene:
        check_threads()
        return as_scene([image.to(self.device) for image in images], self.settings.view)

    def _named(self, outcome: Outcome, rule: ExitRule) -> Outcome:
        """The outcome with what the bundle and the rule know of it; answers that are not numbers are refused."""
        if not bool(outcome.logits.isfinite().all()):
            raise BadBundle(
                "the network's answers are NaN or infinite: its weights are too large, or broken. Train or import it again."
            )
        thresholds = tuple(rule.threshold(look) for look in range(1, rule.looks + 1))
        return replace(outcome, classes=self.classes, costs=self.costs, thresholds=thresholds, score=rule.score.name)

    def save(self, folder: str | Path) -> Path:
        """Write the bundle aside, then put it in place whole; an older bundle there is replaced, nothing else is."""
        folder = Path(folder)
        if folder.exists() and not (folder / SETTINGS_FILE).exists() and (folder.is_file() or any(folder.iterdir())):
            raise BadBundle(f"{folder} exists and is not a bundle; it was left as it is. Choose another place.")
        try:
            replace_bundle(folder.absolute(), self._tensors(), self._texts(), self.split)
        except OSError as error:
            raise BadBundle(f"the bundle cannot be written to {folder}: {error.strerror or error}.") from error
        return folder

    def update(self, folder: str | Path) -> None:
        """Write thresholds, curve, notes and the record of the split into the bundle that is there; its weights are left alone."""
        folder = Path(folder)
        try:
            for name, text in self._texts().items():
                write_text(folder / name, text)
            update_split(folder, self.split)
        except OSError as error:
            raise BadBundle(f"the bundle {folder} cannot be written: {error.strerror or error}.") from error

    def push_to_hub(
        self, name: str, *, private: bool | None = None, token: str | None = None, split: bool = True
    ) -> str:
        """Publish the bundle as `user/name` on Hugging Face's hub, see hub.publish; returns its address."""
        return publish(self, hub_name(name), private=private, token=token, split=split)

    def _texts(self) -> dict[str, str]:
        """{file: content} of everything but the weights."""
        return {
            CARD_FILE: model_card(self.settings, self.classes, self.costs, self.notes, self.curve),
            SETTINGS_FILE: json.dumps(self._plain(), indent=1, allow_nan=False) + "\n",
        }

    def _plain(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
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
        return {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in self.net.state_dict().items()
            if not (self.settings.shared_encoder and name.startswith("focus_encoder."))
        }

    @staticmethod
    def load(folder: str | Path) -> "Bundle":
        """The bundle in a folder; what is missing, damaged or foreign is said."""
        folder = Path(folder)
        check_threads()
        plain, file = read_settings(folder), folder / SETTINGS_FILE
        settings = read_network(plain, file)
        told = told_beside_the_network(plain, file, settings)
        tensors = read_weights(folder, settings)
        try:
            net = build(settings)
            load_exactly(net, tensors, "network", str(folder / WEIGHTS_FILE))
        except BadSetting as error:
            raise BadBundle(f"{file} does not describe a network: {error}") from None
        except BadCheckpoint as error:
            raise BadBundle(str(error)) from None
        return Bundle(net=net, split=read_split(folder), **told)
