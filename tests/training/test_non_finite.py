"""Every stage stops at the first number that is not finite, and keeps the last good checkpoint."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from glancefocus.errors import BadRun
from glancefocus.training import loop
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import TrainingContext

pytestmark = pytest.mark.usefixtures("_tiny_world")
Tiny = Callable[..., TrainSettings]
RATES = {
    "recognise": "recognise.encoder_lr and recognise.classifier_lr",
    "finetune": "finetune.encoder_lr and finetune.classifier_lr",
    "joint": "joint.encoder_lr, joint.classifier_lr and aim.lr",
}
SMALL = {"epochs": 1, "scenes": [24, 5], "side_px": 96}


def poisoned(monkeypatch: pytest.MonkeyPatch, part: str, calls: int = 2) -> None:
    """The gradient of one weight of this part is not a number when it is computed for the second time."""
    build, seen = loop.build_stage, []

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return gradient * math.nan if len(seen) == calls else gradient

    def building(name: str, context: TrainingContext) -> Any:
        stage = build(name, context)
        weight = next(getattr(context.net, part).parameters())
        weight.requires_grad_(True)
        weight.register_hook(hook)
        stage.train_mode()
        return stage

    monkeypatch.setattr(loop, "build_stage", building)


def finite(folder: Path) -> bool:
    kept = torch.load(folder / "last.ckpt", weights_only=True)["net"].values()
    return all(bool(tensor.isfinite().all()) for tensor in kept)


@pytest.mark.parametrize(
    ("stage", "part", "changes"),
    [
        ("small", "focus_encoder", {"small": SMALL}),
        ("backbone", "focus_encoder", {}),
        ("backbone", "focus_encoder", {"precision": "bf16"}),
        ("backbone", "focus_encoder", {"accumulation": 2}),
        ("small_glance", "glance_encoder", {"small_glance": SMALL}),
        ("glance", "glance_encoder", {}),
        ("recognise", "classifier", {}),
        ("recognise", "focus_encoder", {"precision": "bf16", "accumulation": 2}),
        ("point", "policy", {}),
        ("aim", "policy", {}),
        ("finetune", "classifier", {}),
        ("joint", "classifier", {}),
        ("joint", "policy", {}),
    ],
)
def test_a_gradient_that_is_not_a_number_stops_the_stage(
    stage: str, part: str, changes: dict[str, Any], tiny_settings: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, part, calls=1 + changes.get("accumulation", 1))
    advice = f"Lower {RATES.get(stage, f'{stage}.lr')}" + (
        ", or leave out --precision," if "precision" in changes else ""
    )
    said = rf"a weight became (nan|inf) in the stage {stage}: .*last good checkpoint is kept\. {advice} and start again"
    with pytest.raises(BadRun, match=said):
        train(tiny_settings(stages=[stage], **changes), tmp_path / "run", quiet=True)
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["step"] == 1
    assert finite(tmp_path / "run")


def test_a_loss_that_is_not_a_number_stops_the_run(tiny_settings: Tiny, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"epochs": 4, "encoder_lr": 1000.0, "classifier_lr": 1000.0}
    with pytest.raises(BadRun, match=r"(the loss|a weight) became .* in the stage recognise: its learning rate is too"):
        train(tiny_settings(stages=["recognise"], recognise=changes), tmp_path / "run", quiet=True)


def test_statistics_that_are_not_finite_are_not_saved(
    tiny_settings: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree = loop._agree

    def spoil(net: Any, accelerator: Any) -> None:
        agree(net, accelerator)
        next(buffer for name, buffer in net.named_buffers() if name.endswith("running_var")).fill_(math.inf)

    monkeypatch.setattr(loop, "_agree", spoil)
    with pytest.raises(BadRun, match=r"running_var became infinite or not a number in the stage backbone"):
        train(tiny_settings(stages=["backbone"]), tmp_path / "run", quiet=True)
    assert finite(tmp_path / "run")
