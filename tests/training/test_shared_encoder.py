"""Training one encoder for all views: its own norms on glances, all views together, and nothing for glances only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import MemorySplit
from glancefocus.errors import BadSetting
from glancefocus.network.model import GlanceFocus
from glancefocus.settings import ViewSettings
from glancefocus.training.loop import build_stage
from glancefocus.training.memory import bytes_per_image, weight_bytes
from glancefocus.training.recipes import train_settings
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import Moment, TrainingContext
from glancefocus.values import from_plain

VIEW = ViewSettings(fit="whole", height_px=64, width_px=64)
SHARED = {"shared_encoder": True, "own_norms": True}
VIEWS = {"classifier": "summed", "focus": ["0.5@32", "whole@64"]}
THREE = {**SHARED, **VIEWS, "whole_encoder": True}
BY_RULE = {**THREE, "first_view": "centre", "policy": {"units": 16, "conv_channels": 4, "kind": "centre_corner"}}
Make = Callable[..., TrainingContext]
Tiny = Callable[..., TrainSettings]


def colours(count: int, seed: int) -> MemorySplit:
    """Noise with more red, green or blue in it: also a glance shows which."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 200, (count, 3, 64, 64), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % 3
    images[torch.arange(count), labels] += 40
    return MemorySplit(images, labels, VIEW)


@pytest.fixture
def make_context(small_net: Callable[..., GlanceFocus], context_of: Make) -> Make:
    def make(net: dict[str, Any], **settings: Any) -> TrainingContext:
        return context_of(small_net(**net), colours(24, 0), colours(12, 1), **settings)

    return make


def updated(name: str, context: TrainingContext, updates: int = 1) -> list[float]:
    """Run some updates of a stage; returns the losses."""
    stage = build_stage(name, context)
    stage.begin()
    stage.train_mode()
    losses = []
    for number in range(updates):
        images, labels = next(iter(context.data.train.batches([range(24)])))
        losses.append(stage.update(images, labels, Moment(0.0, torch.Generator().manual_seed(number)))["loss"])
    stage.finish()
    return [float(loss) for loss in losses]  # type: ignore[arg-type]


def snapshot(net: GlanceFocus) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def changed(before: dict[str, Tensor], net: GlanceFocus) -> set[str]:
    return {name for name, tensor in net.state_dict().items() if not torch.equal(before[name], tensor)}


def norm_names(net: GlanceFocus, encoder: str) -> set[str]:
    names = {name for name, module in net.named_modules() if isinstance(module, torch.nn.BatchNorm2d)}
    return {f"{name}.{own}" for name in names if name.startswith(encoder) for own in ("weight", "bias")}


@pytest.mark.parametrize("kept", [False, True])
def test_the_stage_glance_trains_only_the_norms_of_glances_and_learns(kept: bool, make_context: Make) -> None:
    context = make_context(SHARED, glance={"lr": 0.1}, keep_statistics=kept)
    net = context.net
    with torch.no_grad():
        for norm in net.focus_encoder.norms:
            norm.bias.add_(0.1)  # as after the stage backbone
    before = snapshot(net)
    losses = updated("glance", context, 25)
    statistics = {name for name in before if name.startswith("glance_encoder.") and "running_" in name}
    counts = {name for name in before if name.startswith("glance_encoder.") and name.endswith("num_batches_tracked")}
    own = norm_names(net, "glance_encoder.")
    assert changed(before, net) == (own if kept else own | statistics | counts)
    assert losses[-1] < 0.7 * losses[0]


def test_the_stage_glance_starts_from_the_norms_of_the_backbone(make_context: Make) -> None:
    net = (context := make_context(SHARED, glance={"lr": 0.0})).net
    with torch.no_grad():
        net.focus_encoder.norms[0].bias.add_(0.5)
    stage = build_stage("glance", context)
    parameters = [weight for group in stage.optimizer.param_groups for weight in group["params"]]
    assert {id(weight) for weight in parameters} == {
        id(weight) for norm in net.glance_encoder.norms for weight in norm.parameters()
    }
    stage.begin()
    assert torch.equal(net.glance_encoder.norms[0].bias, net.focus_encoder.norms[0].bias)


def test_after_the_stage_backbone_all_views_have_its_norms(make_context: Make) -> None:
    net = (context := make_context(THREE, backbone={"lr": 0.1})).net
    updated("backbone", context, 2)
    assert net.whole_encoder is not None
    for other in (net.glance_encoder, net.whole_encoder):
        for name, tensor in net.focus_encoder.state_dict().items():
            assert torch.equal(other.state_dict()[name], tensor), name


@pytest.mark.parametrize("stage", ["recognise", "finetune"])
@pytest.mark.parametrize("net", [SHARED, THREE, {**THREE, "looks": 2}, {**SHARED, **VIEWS}, BY_RULE], ids=str)
def test_all_views_learn_together_in_every_batch(stage: str, net: dict[str, Any], make_context: Make) -> None:
    rates = {"encoder_lr": 0.01, "classifier_lr": 0.01}
    context = make_context(net, **{stage: rates})
    before = snapshot(context.net)
    updated(stage, context)
    # Every weight, in one update: several processes would wait for a missing gradient for ever.
    encoders = [name for name, _ in context.net.named_children() if name.endswith("_encoder")]
    moved = changed(before, context.net)
    for name in encoders:
        # The last norms of timm's blocks start at zero, so those before them do not move yet.
        assert {f"{name}.backbone.bn1.weight", f"{name}.backbone.bn1.bias"} <= moved
    trained = {name: each.grad for name, each in context.net.named_parameters() if each.requires_grad}
    assert [name for name, gradient in trained.items() if gradient is None] == []
    assert "glance_encoder.backbone.conv1.0.weight" in trained


@pytest.mark.parametrize("classifier", [{"classifier": "cascaded", "first_answer": "own_head"}, {}])
def test_a_shared_head_that_answers_glances_is_trained(classifier: dict[str, Any], make_context: Make) -> None:
    context = make_context({**SHARED, **classifier}, recognise={"own_head_weight": 0.0})
    updated("recognise", context)
    trained = {name: each.grad for name, each in context.net.named_parameters() if each.requires_grad}
    assert [name for name, gradient in trained.items() if gradient is None] == []
    assert any(name.endswith("backbone.fc.weight") for name in trained) == ("classifier" in classifier)


@pytest.mark.parametrize("stage", ["recognise", "joint"])
def test_every_optimiser_lists_a_shared_weight_once(stage: str, make_context: Make) -> None:
    built = build_stage(stage, make_context(SHARED))
    optimizer = getattr(built, "recognise_optimizer", built.optimizer)
    parameters = [id(weight) for group in optimizer.param_groups for weight in group["params"]]
    assert len(parameters) == len(set(parameters))


def test_memory_of_training_counts_shared_weights_once(tiny_settings: Tiny) -> None:
    separate, shared = (tiny_settings(network=changes) for changes in ({}, SHARED))
    assert weight_bytes(shared) < weight_bytes(separate)
    assert bytes_per_image(shared) == bytes_per_image(separate)
    three = tiny_settings(network={**THREE, "focus": ["0.5@32", "whole@96"]})
    fixed = tiny_settings(network={**VIEWS, "whole_encoder": True, "focus": ["0.5@32", "whole@96"]})
    # Views of the whole image are trained, too.
    assert bytes_per_image(three)["recognise"] > 2 * bytes_per_image(fixed)["recognise"]


STAGES = ["backbone", "glance", "recognise", "point"]
CHANGES: dict[str, Any] = {
    "network": {**THREE, "focus": ["0.5@32", "whole@96"]},
    "glance": {"epochs": 1, "distill": 0.5},
    "recognise": {"epochs": 1, "distill": 0.5, "aims": "evidence"},
}


@pytest.mark.usefixtures("_tiny_world")
def test_a_run_that_was_interrupted_ends_as_one_that_was_not(runs: Any, tiny_settings: Tiny, tmp_path: Path) -> None:
    settings = tiny_settings(stages=STAGES, **CHANGES)
    train(settings, tmp_path / "whole", quiet=True)
    folder = tmp_path / "interrupted"
    train(tiny_settings(stages=STAGES[:2], **CHANGES), folder, quiet=True)
    runs.interrupted(settings, folder, lambda: _step_of(folder) > 0)  # within recognise or point
    train(settings, folder, quiet=True)
    assert runs.same(runs.weights(folder), runs.weights(tmp_path / "whole"))
    bundle = Bundle.load(tmp_path / "whole" / "bundle")
    assert runs.same(bundle.net.state_dict(), runs.weights(tmp_path / "whole"))
    assert bundle.net.repeated_tensors()


def _step_of(folder: Path) -> int:
    """Steps done of the running epoch, as the checkpoint says."""
    step: int = torch.load(folder / "last.ckpt", weights_only=True)["step"]
    return step


@pytest.mark.usefixtures("_tiny_world")
def test_two_processes_train_all_views(runs: Any, tmp_path: Path) -> None:
    changes = {**CHANGES, "stages": STAGES[:3]}
    runs.of_two_processes(tmp_path / "two", changes)


def test_recipes_are_fitted_to_a_shared_encoder() -> None:
    own = train_settings("signs", assignments=["network.shared_encoder=true", "network.own_norms=true"])
    assert "glance" in own.stages
    assert not own.glance.fresh
    assert not own.finetune.freeze_glance
    assert not own.recognise.freeze_encoders
    one = train_settings("signs", network={"shared_encoder": True})
    assert one.stages == ("backbone", "recognise", "point", "finetune", "point")
    two = train_settings("signs")
    assert two.glance.fresh
    assert two.finetune.freeze_glance
    assert two.recognise.freeze_encoders


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"network": {"shared_encoder": True}},
            "glance would train the shared encoder on glances only.* Or set network.own_norms=true",
        ),
        ({"network": SHARED, "glance": {"fresh": True}}, "glance.fresh=true needs two encoders"),
        ({"network": SHARED, "recognise": {"freeze_glance": True}}, "recognise.freeze_glance=true needs two encoders"),
        ({"network": THREE, "stages": ["backbone", "joint"]}, "the stage joint does not train the batch norms"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], sentence: str) -> None:
    plain = {"data": {"source": "here"}, **changes}
    plain["network"] = {"backbone": "test_resnet", "glance_px": 32, "view": {"height_px": 64, "width_px": 64}} | plain[
        "network"
    ]
    plain["network"].setdefault("focus", ["32"])
    with pytest.raises(BadSetting, match=sentence):
        from_plain(TrainSettings, plain)


def test_what_the_user_named_is_refused_instead_of_changed() -> None:
    one = ["network.shared_encoder=true"]
    with pytest.raises(BadSetting, match="the stage glance would train the shared encoder on glances only"):
        train_settings("signs", stages=["initialise", "1"], assignments=one)
    with pytest.raises(BadSetting, match="finetune.freeze_glance=true needs two encoders"):
        train_settings("signs", assignments=[*one, "finetune.freeze_glance=true"])
