"""The stage point: a policy that is shown where the backbone finds its evidence learns to aim there."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glancefocus.data.augmentation import AugmentSettings
from glancefocus.data.splits import FileSplit, MemorySplit, shuffled
from glancefocus.errors import BadRun, BadSetting
from glancefocus.evaluation.every_look import evaluate_every_look, holds
from glancefocus.look import Aim, Look, as_batch
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import Encoding
from glancefocus.settings import native, whole
from glancefocus.training.episode import MixedGlances, play
from glancefocus.training.recipes import train_settings
from glancefocus.training.settings import PointSettings, TrainSettings
from glancefocus.training.stage import Moment, TrainingContext
from glancefocus.training.stage_aim import PointStage, pointing_loss, return_loss
from glancefocus.training.teacher import BackboneEvidence, Places
from glancefocus.values import from_plain

World = Callable[..., TrainingContext]


def learn(context: TrainingContext, steps: int = 90, seed: int | None = 5) -> PointStage:
    stage = PointStage(context)
    stage.begin()
    stage.train_mode()
    train = context.data.train
    order = [batch for epoch in range(1 + steps * 100 // len(train)) for batch in shuffled(len(train), 100, epoch)]
    for step, (images, labels) in enumerate(train.batches(order[:steps], seed)):
        rows = torch.as_tensor(order[step])
        stage.update(images, labels, Moment(step / steps, torch.Generator().manual_seed(step), rows, seed))
    return stage


def hit_rate(context: TrainingContext) -> list[float]:
    val = context.data.val
    assert val.boxes is not None
    return evaluate_every_look(context.net, val).hit_rate_per_focus(val.boxes)


@pytest.mark.parametrize("head", ["conv", "linear"])
@pytest.mark.parametrize("augment", [{}, {"shift_px": 3}, {"flip": True}], ids=["still", "shifted", "flipped"])
def test_the_policy_learns_to_point(head: str, augment: dict[str, int], square_world: World) -> None:
    context = square_world(head, looks=3, point={"lr": 5e-3})
    train = context.data.train
    assert isinstance(train, MemorySplit)
    context.data.train = MemorySplit(train.images, train.labels, train.view, **augment)  # type: ignore[arg-type]
    assert hit_rate(context)[0] < 0.2
    learn(context)
    assert min(hit_rate(context)) > 0.8


class Colours(nn.Module):
    """Encodes by hand how much red and green a patch shows, without steps: half of a square counts half."""

    vector_features = 2

    def forward(self, images: Tensor) -> Encoding:
        colours = (images[:, :2] - 0.26).clamp_min(0)
        return Encoding(colours.sum(dim=1, keepdim=True), colours.sum(dim=(2, 3)) / 12)

    def own_head(self, vector: Tensor) -> Tensor:
        return 6 * vector


def test_the_policy_learns_from_gradients_through_crops_alone(square_world: World) -> None:
    context = square_world(looks=2, point={"lr": 5e-3, "evidence_weight": 0.0, "crop_weight": 1.0, "deviation": 0.2})
    before = hit_rate(context)[0]
    assert before < 0.2
    reads_by_steps, context.net.focus_encoder = context.net.focus_encoder, Colours()  # type: ignore[assignment]
    learn(context)
    context.net.focus_encoder = reads_by_steps
    assert hit_rate(context)[0] > 0.4


def corrected(context: TrainingContext) -> float:
    """Of the first looks that miss because the glance shows two squares, the share that is followed by one that hits."""
    val, net = context.data.val, context.net
    assert val.boxes is not None
    images, _ = next(iter(val.batches([range(len(val))])))
    with torch.no_grad():
        misled = MixedGlances(net, 0.999, torch.Generator().manual_seed(1))
        looks = play(misled, as_batch(images, net.settings.view), 3, net.policy)
    image_hw, view = (images.shape[-2], images.shape[-1]), net.candidates[0]
    aims = [look.aim.where for look in looks[1:] if look.aim is not None]
    first, second = (holds(where, val.boxes, image_hw, view) for where in aims)
    assert float((~first).float().mean()) > 0.2  # there is something to correct
    return float(second[~first].float().mean())


def test_a_policy_that_was_misled_by_glances_learns_to_look_elsewhere(square_world: World) -> None:
    shares = {}
    for share in (0.0, 0.7):
        context = square_world(looks=3, place=True, point={"lr": 5e-3, "mixed_glances": share})
        learn(context, steps=200)
        shares[share] = corrected(context)
    assert shares[0.7] > 1.6 * shares[0.0]


def test_a_stage_that_learns_from_nothing_is_refused() -> None:
    with pytest.raises(BadSetting, match="would learn nothing"):
        PointSettings(evidence_weight=0.0)


def test_places_that_are_not_those_of_the_image_teach_nothing(
    square_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = BackboneEvidence.places

    def others(self: BackboneEvidence, images: Tensor, labels: Tensor, moment: Moment) -> Places:
        right = whole(self, images, labels, moment)
        return Places(right.centre.roll(1, 0), right.weight)

    monkeypatch.setattr(BackboneEvidence, "places", others)
    context = square_world(looks=2, point={"lr": 5e-3})
    learn(context)
    assert hit_rate(context)[0] < 0.25


def test_places_are_computed_once_if_the_augmentation_can_be_followed(square_world: World) -> None:
    context = square_world(looks=2)
    train = context.data.train
    assert isinstance(train, MemorySplit)
    seen: list[int] = []
    encoder = context.net.focus_encoder
    whole = encoder.evidence

    def counted(images: Tensor, labels: Tensor) -> Tensor:
        seen.append(len(images))
        return whole(images, labels)

    encoder.evidence = counted  # type: ignore[method-assign]
    learn(context, steps=3)
    assert sum(seen) == len(train)
    seen.clear()
    evidence = BackboneEvidence(context)
    images, labels = next(iter(train.batches([range(10)])))
    at_once = evidence.places(images, labels, Moment(0, torch.Generator()))  # unknown images
    assert seen == [10]
    known = evidence.places(images, labels, Moment(0, torch.Generator(), torch.arange(10), 3))
    torch.testing.assert_close(known.centre, at_once.centre)
    torch.testing.assert_close(known.weight, at_once.weight)


def test_places_that_left_the_image_have_no_weight(square_world: World) -> None:
    context = square_world(looks=2)
    train = context.data.train
    assert isinstance(train, MemorySplit)
    moved = MemorySplit(train.images, train.labels, train.view, shift_px=8)
    context.data.train = moved
    rows = torch.arange(400)
    images, labels = next(moved.batches([rows.tolist()], seed=3))
    places = BackboneEvidence(context).places(images, labels, Moment(0, torch.Generator(), rows, 3))
    out = ((places.centre < 0) | (places.centre > 32)).any(dim=1)
    assert 10 < int(out.sum()) < 200
    assert float(places.weight[out].max()) == 0
    assert float(places.weight[~out].min()) > 0


def test_processes_share_the_work(square_world: World) -> None:
    context = square_world(looks=2)
    alone = BackboneEvidence(context)._of_all(context.data.train)
    shares = []
    for rank in range(3):
        context.accelerator = SimpleNamespace(
            process_index=rank, num_processes=3, device=torch.device("cpu"), reduce=lambda found, how: found
        )  # type: ignore[assignment]
        shares.append(BackboneEvidence(context)._of_all(context.data.train))
    for together, parts in zip(alone, zip(*shares, strict=True), strict=True):
        assert all(bool(part.any()) for part in parts)
        assert torch.equal(together, torch.stack(parts).sum(dim=0))


def test_evidence_is_computed_again_for_images_whose_augmentation_cannot_be_followed(square_world: World) -> None:
    context = square_world(looks=2)
    train = context.data.train
    images, labels = next(iter(train.batches([range(20)])))
    context.data.train = FileSplit([], train.labels, context.net.settings.view, AugmentSettings(flip=True))
    places = BackboneEvidence(context).places(images, labels, Moment(0, torch.Generator(), torch.arange(20), 3))
    assert train.boxes is not None
    middle = train.boxes[:20].unflatten(1, (2, 2)).mean(dim=1)
    assert float((places.centre - middle).abs().max()) < 4


def test_the_loss_is_the_weighted_logarithm_of_the_distance(look_with: Callable[..., Look]) -> None:
    places = Places(torch.tensor([[30.0, 50.0], [20.0, 20.0]]), torch.tensor([1.0, 0.5]))
    first = look_with([0.5, 0.5])
    second = replace(look_with([0.5, 0.5], number=2), aim=Aim(where=torch.zeros(2, 2), candidate=0))
    # In an image of 60x100 px patches of 20 px have 40x80 px of room; a quarter of their side is 5 px.
    means = torch.tensor([[[0.5, 0.5], [0.5, 0.125]]], requires_grad=True)  # there; 10 px too low
    loss = pointing_loss(means, [first, second], places, (60, 100), (native(20),))
    assert loss.item() == pytest.approx(0.5 * float(torch.tensor(5.0).log()) / 2, abs=1e-5)
    loss.backward()
    assert means.grad is not None
    assert float(means.grad[0, 1, 0]) > 0
    assert float(means.grad[0, 0].abs().max()) < 1e-5


def test_looks_at_the_whole_image_add_nothing_to_the_loss(look_with: Callable[..., Look]) -> None:
    places = Places(torch.tensor([[30.0, 50.0], [20.0, 20.0]]), torch.tensor([1.0, 1.0]))
    first = look_with([0.5, 0.5])
    means = torch.tensor([[[0.0, 0.0], [0.5, 0.125]]], requires_grad=True)
    views = (native(20), whole(40))
    for candidate, expected in ((1, 0.0), (torch.tensor([1, 0]), float(torch.tensor(5.0).log()) / 2)):
        second = replace(look_with([0.5, 0.5], number=2), aim=Aim(where=torch.zeros(2, 2), candidate=candidate))
        loss = pointing_loss(means, [first, second], places, (60, 100), views)
        assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_a_patch_is_charged_for_what_others_have_covered_in_vain(look_with: Callable[..., Look]) -> None:
    # In an image of 60x100 px patches of 20 px have 40x80 px of room. The first one lies at the top left; it contains only the
    # place of the second image.
    places = Places(torch.tensor([[50.0, 50.0], [10.0, 10.0]]), torch.tensor([0.5, 1.0]))
    aims = [torch.zeros(2, 2), torch.ones(2, 2)]
    later = [replace(look_with([0.5, 0.5], number=n + 2), aim=Aim(where=w, candidate=0)) for n, w in enumerate(aims)]
    looks = [look_with([0.5, 0.5]), *later]
    # The second one is 5 px lower and 10 px further right: 15 x 10 of its 400 px were covered.
    means = torch.tensor([[[0.0, 0.0]] * 2, [[5 / 40, 10 / 80]] * 2], requires_grad=True)
    loss = return_loss(means, looks, places, (60, 100), (native(20),))
    assert loss.item() == pytest.approx((150 / 400) / 2, abs=1e-6)
    loss.backward()
    assert means.grad is not None
    assert float(means.grad[1, 0].max()) < 0, "further away is better"
    assert float(means.grad[1, 1].abs().max()) == 0
    elsewhere = torch.tensor([[[0.0, 0.0]] * 2, [[0.5, 0.5]] * 2])
    assert float(return_loss(elsewhere, looks, places, (60, 100), (native(20),))) == 0
    # Evidence that is hardly concentrated, as in an image without an object: its place is in vain to 95 %.
    spread = Places(places.centre, torch.tensor([0.5, 0.05]))
    both = return_loss(means, looks, spread, (60, 100), (native(20),))
    assert both.item() == pytest.approx((1 + 0.95) * (150 / 400) / 2, abs=1e-6)


def test_a_policy_that_sees_nothing_learns_not_to_return(square_world: World) -> None:
    """Glances without contrast: the policy can only search, and by its patches knows whether it has found the square."""
    again = {}
    for weight in (0.0, 2.0):
        context = square_world(looks=3, place=True, point={"lr": 5e-3, "return_weight": weight})
        context.net.glance_encoder = Blind(context.net.glance_encoder)  # type: ignore[assignment]
        learn(context, steps=150)
        val = context.data.val
        assert val.boxes is not None
        again[weight] = evaluate_every_look(context.net, val).misses_seen_again(val.boxes)[0]
    assert again[0.0] > 0.8
    assert again[2.0] < 0.2


class Blind(nn.Module):
    """An encoder that sees nothing."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name in ("encoder", "_modules") else getattr(self.encoder, name)

    def forward(self, images: Tensor) -> Encoding:
        seen: Encoding = self.encoder(torch.zeros_like(images))
        return seen


def test_returning_is_refused_where_the_policy_does_not_know_its_places() -> None:
    plain = {"data": {"source": "signs"}, "network": {"backbone": "test_resnet", "classes": 5}}
    stages = {"stages": ["backbone", "recognise", "point"], "point": {"return_weight": 1.0}}
    with pytest.raises(BadSetting, match=r"does not get the places of earlier looks. Set network.policy.place=true"):
        from_plain(TrainSettings, {**plain, **stages})


def test_a_backbone_without_evidence_is_refused(square_world: World) -> None:
    context = square_world(looks=2)

    def from_a_token(images: Tensor, labels: Tensor) -> Tensor:
        return torch.zeros(images.shape[0], 4, 4)

    context.net.focus_encoder.evidence = from_a_token  # type: ignore[method-assign]
    with pytest.raises(BadSetting, match="finds no evidence at any place of its map"):
        learn(context, steps=1)


def test_a_policy_with_weights_that_are_not_finite_is_reported(square_world: World) -> None:
    context = square_world(looks=2)
    torch.nn.init.constant_(context.net.policy.critic.weight, float("nan"))
    with pytest.raises(BadRun, match=r"the policy's loss became nan"):
        learn(context, steps=1)


@pytest.mark.parametrize("wrong", [{"lr": 0.0}, {"deviation": -0.1}, {"lr_end": 0.0}, {"deviation_end": -1.0}])
def test_its_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match=f"{next(iter(wrong))} must be a number above 0"):
        PointSettings(**wrong)


def test_a_rate_that_would_rise_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"point.lr_end must be at most point.lr \(1e-05\), but got 0.0001"):
        PointSettings(lr=1e-5)


def test_a_deviation_that_would_grow_is_refused() -> None:
    with pytest.raises(
        BadSetting, match=r"point.deviation_end must be at most point.deviation \(0.001\), but got 0.005"
    ):
        PointSettings(deviation=0.001)


@pytest.mark.parametrize("stages", [["recognise", "aim", "point"], ["finetune", "point"], ["point", "recognise"]])
def test_its_place_is_between_recognising_and_aiming(stages: list[str]) -> None:
    plain = {"data": {"source": "signs"}, "network": {"backbone": "test_resnet"}}
    from_plain(TrainSettings, {**plain, "stages": ["recognise", "point", "aim", "finetune"]})
    with pytest.raises(BadSetting, match=r"point comes after recognise \(1\) and before aim \(2\) and finetune"):
        from_plain(TrainSettings, {**plain, "stages": stages})


def test_patches_of_several_sizes_learn_to_point_too(
    small_net: Callable[..., GlanceFocus], context_of: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = small_net(patch_px=(24, 40), looks=3)
    images = torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = MemorySplit(images, torch.arange(8) % 3, net.settings.view)
    places = Places(torch.tensor([[22.0, 40.0]]).expand(8, 2), torch.ones(8))
    monkeypatch.setattr(BackboneEvidence, "places", lambda *_: places)
    stage = PointStage(context_of(net, split, split, point={"lr": 1e-2}))
    stage.train_mode()
    batch, labels = next(split.pixel_batches([range(8)]))
    losses = []
    for step in range(60):
        moment = Moment(0, torch.Generator().manual_seed(step), torch.arange(8), 1)
        losses.append(stage.update(batch, labels, moment)["loss"])
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])


def test_after_stage_3_the_policy_learns_from_the_backbone_and_not_from_the_changed_focus_encoder() -> None:
    def learns_from_backbone(stages: str) -> bool:
        return train_settings("signs", stages=[stages]).is_taught("point")

    assert learns_from_backbone("initialise,1,point,3,point")
    assert not learns_from_backbone("initialise,1,point,3")  # until then the focus encoder of `signs` is the backbone
    assert not learns_from_backbone("initialise,1,3")
