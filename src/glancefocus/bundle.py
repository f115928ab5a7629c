"""A bundle: one folder that can answer. Settings, weights, classes, costs, thresholds, and a model card for people."""

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor

import glancefocus
from glancefocus.adaptive import look_until_sure
from glancefocus.bundle_files import (
    CARD_FILE,
    FORMAT,
    SETTINGS_FILE,
    WEIGHTS_FILE,
    read_settings,
    told_beside_the_network,
)
from glancefocus.costs import Costs
from glancefocus.data.clip_views import view_any_clip
from glancefocus.data.views import Picture, view_any
from glancefocus.early_exit.curve import best_thresholds
from glancefocus.early_exit.rule import Deadline, ExitRule, every_look
from glancefocus.early_exit.score import score_named
from glancefocus.errors import BadBundle, BadCheckpoint, BadImage, BadSetting, ImageTooSmall
from glancefocus.latency import Latency, device_name
from glancefocus.model_card import model_card
from glancefocus.network.assemble import build
from glancefocus.network.glance_focus import GlanceFocus
from glancefocus.network.multiply_adds import count_costs
from glancefocus.network.official import imagenet_classes, load_official
from glancefocus.network.weights import load_exactly
from glancefocus.outcome import Outcome
from glancefocus.runtimes.choose import check_name, open_runtime, set_threads
from glancefocus.runtimes.network import PartsNetwork
from glancefocus.scene import as_scene
from glancefocus.settings import NetworkSettings, from_plain, to_plain
from glancefocus.stopping import Stopping


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
    looking     who looks: the network itself, or the same network in the runtime of this name, see use
    """

    net: GlanceFocus
    classes: tuple[str, ...]
    costs: Costs
    thresholds: tuple[Any, ...] | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    score: str = "confidence"
    temperatures: tuple[float, ...] | None = None
    latencies: list[Latency] = field(default_factory=list)
    looking: GlanceFocus | PartsNetwork = field(init=False, repr=False, compare=False)
    runtime: str | None = field(init=False, default=None, compare=False)

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
        self.looking = self.net.eval()

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

    def use(self, runtime: str, *, threads: int | None = None, batch: int | None = None) -> "Bundle":
        """Let another runtime look from now on, see open_runtime; answers stay the same.

        runtime  eager, compile, onnx, openvino, plain; auto: the fastest here for batches of so many images
        """
        self.looking = open_runtime(self.net, runtime, threads=threads, batch=batch)
        self.runtime = self.looking.runtime if isinstance(self.looking, PartsNetwork) else runtime
        return self

    @property
    def fingerprint(self) -> str:
        """Of the weights, settings and temperatures: what it answers depends on nothing else."""
        told = json.dumps([to_plain(self.settings), self.temperatures], sort_keys=True)
        digest = hashlib.sha256(told.encode())
        for name, tensor in sorted(self._tensors().items()):
            digest.update(name.encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

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
    ) -> Outcome:
        """What is in these pictures.

        pictures  files, bytes, PIL pictures, arrays (height, width, 3) of uint8, tensors (3, height, width) of uint8 or of floats
                  in [0, 1]; one or several, of any sizes. A tensor (B, 3, height, width) is B pictures. A network of clips takes
                  video files, folders of frames, bytes, and arrays and tensors with one more dimension, which is time.
        thresholds, looks, budget_macs, budget_ms  when to stop, see exit_rule
        deadline_ms  for all pictures together, from now: the best answers so far when time is up; every picture gets its glance
        """
        started = time.perf_counter()
        rule = self.exit_rule(thresholds=thresholds, looks=looks, budget_macs=budget_macs, budget_ms=budget_ms)
        images = [self.view(picture)[0] for picture in _as_list(pictures, self.settings.frames)]
        if deadline_ms is None:
            return self.predict_images(images, rule, batch_size)
        if not deadline_ms > 0:
            raise BadSetting(f"a deadline lies ahead: deadline_ms must be above 0, but got {deadline_ms}.")
        return self.predict_images(images, rule, batch_size, started + deadline_ms / 1000)

    def view(self, picture: Picture) -> tuple[Tensor, Any]:
        """The normalised image (3, H, W) of a picture, and where it lies in it; of a clip (F, 3, H, W)."""
        view, frames = self.settings.view, self.settings.frames
        if frames > 1:
            image, placement = view_any_clip(picture, frames, view)
        else:
            image, placement = view_any(picture, view)
        self.check_size(image)
        return image, placement

    def check_size(self, image: Tensor) -> None:
        """Refuse an image (..., H, W) that no patch fits into."""
        patch_px = max(self.settings.patch_px)
        if self.settings.looks > 1 and min(image.shape[-2:]) < patch_px:
            raise ImageTooSmall(
                f"an image of {image.shape[-2]}x{image.shape[-1]} px is smaller than a patch of this network ({patch_px} px). "
                "Give a larger image."
            )

    def predict_images(
        self, images: Sequence[Tensor], rule: ExitRule, batch_size: int = 32, ends_at: float | None = None
    ) -> Outcome:
        """The same for images that are viewed and normalised already.

        ends_at  seconds of time.perf_counter; what is left of the time is shared by the batches that are left
        """
        if batch_size < 1:
            raise BadSetting(f"a batch holds at least one image, but batch_size is {batch_size}.")
        parts = []
        starts = range(0, len(images), batch_size)
        for done, start in enumerate(starts):
            scene = as_scene([image.to(self.device) for image in images[start : start + batch_size]])
            if ends_at is not None:
                now = time.perf_counter()
                rule = replace(
                    rule, deadline=Deadline(time.perf_counter, now, now + (ends_at - now) / (len(starts) - done))
                )
            with torch.inference_mode():
                parts.append(look_until_sure(self.looking, scene, rule))
        if not parts:
            raise BadImage("there are no pictures to look at.")
        return replace(Outcome.join(parts), classes=self.classes, costs=self.costs)

    def save(self, folder: str | Path) -> Path:
        """Write the bundle aside, then put it in place whole; an older bundle there is replaced, nothing else is."""
        folder = Path(folder)
        if folder.exists() and not (folder / SETTINGS_FILE).exists() and (folder.is_file() or any(folder.iterdir())):
            raise BadBundle(f"{folder} exists and is not a bundle; it was left as it is. Choose another place.")
        try:
            self._replace(folder.absolute())
        except OSError as error:
            raise BadBundle(f"the bundle cannot be written to {folder}: {error.strerror or error}.") from error
        return folder

    def update(self, folder: str | Path) -> None:
        """Write thresholds, curve and notes into the bundle that is there; its weights are left alone."""
        folder = Path(folder)
        try:
            for name, text in self._texts().items():
                aside = folder / f".{name}"
                aside.write_text(text, encoding="utf-8")
                aside.replace(folder / name)
        except OSError as error:
            raise BadBundle(f"the bundle {folder} cannot be written: {error.strerror or error}.") from error

    def _replace(self, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        replaced = aside.with_name(f"{aside.name}.old")
        try:
            aside.chmod(0o755)
            safetensors.torch.save_file(self._tensors(), aside / WEIGHTS_FILE)
            for name, text in self._texts().items():
                (aside / name).write_text(text, encoding="utf-8")
            if folder.exists():
                folder.rename(replaced)
            aside.rename(folder)
        except BaseException:
            if replaced.exists() and not folder.exists():
                replaced.rename(folder)
            shutil.rmtree(aside, ignore_errors=True)
            raise
        shutil.rmtree(replaced, ignore_errors=True)

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
        plain = read_settings(folder)
        try:
            settings = from_plain(NetworkSettings, plain.get("network"), "network")
            costs = Costs.from_plain(plain.get("costs", {}))
        except BadSetting as error:
            raise BadBundle(f"{folder / SETTINGS_FILE} does not describe a network: {error}") from None
        weights = folder / WEIGHTS_FILE
        try:
            tensors = safetensors.torch.load_file(weights)
        except FileNotFoundError:
            raise BadBundle(f"the bundle {folder} has no {WEIGHTS_FILE}. Copy the whole folder again.") from None
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise BadBundle(f"{weights} is damaged ({error}). Copy or export the bundle again.") from None
        if settings.shared_encoder:
            shared = {n: t for n, t in tensors.items() if n.startswith("glance_encoder.")}
            tensors |= {n.replace("glance_encoder.", "focus_encoder.", 1): t for n, t in shared.items()}
        try:
            net = build(settings)
            load_exactly(net, tensors, "network", str(weights))
        except BadSetting as error:
            raise BadBundle(f"{folder / SETTINGS_FILE} does not describe a network: {error}") from None
        except BadCheckpoint as error:
            raise BadBundle(str(error)) from None
        return Bundle(net=net, costs=costs, **told_beside_the_network(plain, folder / SETTINGS_FILE))


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
) -> Bundle:
    """A bundle out of its folder, or out of a checkpoint of the paper.

    model, patch_px, looks  what a checkpoint of the paper does not say itself
    device                  None: the GPU where there is one, else the CPU
    runtime, batch          who looks, see Bundle.use; None: the network itself
    threads                 of the CPU, for this whole process; None: as they are
    """
    if runtime is not None:
        check_name(runtime)
    path = Path(path)
    if path.is_dir() or (not path.exists() and not path.suffix):
        if any(value is not None for value in (model, patch_px, looks)):
            raise BadSetting(f"{path} is a bundle, which says itself what it is. Leave model, patch_px and looks out.")
        bundle = Bundle.load(path)
    else:
        bundle = _from_official(path, model, patch_px, looks)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    bundle.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bundle.to(device)
    if threads is not None:
        set_threads(threads)
    return bundle if runtime is None else bundle.use(runtime, batch=batch)


def _from_official(path: Path, model: str | None, patch_px: int | None, looks: int | None) -> Bundle:
    official = load_official(path, model=model, patch_px=patch_px, looks=looks)
    bundle = Bundle(
        net=official.net,
        classes=imagenet_classes(official.net.settings.classes),
        costs=count_costs(official.net.settings),
        curve=official.curve,
        notes={"source": "a checkpoint of the paper"},
    )
    bundle.thresholds = best_thresholds(official.curve)
    return bundle


def _as_list(pictures: Picture | Sequence[Picture], frames: int) -> list[Picture]:
    if isinstance(pictures, Tensor) and pictures.dim() == (4 if frames == 1 else 5):
        return list(pictures)
    if isinstance(pictures, (str, Path, bytes, Image.Image, Tensor, np.ndarray)):
        return [pictures]
    return list(pictures)
