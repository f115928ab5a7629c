"""Networks that are trained without a glance, and with policies that are rules (the paper's ablation)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import glancefocus as gf
from glancefocus.data.splits import MemorySplit
from glancefocus.errors import BadSetting
from glancefocus.look import Aim, Look
from glancefocus.network.model import GlanceFocus
from glancefocus.settings import ViewSettings
from glancefocus.training.loop import build_stage
from glancefocus.training.recipes import train_settings
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import Moment, TrainingContext

VIEW = ViewSettings(fit="whole", height_px=64, width_px=64)
Make = Callable[..., TrainingContext]


def noise(count: int, seed: int) -> MemorySplit:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 64, 64), generator=generator, dtype=torch.uint8)
    return MemorySplit(images, torch.arange(count) % 3, VIEW)


@pytest.fixture
def make_context(small_net: Callable[..., GlanceFocus], context_of: Make) -> Make:
    def make(kind: str = "learnt", first_view: str = "glance", **settings: Any) -> TrainingContext:
        net = small_net(first_view=first_view, policy={"units": 16, "conv_channels": 4, "kind": kind})
        network = {"backbone": "none", "first_view": first_view, "policy": {"kind": kind}}
        return context_of(net, noise(12, 0), noise(6, 1), network=network, stages=["recognise"], **settings)

    return make


def places_while_training(stage: Any, context: TrainingContext, seed: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(first places, where each focus look was aimed) in one update."""
    net, first, aimed = context.net, [], []
    glance, focus = net.glance, net.focus

    def noting_glance(scene: Any, where: torch.Tensor | None = None) -> Look:
        look = glance(scene, where)
        first.append(torch.zeros(0, 2) if look.aim is None else look.aim.where)
        return look

    def noting_focus(look: Look, aim: Aim) -> Look:
        aimed.append(aim.where)
        return focus(look, aim)

    net.glance, net.focus = noting_glance, noting_focus  # type: ignore[method-assign]
    try:
        stage.train_mode()
        images, labels = next(iter(context.data.train.batches([range(6)])))
        numbers = stage.update(images, labels, Moment(0.0, torch.Generator().manual_seed(seed)))
    finally:
        del net.glance, net.focus
    assert numbers["loss"] > 0
    return first[0], aimed


@pytest.mark.parametrize("name", ["recognise", "finetune"])
def test_a_centre_corner_network_is_trained_at_the_centre_and_the_corners(make_context: Make, name: str) -> None:
    context = make_context("centre_corner", finetune={"deviation": 0.1})
    stage = build_stage(name, context)
    _, aimed = places_while_training(stage, context, 0)
    assert [each.tolist() for each in aimed] == [[[0.5, 0.5]] * 6, [[0.0, 0.0]] * 6]
    assert len(stage.validate(context.data.val)["val_accuracy"]) == 3


@pytest.mark.parametrize("name", ["recognise", "finetune"])
def test_a_random_network_is_trained_at_places_drawn_anew(make_context: Make, name: str) -> None:
    context = make_context("random", "random", finetune={"deviation": 0.1})
    stage = build_stage(name, context)
    (first, aimed), (other_first, other) = (places_while_training(stage, context, seed) for seed in (0, 1))
    assert len({tuple(place) for place in first.tolist()}) == 6
    assert not torch.equal(first, other_first)
    assert not torch.equal(aimed[0], other[0])


def test_without_a_glance_the_glance_encoder_is_initialised_on_first_views(make_context: Make) -> None:
    context = make_context(first_view="centre")
    stage = build_stage("glance", context)
    images, _ = next(iter(context.data.val.batches([range(6)])))
    seen = []
    encoder = context.net.glance_encoder
    hook = encoder.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    accuracy = stage.validate(context.data.val)["val_accuracy"]
    hook.remove()
    assert len(accuracy) == 1
    torch.testing.assert_close(seen[0], images[:, :, 16:48, 16:48], rtol=0, atol=1e-6)


def test_the_policy_can_be_trained_after_a_random_first_view(make_context: Make) -> None:
    context = make_context(first_view="random", aim={"lr": 0.01})
    stage = build_stage("aim", context)
    first, _ = places_while_training(stage, context, 0)
    assert len({tuple(place) for place in first.tolist()}) == 6
    assert len(stage.validate(context.data.val)["val_accuracy"]) == 3


def test_a_recipe_leaves_out_what_a_rule_cannot_learn() -> None:
    usual = train_settings("signs")
    rule = train_settings("signs", assignments=["network.policy.kind=random"])
    kept = [name for name in usual.stages if name not in ("point", "aim")]
    assert {"point", "finetune"} <= set(usual.stages)
    assert list(rule.stages) == kept
    assert rule.recognise.aims == "random"
    crop = train_settings("signs", assignments=["network.first_view=centre"])
    assert crop.network.first_view == "centre"
    assert [name for name in usual.stages if name != "small_glance"] == list(crop.stages)
    shared = ["network.shared_encoder=true", "network.first_view=centre", "network.policy.kind=centre_corner"]
    both = train_settings("signs", assignments=shared)
    assert list(both.stages) == [name for name in kept if name != "glance"]
    norms = train_settings("signs", assignments=[*shared, "network.own_norms=true"])
    assert "glance" in norms.stages
    assert not norms.glance.fresh


def test_stages_that_a_rule_cannot_have_get_their_sentence() -> None:
    kind = ["network.policy.kind=centre_corner"]
    with pytest.raises(BadSetting, match="stage aim trains the policy, but this network aims by a rule"):
        train_settings("signs", stages=["1,2"], assignments=kind)
    with pytest.raises(BadSetting, match="recognise.aims=evidence prepares for a learnt policy"):
        train_settings("signs", stages=["initialise,1"], assignments=[*kind, "recognise.aims=evidence"])
    with pytest.raises(
        BadSetting, match="small_glance trains on glances, but the first look of this network is a patch"
    ):
        train_settings("signs", stages=["small_glance,1"], assignments=["network.first_view=centre"])


def test_a_shared_encoder_is_not_trained_on_glances_only() -> None:
    usual, shared = train_settings("signs"), train_settings("signs", network={"shared_encoder": True})
    assert "glance" in usual.stages
    assert list(shared.stages) == [name for name in usual.stages if name != "glance"]
    with pytest.raises(BadSetting, match="stage glance would train the shared encoder on glances only"):
        train_settings("signs", network={"shared_encoder": True}, stages=["initialise,1"])


def test_without_a_stage_of_its_own_the_glance_encoder_starts_as_the_backbone(
    small_net: Callable[..., GlanceFocus], context_of: Make
) -> None:
    for stages, copied in ((["backbone", "recognise"], True), (["backbone", "glance"], False)):
        context = context_of(small_net(), noise(12, 0), noise(6, 1), stages=stages)
        build_stage("backbone", context).finish()
        glance, focus = context.net.glance_encoder.state_dict(), context.net.focus_encoder.state_dict()
        assert all(torch.equal(glance[name], focus[name]) for name in focus) == copied


NETWORK = {
    "backbone": "test_resnet",
    "classes": 5,
    "glance_px": 32,
    "focus": ["32"],
    "looks": 3,
    "classifier_units": 8,
    "view": {"fit": "whole", "height_px": 96, "width_px": 96},
}


@pytest.mark.usefixtures("_tiny_world")
@pytest.mark.parametrize(
    ("kind", "first_view", "stages"),
    [
        ("random", "random", ["backbone", "glance", "recognise", "finetune"]),
        ("centre_corner", "centre", ["backbone", "recognise"]),
        ("learnt", "random", ["backbone", "glance", "recognise", "aim"]),
    ],
)
def test_a_whole_run_leaves_a_bundle_that_looks_as_it_was_trained(
    kind: str,
    first_view: str,
    stages: list[str],
    tiny_settings: Callable[..., TrainSettings],
    tmp_path: Path,
) -> None:
    policy = {"units": 8, "conv_channels": 2, "kind": kind}
    settings = tiny_settings(network={**NETWORK, "first_view": first_view, "policy": policy}, stages=stages)
    trained = train(settings, tmp_path / "run", quiet=True)
    bundle = gf.load(tmp_path / "run" / "bundle")
    assert bundle.fingerprint == trained.fingerprint
    assert (bundle.settings.first_view, bundle.settings.policy.kind) == (first_view, kind)
    scenes = torch.randint(0, 256, (3, 3, 96, 96), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    outcome = bundle.predict(list(scenes), looks=3)
    if kind == "centre_corner":
        assert outcome.where[:, 0].tolist() == [[0.0, 0.0]] * 3
        assert outcome.first_box(0) == (32, 32, 64, 64)
    else:
        assert outcome.first_where is not None
        assert len({tuple(place) for place in outcome.first_where.tolist()}) == 3
