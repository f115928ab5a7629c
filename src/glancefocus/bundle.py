"""A bundle: one folder that can answer. Settings, weights, classes, costs, thresholds, and a model card for people."""

import json
import shutil
import tempfile
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
from glancefocus.costs import Costs
from glancefocus.data.pictures import as_rgb, read_picture
from glancefocus.data.views import view_picture, view_tensor
from glancefocus.early_exit.rule import ExitRule, every_look
from glancefocus.errors import BadBudget, BadBundle, BadCheckpoint, BadImage, BadSetting, ImageTooSmall
from glancefocus.model_card import model_card
from glancefocus.network.assemble import build
from glancefocus.network.glance_focus import GlanceFocus
from glancefocus.network.multiply_adds import count_costs
from glancefocus.network.official import load_official
from glancefocus.network.weights import load_exactly
from glancefocus.outcome import Outcome
from glancefocus.scene import as_scene
from glancefocus.settings import NetworkSettings, from_plain, to_plain

FORMAT = 1
SETTINGS_FILE, WEIGHTS_FILE, CARD_FILE = "bundle.json", "model.safetensors", "README.md"
MAX_SETTINGS_BYTES = 64 * 2**20

Picture = str | Path | bytes | Image.Image | Tensor | np.ndarray[Any, Any]


@dataclass
class Bundle:
    """A network that can be asked.

    classes     a name for each class
    costs       multiply-adds of every part, see count_costs
    thresholds  one for each look, what predict stops by; None: every look is taken
    curve       operating points to choose from by budget: {"thresholds": [...], "mean_macs": ..., "accuracy": ...}
    notes       facts for the model card, such as accuracies that were measured
    """

    net: GlanceFocus
    classes: tuple[str, ...]
    costs: Costs
    thresholds: tuple[float, ...] | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

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
        self.net.to(device)
        return self

    def exit_rule(
        self, *, thresholds: Sequence[float] | None = None, looks: int | None = None, budget_macs: float | None = None
    ) -> ExitRule:
        """When predict stops: by given thresholds, after so many looks, within a budget, or as the bundle says."""
        if sum(choice is not None for choice in (thresholds, looks, budget_macs)) > 1:
            raise BadSetting("give thresholds, or a number of looks, or a budget, not several of them.")
        most = self.settings.looks
        if looks is not None:
            if not 1 <= looks <= most:
                raise BadSetting(f"this network takes 1 to {most} looks, not {looks}.")
            return every_look(looks)
        if budget_macs is not None:
            thresholds = self._thresholds_within(budget_macs)
        if thresholds is not None:
            if len(thresholds) == most - 1:
                thresholds = [*thresholds, 0.0]
            if len(thresholds) != most:
                raise BadSetting(
                    f"this network takes {most} looks, so it needs {most - 1} thresholds, but got {len(thresholds)}."
                )
            return ExitRule(thresholds)
        return every_look(most) if self.thresholds is None else ExitRule(self.thresholds)

    def predict(
        self,
        pictures: Picture | Sequence[Picture],
        *,
        thresholds: Sequence[float] | None = None,
        looks: int | None = None,
        budget_macs: float | None = None,
        batch_size: int = 32,
    ) -> Outcome:
        """What is in these pictures.

        pictures  files, bytes, PIL pictures, arrays (height, width, 3) of uint8, tensors (3, height, width) of uint8 or of floats
                  in [0, 1]; one or several, of any sizes. A tensor (B, 3, height, width) is B pictures.
        thresholds, looks, budget_macs  when to stop, see exit_rule
        """
        rule = self.exit_rule(thresholds=thresholds, looks=looks, budget_macs=budget_macs)
        images = [self.view(picture)[0] for picture in _as_list(pictures)]
        return self.predict_images(images, rule, batch_size)

    def view(self, picture: Picture) -> tuple[Tensor, Any]:
        """The normalised image (3, H, W) of a picture, and where it lies in it."""
        view = self.settings.view
        if isinstance(picture, np.ndarray):
            if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
                raise BadImage(f"an array must be uint8 (height, width, 3), but got {picture.dtype} {picture.shape}.")
            picture = Image.fromarray(picture)
        if isinstance(picture, Tensor):
            image, placement = view_tensor(picture, view)
        else:
            image, placement = view_picture(
                as_rgb(picture) if isinstance(picture, Image.Image) else read_picture(picture), view
            )
        patch_px = max(self.settings.patch_px)
        if self.settings.looks > 1 and min(image.shape[1:]) < patch_px:
            raise ImageTooSmall(
                f"an image of {image.shape[1]}x{image.shape[2]} px is smaller than a patch of this network ({patch_px} px). "
                "Give a larger image."
            )
        return image, placement

    def predict_images(self, images: Sequence[Tensor], rule: ExitRule, batch_size: int = 32) -> Outcome:
        """The same for images that are viewed and normalised already."""
        if batch_size < 1:
            raise BadSetting(f"a batch holds at least one image, but batch_size is {batch_size}.")
        parts = []
        for start in range(0, len(images), batch_size):
            scene = as_scene([image.to(self.device) for image in images[start : start + batch_size]])
            with torch.inference_mode():
                parts.append(look_until_sure(self.net, scene, rule))
        if not parts:
            raise BadImage("there are no pictures to look at.")
        return replace(Outcome.join(parts), classes=self.classes, costs=self.costs)

    def _thresholds_within(self, budget_macs: float) -> list[float]:
        spent = self.costs.macs_after_look
        if not budget_macs >= spent[0]:
            raise BadBudget(
                f"a budget of {budget_macs:.3g} multiply-adds is less than one glance ({spent[0]:.3g}). Raise the budget."
            )
        if budget_macs >= spent[-1]:
            return [1.0] * (len(spent) - 1) + [0.0]
        points = [p for p in self.curve if p.get("mean_macs") is not None]
        if not points:
            raise BadBudget(
                "this bundle has no operating points to choose from. Give thresholds or a number of looks instead."
            )
        affordable = [p for p in points if p["mean_macs"] <= budget_macs]
        if not affordable:
            # Between one glance and the cheapest point nothing was measured; stopping everybody at the glance always fits.
            return [0.0] * len(spent)
        points = affordable
        best = max(points, key=lambda p: (p.get("accuracy") or 0.0, p["mean_macs"]))
        return list(best["thresholds"])

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

    def _replace(self, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        replaced = aside.with_name(f"{aside.name}.old")
        try:
            aside.chmod(0o755)
            safetensors.torch.save_file(self._tensors(), aside / WEIGHTS_FILE)
            plain = json.dumps(self._plain(), indent=1, allow_nan=False) + "\n"
            (aside / SETTINGS_FILE).write_text(plain, encoding="utf-8")
            card = model_card(self.settings, self.classes, self.costs, self.notes, self.curve)
            (aside / CARD_FILE).write_text(card, encoding="utf-8")
            if folder.exists():
                folder.rename(replaced)
            aside.rename(folder)
        except BaseException:
            if replaced.exists() and not folder.exists():
                replaced.rename(folder)
            shutil.rmtree(aside, ignore_errors=True)
            raise
        shutil.rmtree(replaced, ignore_errors=True)

    def _plain(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "glancefocus": glancefocus.__version__,
            "network": to_plain(self.settings),
            "classes": list(self.classes),
            "costs": self.costs.to_plain(),
            "thresholds": None if self.thresholds is None else list(self.thresholds),
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
        plain = _read_settings(folder)
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
        return Bundle(net=net, costs=costs, **_told_beside_the_network(plain, folder / SETTINGS_FILE))


def load(
    path: str | Path,
    *,
    model: str | None = None,
    patch_px: int | None = None,
    looks: int | None = None,
    device: str | torch.device | None = None,
) -> Bundle:
    """A bundle out of its folder, or out of a checkpoint of the paper.

    model, patch_px, looks  what a checkpoint of the paper does not say itself
    device                  None: the GPU where there is one, else the CPU
    """
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
    return bundle.to(device)


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


def best_thresholds(curve: list[dict[str, Any]]) -> tuple[float, ...] | None:
    """The cheapest point within a tenth of a percentage point of the best; without accuracies the middle one."""
    if not curve:
        return None
    measured = [p for p in curve if "accuracy" in p and "mean_macs" in p]
    if not measured:
        return tuple(curve[len(curve) // 2]["thresholds"])
    best = max(p["accuracy"] for p in measured)
    good = [p for p in measured if p["accuracy"] >= best - 0.001]
    return tuple(min(good, key=lambda p: p["mean_macs"])["thresholds"])


def imagenet_classes(count: int) -> tuple[str, ...]:
    """Names of ImageNet's classes where there are 1000; their numbers otherwise."""
    if count != 1000:
        return tuple(str(i) for i in range(count))
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    names = [info.index_to_description(i).split(",")[0] for i in range(count)]
    twice = {name for name in names if names.count(name) > 1}
    return tuple(f"{n} ({info.index_to_label_name(i)})" if n in twice else n for i, n in enumerate(names))


def _as_list(pictures: Picture | Sequence[Picture]) -> list[Picture]:
    if isinstance(pictures, Tensor) and pictures.dim() == 4:
        return list(pictures)
    if isinstance(pictures, (str, Path, bytes, Image.Image, Tensor, np.ndarray)):
        return [pictures]
    return list(pictures)


def _told_beside_the_network(plain: dict[str, Any], file: Path) -> dict[str, Any]:
    """Classes, thresholds, curve and notes out of the settings file, whose values may be of any kind."""
    classes, thresholds = plain.get("classes"), plain.get("thresholds")
    curve, notes = plain.get("curve", []), plain.get("notes", {})
    numbers = thresholds is None or (
        isinstance(thresholds, list) and all(isinstance(t, (int, float)) for t in thresholds)
    )
    if not isinstance(classes, list) or not numbers or not isinstance(curve, list) or not isinstance(notes, dict):
        raise BadBundle(f"{file} is damaged: its classes, thresholds, curve or notes are not what they should be.")
    return {
        "classes": tuple(str(name) for name in classes),
        "thresholds": None if thresholds is None else tuple(float(t) for t in thresholds),
        "curve": curve,
        "notes": notes,
    }


def _read_settings(folder: Path) -> dict[str, Any]:
    file = folder / SETTINGS_FILE
    if not folder.is_dir():
        raise BadBundle(f"there is no bundle at {folder}. Name a folder written by training or by `gf import`.")
    if not file.is_file():
        raise BadBundle(f"the folder {folder} is not a bundle: it has no {SETTINGS_FILE}.")
    if file.stat().st_size > MAX_SETTINGS_BYTES:
        raise BadBundle(f"{file} is too large to be the settings of a bundle.")
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise BadBundle(f"{file} is damaged: {error}. Copy or export the bundle again.") from None
    if not isinstance(plain, dict) or not isinstance(plain.get("format"), int):
        raise BadBundle(f"{file} is not the settings of a bundle.")
    if plain["format"] > FORMAT:
        raise BadBundle(
            f"the bundle {folder} has format {plain['format']}, this glancefocus reads up to {FORMAT}. Update glancefocus."
        )
    return plain
