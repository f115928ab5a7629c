"""Where the evidence lies: closed forms, a backbone that learnt from labels alone, and a glance encoder that learns from it."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.data.splits import MemorySplit, shuffled
from glancefocus.errors import BadSetting
from glancefocus.look import as_batch
from glancefocus.network.build import build_backbone
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import Encoder
from glancefocus.region import top_left
from glancefocus.settings import View, native, whole
from glancefocus.training.initialise import EvidenceShown, InitialiseStage, cells_of
from glancefocus.training.settings import InitialiseSettings, TrainSettings
from glancefocus.training.stage import Moment, TrainingContext
from glancefocus.training.stage_aim import PointStage
from glancefocus.training.teacher import BackboneEvidence, Places, aims_at, largest_extent_px, strongest_places
from glancefocus.values import from_plain

World = Callable[..., TrainingContext]


def test_the_place_is_the_middle_of_the_evidence_in_the_patch_that_holds_the_most() -> None:
    evidence = torch.zeros(2, 6, 8)
    evidence[0, 2, 5] = 1
    evidence[0, 2, 6] = 3
    evidence[0, 5, 0] = 3.5  # stronger than any one of them, weaker than both
    evidence[0, 0, 0] = -100  # what speaks against the label does not count
    evidence[1, 5, 7] = 2  # in the corner
    places = strongest_places(evidence, (96, 128), extent_px=48)
    torch.testing.assert_close(places.centre, torch.tensor([[2.5 * 16, 6.25 * 16], [5.5 * 16, 7.5 * 16]]))
    # 9 cells of 48 would hold 9/48 of evidence all over the image; in the corner there are 4.
    torch.testing.assert_close(places.weight, torch.tensor([(4 / 7.5 - 9 / 48) / (1 - 9 / 48), 1.0]))


def test_evidence_that_does_not_fit_into_one_patch_is_not_combined() -> None:
    evidence = torch.zeros(1, 8, 8)
    evidence[0, 4, 2], evidence[0, 4, 4] = 2, 1.9  # 16 px cells: from the first to the last of them 48 px
    one = strongest_places(evidence, (128, 128), extent_px=32)
    torch.testing.assert_close(one.centre, torch.tensor([[4.5 * 16, 2.5 * 16]]))
    both = strongest_places(evidence, (128, 128), extent_px=64)
    torch.testing.assert_close(both.centre, torch.tensor([[4.5 * 16, 16 * (2.5 + 2 * 1.9 / 3.9)]]))


@pytest.mark.parametrize("value", [1.0, 0.0, -1.0])
def test_evidence_all_over_the_image_has_no_weight(value: float) -> None:
    places = strongest_places(torch.full((1, 6, 8), value), (96, 128), extent_px=48)
    assert float(places.weight) == pytest.approx(0, abs=1e-6)
    assert bool(places.centre.isfinite().all())


def test_a_patch_as_large_as_the_image_or_smaller_than_a_cell_is_fine() -> None:
    evidence = torch.rand(3, 4, 4)
    assert bool((strongest_places(evidence, (64, 64), extent_px=64).weight <= 1).all())
    places = strongest_places(evidence, (64, 64), extent_px=8)
    strongest = torch.stack([(e == e.max()).nonzero()[0] for e in evidence])
    torch.testing.assert_close(places.centre, strongest * 16.0 + 8)


@pytest.mark.parametrize("patch_px", [48, torch.tensor([32, 48, 64, 96])])
def test_aims_are_those_whose_patches_have_these_middles(patch_px: int | torch.Tensor) -> None:
    centre = torch.tensor([[60.0, 60.0], [48.0, 100.0], [0.0, 10.0], [96.0, 128.0]])
    where = aims_at(centre, (96, 128), patch_px)
    assert float(where.min()) >= 0
    assert float(where.max()) <= 1
    sizes = torch.as_tensor(patch_px).expand(4).tolist()
    for row, px in enumerate(sizes):
        corner = top_left(where[row : row + 1] + 1e-6, 96, 128, px)[0].float()
        wanted = torch.stack(
            [(centre[row, 0] - px / 2).clamp(0, 96 - px), (centre[row, 1] - px / 2).clamp(0, 128 - px)]
        )
        assert float((corner - wanted).abs().max()) <= 1


def test_a_backbone_that_learnt_from_labels_alone_shows_where_the_squares_are() -> None:
    generator = torch.Generator().manual_seed(0)

    def squares(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        images = 0.3 * torch.randn(count, 3, 128, 128, generator=generator)
        labels = torch.randint(0, 2, (count,), generator=generator)
        corner = torch.randint(0, 128 - 20, (count, 2), generator=generator)
        for row, (label, (top, left)) in enumerate(zip(labels.tolist(), corner.tolist(), strict=True)):
            images[row, label, top : top + 20, left : left + 20] += 2
        return images, labels, corner + 10.0

    torch.manual_seed(0)
    encoder = Encoder(build_backbone("test_resnet", 2))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3)
    for _ in range(40):
        images, labels, _ = squares(16)
        loss = F.cross_entropy(encoder.own_head(encoder(images).vector), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    images, labels, middle = squares(100)
    places = strongest_places(encoder.eval().evidence(images, labels), (128, 128), extent_px=48)
    away = (places.centre - middle).abs().amax(dim=1)
    assert float((away < 24).float().mean()) > 0.9


def test_a_place_is_shared_among_the_four_cells_around_it() -> None:
    # Cells of 20x25 px, with their middles at 10, 30, 50 and at 12.5, 37.5, 62.5, 87.5.
    centre = torch.tensor([[30.0, 62.5], [35.0, 68.75], [0.0, 100.0], [-9.0, 12.5]])
    cells = cells_of(centre, (60, 100), (3, 4))
    wanted = torch.zeros(4, 3, 4)
    wanted[0, 1, 2] = 1
    wanted[1, 1, 2], wanted[1, 1, 3], wanted[1, 2, 2], wanted[1, 2, 3] = 0.75 * 0.75, 0.75 * 0.25, 0.25 * 0.75, 0.0625
    wanted[2, 0, 3] = 1
    wanted[3, 0, 0] = 1
    torch.testing.assert_close(cells, wanted)


def test_the_loss_of_a_map_is_weighted_by_the_weight_of_the_place() -> None:
    shown = EvidenceShown(5)
    map_ = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0))
    places = Places(torch.tensor([[30.0, 62.5], [10.0, 12.5]]), torch.tensor([1.0, 0.5]))
    assert shown(map_, places, (60, 100)).item() == pytest.approx(0.75 * math.log(12), abs=1e-6)  # it knows nothing yet
    torch.nn.init.ones_(shown.speaks_for.weight)
    scores = map_.sum(dim=1).flatten(1).log_softmax(dim=1)
    wanted = -(float(scores[0, 6]) + 0.5 * float(scores[1, 0])) / 2
    assert shown(map_, places, (60, 100)).item() == pytest.approx(wanted, abs=1e-5)


@pytest.fixture
def square_glances(square_world: World) -> World:
    """The world of bright squares with a glance encoder that has everything to learn, but sees nothing of colour, the class."""

    def make() -> TrainingContext:
        context = square_world(looks=2)
        torch.manual_seed(0)
        encoder = Encoder(build_backbone("test_resnet", 2, {"output_stride": 8}))
        grey = encoder.backbone.forward_features
        encoder.backbone.forward_features = lambda images: grey(images.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1))
        parts = (encoder, context.net.focus_encoder, context.net.classifier, context.net.policy)
        context.net = GlanceFocus(context.net.settings, *parts)
        glance = {"epochs": 1, "lr": 3e-3, "optimizer": "adamw", "weight_decay": 0.0, "evidence_weight": 1.0}
        network = {"backbone": "none", "glance_px": 32}
        context.settings = from_plain(TrainSettings, {"data": {"source": "here"}, "network": network, "glance": glance})
        return context

    return make


def shown_at(stage: InitialiseStage, context: TrainingContext) -> float:
    """The share of validation images whose square lies in, or beside, the cell that the map speaks for the most."""
    val = context.data.val
    assert val.boxes is not None
    assert stage.shown is not None
    images, _ = next(iter(val.batches([range(len(val))])))
    with torch.no_grad():
        map_ = context.net.glance_encoder.eval()(as_batch(images, context.net.settings.view).whole).map
        scores = stage.shown.speaks_for(map_)[:, 0]
    best = scores.flatten(1).argmax(dim=1)
    rows, columns = scores.shape[-2:]
    found = torch.stack([(best // columns + 0.5) * 32 / rows, (best % columns + 0.5) * 32 / columns], dim=1)
    middle = val.boxes.unflatten(1, (2, 2)).mean(dim=1)
    return float(((found - middle).abs().amax(dim=1) <= 32 / rows).float().mean())


@pytest.mark.parametrize("taught", ["its own places", "those of others"])
def test_a_glance_encoder_learns_from_the_backbone_where_things_are(
    taught: str, square_glances: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = square_glances()
    stage = InitialiseStage("glance", context)
    if taught == "those of others":
        whole = BackboneEvidence.places

        def others(self: BackboneEvidence, images: Tensor, labels: Tensor, moment: Moment) -> Places:
            right = whole(self, images, labels, moment)
            return Places(right.centre.roll(1, 0), right.weight)

        monkeypatch.setattr(BackboneEvidence, "places", others)
    stage.train_mode()
    train = context.data.train
    order = [batch for epoch in range(2) for batch in shuffled(len(train), 50, epoch)]
    for step, (images, labels) in enumerate(train.batches(order, 1)):
        moment = Moment(step / len(order), torch.Generator().manual_seed(step), torch.as_tensor(order[step]), 1)
        stage.update(images, labels, moment)
    share = shown_at(stage, context)
    assert share > 0.8 if taught == "its own places" else share < 0.5


def test_evidence_is_computed_once_for_all_stages_until_the_focus_encoder_changes(
    small_net: Callable[..., GlanceFocus], context_of: World
) -> None:
    net = small_net()
    images = torch.randint(0, 256, (12, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = MemorySplit(images, torch.arange(12) % 3, net.settings.view)
    context = context_of(net, split, split, glance={"evidence_weight": 1.0})
    seen: list[int] = []
    whole = net.focus_encoder.evidence

    def counted(some: Tensor, labels: Tensor) -> Tensor:
        seen.append(len(some))
        return whole(some, labels)

    net.focus_encoder.evidence = counted  # type: ignore[method-assign]
    batch, labels = next(split.pixel_batches([range(6)]))
    moment = Moment(0, torch.Generator().manual_seed(0), torch.arange(6), 1)
    for make in (lambda: InitialiseStage("glance", context), lambda: PointStage(context)):
        make().update(batch, labels, moment)
    assert sum(seen) == 12
    with torch.no_grad():
        next(net.focus_encoder.parameters()).add_(0.1)
    PointStage(context).update(batch, labels, moment)
    assert sum(seen) == 24


def test_a_weight_of_evidence_that_makes_no_sense_is_refused() -> None:
    plain = {"data": {"source": "signs"}, "network": {"backbone": "test_resnet"}}
    with pytest.raises(BadSetting, match="evidence_weight must be a number from 0 to 1,000,000, but got -1"):
        InitialiseSettings(evidence_weight=-1.0)
    with pytest.raises(
        BadSetting,
        match="backbone.evidence_weight has no use: it applies to the glance encoder only. Set glance.evidence_weight",
    ):
        from_plain(TrainSettings, {**plain, "backbone": {"evidence_weight": 1.0}})
    taught = {"glance": {"evidence_weight": 1.0}}
    with pytest.raises(BadSetting, match="the stage glance would train the shared encoder on glances only"):
        from_plain(TrainSettings, {**plain, **taught, "network": {"backbone": "test_resnet", "shared_encoder": True}})
    with pytest.raises(BadSetting, match="learns from the focus encoder.*must come before it"):
        from_plain(TrainSettings, {**plain, **taught, "stages": ["glance", "backbone"]})


def test_signs_too_large_for_small_scenes_are_refused_before_anything_is_drawn() -> None:
    plain = {"data": {"source": "signs", "signs": {"height": 480, "width": 480, "radius_max_px": 50}}}
    plain |= {"network": {"backbone": "test_resnet"}, "stages": ["small"], "small": {"side_px": 160}}
    with pytest.raises(BadSetting, match=r"radius of up to 50 px .* 160x160 px. Set small.side_px to at least 200"):
        from_plain(TrainSettings, plain)


def test_the_largest_view_covers_its_extent_and_the_whole_image_its_shorter_side() -> None:
    assert largest_extent_px([native(32), native(48)], (96, 128)) == 48
    assert largest_extent_px([native(32), View(32, 0.75)], (96, 128)) == 72
    assert largest_extent_px([native(32), whole(64)], (96, 128)) == 32
    assert largest_extent_px([whole(48), whole(64)], (96, 128)) == 96
