"""What stages learn from the trained backbone: its answers, its evidence, and how looks are weighed."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import glancefocus as gf
from glancefocus.data.splits import MemorySplit, Split
from glancefocus.errors import BadSetting
from glancefocus.look import Look, as_batch
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import GLANCE_WEIGHT, Encoder, SummedClassifier
from glancefocus.network.policy import RandomPolicy
from glancefocus.settings import View, ViewSettings
from glancefocus.training.checkpoint import load_checkpoint, save_weights
from glancefocus.training.episode import SometimesRandom, play
from glancefocus.training.kept_weights import calibrated_loss, keep_best_between
from glancefocus.training.loop import build_stage
from glancefocus.training.run import train
from glancefocus.training.settings import TrainSettings
from glancefocus.training.stage import Moment, TrainingContext, fitted_weights, weigh_looks
from glancefocus.training.stage_recognise import RecogniseStage, separate_loss
from glancefocus.training.teacher import TEMPERATURE, Places, TaughtAims, Teacher, open_teacher, taught_loss
from glancefocus.values import from_plain

SIDE_PX = 64
VIEW = ViewSettings(fit="whole", height_px=SIDE_PX, width_px=SIDE_PX)


def small_net(**changes: Any) -> GlanceFocus:
    options = {"glance_px": 32, "focus": ["32", "whole@48"], "looks": 3, "classifier": "summed", **changes}
    return gf.create(backbone="test_resnet", classes=3, seed=0, view=VIEW, **options)


def noise(count: int, seed: int = 0, **more: Any) -> MemorySplit:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, SIDE_PX, SIDE_PX), dtype=torch.uint8, generator=generator)
    return MemorySplit(images, torch.arange(count) % 3, VIEW, **more)


@pytest.fixture
def context(context_of: Callable[..., TrainingContext]) -> TrainingContext:
    network = {"backbone": "test_resnet", "classes": 3}
    return context_of(small_net(), noise(20), noise(40, 1), network=network, batch_size=4)


def look_of(count: int) -> Look:
    with torch.inference_mode():
        return small_net().glance(torch.zeros(count, 3, SIDE_PX, SIDE_PX))


def test_without_a_teacher_the_loss_is_the_cross_entropy() -> None:
    logits, labels = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([1])
    assert float(taught_loss(logits, labels, None, 0.7)) == pytest.approx(math.log(4))
    assert float(taught_loss(logits, labels, logits, 0.0)) == pytest.approx(math.log(4))


def test_the_divergence_from_the_teacher_is_that_of_softened_answers() -> None:
    logits, labels = torch.zeros(1, 2), torch.tensor([0])
    # At temperature 2 the teacher's odds of 9 to 1 become 3 to 1.
    taught = torch.tensor([[math.log(9.0), 0.0]])
    divergence = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    expected = 0.6 * math.log(2) + 0.4 * TEMPERATURE**2 * divergence
    assert TEMPERATURE == 2.0
    assert float(taught_loss(logits, labels, taught, 0.4)) == pytest.approx(expected)


def test_lessons_are_what_the_backbone_says_of_the_whole_image(context: TrainingContext) -> None:
    encoder = context.net.focus_encoder
    teacher = Teacher(encoder, context)
    rows = torch.tensor([7, 2, 11])
    images, labels = next(iter(context.data.train.batches([rows.tolist()])))
    lesson = teacher.lesson(images, labels, Moment(0.0, torch.Generator(), rows, 5))
    with torch.inference_mode():
        expected = encoder.own_head(encoder(images).vector)
    torch.testing.assert_close(lesson.answers, expected, rtol=0, atol=1e-4)
    assert lesson.places.centre.shape == (3, 2)


def test_a_teacher_does_not_change_with_the_network(context: TrainingContext) -> None:
    teacher = Teacher(context.net.focus_encoder, context)
    images, labels = next(iter(context.data.train.batches([[0, 1]])))
    before = teacher.lesson(images, labels, Moment(0.0, torch.Generator()))
    with torch.no_grad():
        for weight in context.net.focus_encoder.parameters():
            weight.zero_()
    after = teacher.lesson(images, labels, Moment(0.0, torch.Generator()))
    assert torch.equal(before.answers, after.answers)


def test_kept_lessons_do_not_depend_on_the_order_of_the_batches(context: TrainingContext) -> None:
    kept = []
    for order in ([0, 1, 2, 3], [3, 9, 0, 1]):
        teacher = Teacher(context.net.focus_encoder, context)
        rows = torch.tensor(order)
        images, labels = next(iter(context.data.train.batches([order])))
        lesson = teacher.lesson(images, labels, Moment(0.0, torch.Generator(), rows, 1))
        kept.append(dict(zip(order, lesson.answers, strict=True)))
    assert torch.equal(kept[0][3], kept[1][3])
    assert torch.equal(kept[0][0], kept[1][0])


def test_a_teacher_of_other_classes_is_refused(context: TrainingContext, tmp_path: Path) -> None:
    other = gf.create(backbone="test_resnet", classes=4, view=VIEW, glance_px=32, focus="32")
    save_weights(tmp_path / "other.safetensors", other.focus_encoder.backbone)
    with pytest.raises(BadSetting, match=r"cannot be the teacher of a test_resnet with 3 classes"):
        open_teacher(tmp_path / "other.safetensors", context)
    save_weights(tmp_path / "own.safetensors", context.net.focus_encoder.backbone)
    assert isinstance(open_teacher(tmp_path / "own.safetensors", context), Teacher)


@pytest.mark.parametrize(
    ("stages", "changes", "sentence"),
    [
        (["glance"], {"glance": {"distill": 0.5}}, "glance learns from the trained backbone"),
        (["recognise", "aim"], {"recognise": {"aims": "evidence"}}, "recognise learns from the trained backbone"),
        (["backbone"], {"backbone": {"distill": 0.5}}, "backbone.distill has no use"),
    ],
)
def test_a_stage_that_learns_from_the_backbone_comes_after_it(
    stages: list[str], changes: dict[str, Any], sentence: str
) -> None:
    plain = {"data": {"source": "here"}, "network": {"backbone": "resnet18"}, "stages": stages, **changes}
    with pytest.raises(BadSetting, match=sentence):
        from_plain(TrainSettings, plain)
    if "teacher" not in plain and stages != ["backbone"]:
        assert from_plain(TrainSettings, {**plain, "teacher": "a.safetensors"}).is_taught(stages[0])
        assert from_plain(TrainSettings, {**plain, "stages": ["backbone", *stages]}).is_taught(stages[0])


def test_only_the_backbone_sees_images_of_half_their_size() -> None:
    plain = {"data": {"source": "here"}, "network": {"backbone": "resnet18"}}
    with pytest.raises(BadSetting, match="glance.half_size has no use: only the stage backbone"):
        from_plain(TrainSettings, {**plain, "glance": {"half_size": 0.5}})


def test_taught_aims_put_the_square_around_the_evidence() -> None:
    look = look_of(3)
    centre = torch.tensor([[32.0, 32.0], [0.0, 64.0], [20.0, 30.0]])
    places = Places(centre, torch.ones(3))
    aims = TaughtAims(places, (64, 64), {0: View(16, 16)}, torch.Generator(), deviation=0.0, random_share=0.0)
    # A square of 16 px can be moved by 48 px: its centre is at 8 + 48 y.
    expected = torch.tensor([[0.5, 0.5], [0.0, 1.0], [12 / 48, 22 / 48]])
    torch.testing.assert_close(aims.aim(look).where, expected)


def test_taught_aims_are_random_where_evidence_has_no_place() -> None:
    look, places = look_of(200), Places(torch.full((200, 2), 32.0), torch.zeros(200))
    aims = TaughtAims(places, (64, 64), {0: View(16, 16)}, torch.Generator(), deviation=0.0, random_share=0.0)
    assert float(aims.aim(look).where.std()) > 0.2


@pytest.mark.parametrize(("share", "moved"), [(0.0, 0), (1.0, 50)])
def test_a_share_of_the_aims_is_random(share: float, moved: int) -> None:
    look = look_of(50)
    centre = TaughtAims(
        Places(torch.full((50, 2), 32.0), torch.ones(50)),
        (64, 64),
        {0: View(16, 16)},
        torch.Generator(),
        deviation=0.0,
        random_share=0.0,
    )
    where = SometimesRandom(centre, share, torch.Generator()).aim(look).where
    assert int((where != 0.5).any(dim=1).sum()) == moved


def test_weights_follow_what_answers_are_worth_on_held_out_images() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (300,), generator=generator)
    good = 4 * torch.nn.functional.one_hot(labels, 3).float() + torch.randn(300, 3, generator=generator)
    bad, glance = 4 * torch.randn(300, 3, generator=generator), 4 * torch.randn(300, 3, generator=generator)
    weight = fitted_weights([good, bad, glance], labels, two=True)
    assert weight[0] > 5 * weight[1]
    assert weight[0] > 5 * weight[2]
    assert bool((weight > 0).all())


def test_few_images_move_weights_little() -> None:
    labels = torch.tensor([0, 1])
    answers = [torch.randn(2, 2, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    weight = fitted_weights(answers, labels, two=False)
    assert float((weight / torch.tensor([1.0, 1.0, GLANCE_WEIGHT])).log().abs().max()) < 1.0


def test_looks_are_weighed_with_validation_images(context: TrainingContext) -> None:
    classifier = context.net.classifier
    assert isinstance(classifier, SummedClassifier)
    before = classifier.weight.clone()
    weigh_looks(context)
    assert not torch.equal(before, classifier.weight)
    assert "classifier.weight" in context.net.state_dict()


@pytest.mark.parametrize(("freeze_glance", "first"), [(True, 1), (False, 0)])
def test_summed_looks_learn_separately(
    freeze_glance: bool, first: int, context_of: Callable[..., TrainingContext]
) -> None:
    """The loss is the mean cross-entropy of the own heads, without the glance if its encoder is frozen."""
    net = small_net()
    context = context_of(net, noise(20), noise(40, 1), recognise={"freeze_glance": freeze_glance}, batch_size=4)
    RecogniseStage(context)  # freezes what it does not train
    images, labels = next(iter(noise(4, 3).batches([range(4)])))
    looks = play(net, as_batch(images, VIEW), 3, RandomPolicy(range(2), torch.Generator().manual_seed(0)))
    encoders = [net.glance_encoder, net.focus_encoder, net.focus_encoder]
    own = [encoder.own_head(look.vector) for encoder, look in zip(encoders, looks, strict=True)]
    expected = sum(float(F.cross_entropy(answer, labels).detach()) for answer in own[first:]) / (3 - first)
    assert float(separate_loss(net, looks, labels).detach()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("focus", "looks"), [(["32"], 2), (["32", "whole@48"], 3)])
def test_summed_looks_learn_from_one_look_for_each_view(
    focus: list[str], looks: int, context_of: Callable[..., TrainingContext]
) -> None:
    stage = RecogniseStage(context_of(small_net(focus=focus, looks=3), noise(20), noise(40, 1), batch_size=4))
    images, labels = next(iter(noise(4, 3).batches([range(4)])))
    numbers = stage.update(images, labels, Moment(0.0, torch.Generator().manual_seed(0)))
    assert len(numbers["accuracy"]) == looks


TAUGHT = {
    "stages": ["backbone", "glance", "recognise", "point", "finetune"],
    "glance": {"distill": 0.7},
    "recognise": {"distill": 0.7, "aims": "evidence", "deviation": 0.1, "random_share": 0.3, "freeze_glance": True},
    "finetune": {"distill": 0.7, "random_share": 0.3, "freeze_glance": True},
    "network": {"focus": ["32"], "classifier": "summed", "policy": {"units": 8, "conv_channels": 2, "place": True}},
}


def test_a_resumed_run_learns_the_same_from_its_backbone(tiny_run: ModuleType, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(tiny_run.tiny_settings(**TAUGHT), whole, quiet=True)
    for stages in (TAUGHT["stages"][:2], TAUGHT["stages"][:3], TAUGHT["stages"]):
        train(tiny_run.tiny_settings(**{**TAUGHT, "stages": stages}), parts, quiet=True)
    one, other = load_checkpoint(whole / "last.ckpt"), load_checkpoint(parts / "last.ckpt")
    assert one is not None
    assert other is not None
    assert one.net.keys() == other.net.keys()
    assert all(torch.equal(one.net[name], other.net[name]) for name in one.net)


def test_an_encoder_ends_at_the_best_point_between_its_start_and_what_it_learnt() -> None:
    start, learnt = small_net().focus_encoder, small_net().focus_encoder
    with torch.no_grad():
        for weight in learnt.parameters():
            weight.add_(8.0)
    first, name = next(iter(start.parameters())).detach().clone(), next(iter(dict(learnt.named_parameters())))

    def kept(wanted: float) -> tuple[float, float]:
        """The share that is kept where the loss is least at this distance from the start, and the distance of what is kept."""
        end = copy.deepcopy(learnt)
        share = keep_best_between(start, end, lambda: abs(distance(end) - wanted))
        return share, distance(end)

    def distance(encoder: Encoder) -> float:
        return float((dict(encoder.named_parameters())[name].detach() - first).mean())

    assert kept(-3.0) == pytest.approx((0.0, 0.0), abs=1e-5)
    assert kept(3.5) == pytest.approx((0.5, 4.0), abs=1e-5)
    assert kept(20.0) == pytest.approx((1.0, 8.0), abs=1e-5)
    assert torch.equal(next(iter(start.parameters())), first), "the start is the teacher: it stays"


def test_losses_that_are_not_finite_are_never_the_best() -> None:
    losses = iter([2.0, math.nan, math.inf, 3.0, math.nan])
    start, learnt = small_net().focus_encoder, small_net().focus_encoder
    assert keep_best_between(start, learnt, lambda: next(losses)) == 0.0


def test_how_sure_an_encoder_is_does_not_count() -> None:
    answers, labels = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.0]]), torch.tensor([0, 0, 1, 1])
    assert calibrated_loss(answers, labels) == pytest.approx(calibrated_loss(5 * answers, labels), abs=1e-6)


@pytest.mark.parametrize("stage", ["glance", "recognise"])
def test_a_stage_that_learns_nonsense_from_few_images_ends_where_it_started(
    context_of: Callable[..., TrainingContext], stage: str
) -> None:
    """The teacher knows the colours; the labels of the training images are noise, and the rate is far too high."""
    network = {"backbone": "test_resnet", "classes": 3, "glance_px": 32, "classifier": "summed"}
    taught = {"distill": 0.01, "epochs": 1, "optimizer": "adamw"}
    rates = {"lr": 0.02} if stage == "glance" else {"encoder_lr": 0.02, "freeze_glance": True}
    own: dict[str, Any] = {"network": network, "batch_size": 4, "keep_statistics": True, "stages": ["backbone", stage]}
    context = context_of(small_net(), colours(24, shuffled=True), colours(40), **own, **{stage: taught | rates})
    net = context.net
    learn_colours(net.focus_encoder)
    net.glance_encoder.load_state_dict(net.focus_encoder.state_dict())
    context.teacher = Teacher(net.focus_encoder, context)
    encoder = net.glance_encoder if stage == "glance" else net.focus_encoder
    start = copy.deepcopy(encoder)
    built = build_stage(stage, context)
    for step, rows in enumerate(torch.split(torch.arange(24), 4)):
        images, labels = next(iter(context.data.train.batches([rows.tolist()])))
        built.update(images, labels, Moment(0.1 + step / 10, torch.Generator().manual_seed(step), rows, 1))
    learnt = own_accuracy(encoder, context.data.val)
    said = built.finish()
    assert own_accuracy(start, context.data.val) == 1.0
    assert learnt < 0.8, "the test must make it worse first"
    assert own_accuracy(encoder, context.data.val) == 1.0
    assert said is not None
    assert said.startswith(f"{stage}: " if stage == "glance" else "recognise, 32 and whole@48: ")


def colours(count: int, *, shuffled: bool = False) -> MemorySplit:
    """Images of one colour, whose labels are the colours, or noise."""
    labels = torch.arange(count) % 3
    images = torch.zeros(count, 3, SIDE_PX, SIDE_PX, dtype=torch.uint8)
    images[torch.arange(count), labels] = 255
    wrong = torch.randint(0, 3, (count,), generator=torch.Generator().manual_seed(0))
    return MemorySplit(images, wrong if shuffled else labels, VIEW)


def learn_colours(encoder: Encoder) -> None:
    split = colours(3)
    images, _ = next(iter(split.batches([[0, 1, 2]])))
    encoder.eval()
    with torch.inference_mode():
        vectors = encoder(F.interpolate(images, size=32)).vector
    head = encoder.backbone.get_classifier()
    with torch.no_grad():
        centred = vectors - vectors.mean(dim=0)
        head.weight.copy_(20 * centred / centred.square().sum(dim=1, keepdim=True))
        head.bias.copy_(-(head.weight @ vectors.mean(dim=0)))
    assert own_accuracy(encoder, split) == 1.0


def own_accuracy(encoder: Encoder, split: Split) -> float:
    images, labels = next(iter(split.batches([list(range(len(split)))])))
    encoder.eval()
    with torch.inference_mode():
        answers = encoder.own_head(encoder(F.interpolate(images, size=32)).vector)
    return float((answers.argmax(dim=1) == labels).float().mean())
