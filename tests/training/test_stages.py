"""Each stage changes exactly the parts that it should, by the loss that the paper writes."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glancefocus.data.splits import MemorySplit
from glancefocus.errors import BadRun, BadSetting
from glancefocus.look import Aim, ImageBatch, Look
from glancefocus.network.model import GlanceFocus
from glancefocus.network.policy import CentreCornerPolicy
from glancefocus.settings import ViewSettings
from glancefocus.training.episode import ExploringPolicy, MistakenGlances, play
from glancefocus.training.initialise import halved
from glancefocus.training.loop import build_stage
from glancefocus.training.settings import RecogniseSettings
from glancefocus.training.stage import Moment, Stage, TrainingContext, make_optimizer, set_rates, train_only
from glancefocus.training.stage_recognise import FinetuneStage, RecogniseStage, distillation_loss, recognition_loss

VIEW = ViewSettings(fit="whole", height_px=64, width_px=64)
LookWith = Callable[..., Look]
Make = Callable[..., TrainingContext]


def noise(count: int, seed: int) -> MemorySplit:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 64, 64), generator=generator, dtype=torch.uint8)
    return MemorySplit(images, torch.arange(count) % 3, VIEW)


@pytest.fixture
def make_context(small_net: Callable[..., GlanceFocus], context_of: Make) -> Make:
    """Makes a context with a small real network, in which all rates are large enough to see what moves."""

    def make(net: dict[str, Any] | None = None, **settings: Any) -> TrainingContext:
        return context_of(small_net(**(net or {})), noise(12, 0), noise(6, 1), **settings)

    return make


def updated(stage: Stage, context: TrainingContext, updates: int = 2) -> None:
    stage.train_mode()
    for number in range(updates):
        images, labels = next(iter(context.data.train.batches([range(6)])))
        stage.update(images, labels, Moment(0.0, torch.Generator().manual_seed(number)))


def test_pointing_changes_the_policy_but_for_its_critic(make_context: Make) -> None:
    context = make_context(point={"lr": 0.01})
    stage = build_stage("point", context)
    before = {tensor: value.clone() for tensor, value in context.net.state_dict().items()}
    updated(stage, context)
    changed = {name for name, value in context.net.state_dict().items() if not torch.equal(before[name], value)}
    own = {f"policy.{name}" for name, _ in context.net.policy.named_parameters()}
    assert changed == own - {"policy.critic.weight", "policy.critic.bias"}


def test_mistaken_glances_change_the_memory_of_the_classifier_only(make_context: Make) -> None:
    net = make_context().net
    images, _ = next(iter(noise(200, 5).batches([range(200)])))
    scene = ImageBatch(images)

    def mistaken_look() -> Look:
        return MistakenGlances(net, net.remember_again, 0.2, torch.Generator().manual_seed(3)).glance(scene)

    right, wrong, again = net.glance(scene), mistaken_look(), mistaken_look()
    assert torch.equal(wrong.memory, again.memory)
    mistaken = (wrong.memory != right.memory).any(dim=1)
    assert 20 < int(mistaken.sum()) < 60
    torch.testing.assert_close(wrong.memory[mistaken], right.memory.roll(1, 0)[mistaken])
    for same in ("logits", "vector", "map"):
        assert torch.equal(getattr(wrong, same), getattr(right, same))
    # The encoder is not taught the label of one image by the glance at another.
    wrong.memory[mistaken].sum().backward()
    assert all(p.grad is None or not bool(p.grad.any()) for p in net.glance_encoder.parameters())
    assert any(bool(p.grad.any()) for p in net.classifier.parameters() if p.grad is not None)


def test_a_classifier_that_saw_mistaken_glances_lets_patches_prove_a_glance_wrong(
    small_net: Callable[..., GlanceFocus], context_of: Make
) -> None:
    """The glance has always been right while learning, as it is of images that its encoder knows; now it is wrong."""
    trust = {}
    for share in (0.0, 0.5):
        net = small_net(looks=2, patch_px=64, classes=2)
        split = MemorySplit(torch.zeros(64, 3, 64, 64, dtype=torch.uint8), torch.arange(64) % 2, net.settings.view)
        split.images[1::2] = 255
        changes = {"classifier_lr": 0.3, "freeze_encoders": True, "own_head_weight": 0.0, "mistaken_glances": share}
        stage = RecogniseStage(context_of(net, split, split, recognise=changes))
        order = torch.randperm(64, generator=torch.Generator().manual_seed(0)).tolist()
        images, labels = next(iter(split.batches([order])))
        stage.train_mode()
        for number in range(60):
            stage.update(images, labels, Moment(0.0, torch.Generator().manual_seed(number)))
        with torch.no_grad():
            glance = net.glance(ImageBatch(images))
            assert torch.equal(glance.logits.argmax(dim=1), labels)
            other = torch.where(labels[:, None] == 0, glance.memory[labels == 1][:1], glance.memory[labels == 0][:1])
            answer = net.focus(replace(glance, memory=other), Aim(where=torch.full((64, 2), 0.5), candidate=0)).logits
        trust[share] = float(answer.softmax(dim=1).gather(1, labels[:, None]).min())
    assert trust[0.5] > 0.9
    assert trust[0.0] < 0.5


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_an_impossible_share_of_mistaken_glances_is_refused(share: float) -> None:
    with pytest.raises(
        BadSetting, match=f"mistaken_glances must be a number of at least 0 and below 1, but got {share}"
    ):
        RecogniseSettings(mistaken_glances=share)


def changed_parts(before: dict[str, Tensor], net: GlanceFocus) -> dict[str, set[str]]:
    """{part: what of it changed}, of parameters and of buffers such as the statistics of batch norms."""
    after = net.state_dict()
    parts: dict[str, set[str]] = {}
    for name in before:
        part, _, rest = name.partition(".")
        parts.setdefault(part, set())
        if not torch.equal(before[name], after[name]):
            parts[part].add(rest)
    return parts


@pytest.mark.parametrize(
    ("name", "settings", "trained"),
    [
        ("backbone", {}, {"focus_encoder"}),
        ("glance", {}, {"glance_encoder"}),
        ("glance", {"evidence_weight": 1.0}, {"glance_encoder"}),
        ("recognise", {}, {"glance_encoder", "focus_encoder", "classifier"}),
        ("recognise", {"freeze_glance": True}, {"focus_encoder", "classifier"}),
        ("recognise", {"freeze_encoders": True}, {"classifier"}),
        ("aim", {"lr": 0.01}, {"policy"}),
        ("finetune", {}, {"glance_encoder", "focus_encoder", "classifier"}),
        ("finetune", {"freeze_glance": True}, {"focus_encoder", "classifier"}),
        ("finetune", {"freeze_encoders": True}, {"classifier"}),
        ("joint", {}, {"glance_encoder", "focus_encoder", "classifier", "policy"}),
    ],
)
def test_a_stage_changes_what_it_trains_and_nothing_else(
    name: str, settings: dict[str, Any], trained: set[str], make_context: Make
) -> None:
    context = make_context(**{name: settings})
    stage = build_stage(name, context)
    stage.begin()
    before = {tensor: value.clone() for tensor, value in context.net.state_dict().items()}
    updated(stage, context)
    stage.validate(context.data.val)
    changed = changed_parts(before, context.net)
    for part, names in changed.items():
        if part in trained:
            module = getattr(context.net, part)
            missed = {n for n, p in module.named_parameters() if n not in names and bool(p.detach().any())}
            assert missed == set(), f"{name} left {missed} of {part} as they were"
            assert {n for n, _ in module.named_buffers()} <= names, f"the statistics of {part} stood still"
        else:
            assert names == set(), f"{name} changed {names} of {part}, which it should not"


def test_the_glance_encoder_starts_as_a_copy_of_the_focus_encoder(make_context: Make) -> None:
    context = make_context()
    stage = build_stage("glance", context)
    stage.begin()
    focus = context.net.focus_encoder.state_dict()
    assert all(torch.equal(tensor, focus[name]) for name, tensor in context.net.glance_encoder.state_dict().items())


def test_the_backbone_sees_half_size_images_first_and_whole_ones_at_the_end(make_context: Make) -> None:
    context = make_context(backbone={"half_size": 0.6})
    stage = build_stage("backbone", context)
    sides: list[int] = []
    context.net.focus_encoder.register_forward_pre_hook(lambda _, inputs: sides.append(inputs[0].shape[-1]))
    images, labels = next(iter(context.data.train.batches([range(6)])))  # of 64 px
    for progress in (0.0, 0.59, 0.6, 0.99):
        stage.update(images, labels, Moment(progress, torch.Generator()))
    stage.validate(context.data.val)
    assert sides == [32, 32, 64, 64, 64]


def test_half_of_the_size_is_a_whole_number_of_a_transformers_patches() -> None:
    assert halved(torch.empty(1, 3, 448, 300), token_px=1) == (224, 150)
    assert halved(torch.empty(1, 3, 448, 300), token_px=16) == (224, 144)  # 150 is 9.4 patches
    assert halved(torch.empty(1, 3, 16, 16), token_px=16) == (16, 16)


def test_a_shared_encoder_is_trained_once(make_context: Make) -> None:
    context = make_context({"shared_encoder": True})
    stage = RecogniseStage(context)
    parameters = [p for group in stage.optimizer.param_groups for p in group["params"]]
    assert len(parameters) == len({id(p) for p in parameters})
    updated(stage, context, 1)


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize(
    "net",
    [
        {},
        {"classifier": "cascaded", "first_answer": "own_head"},
        {"first_answer": "own_head_evaluating"},
        {"classifier": "summed"},
        {"shared_encoder": True},
    ],
)
def test_every_weight_that_stage_one_trains_gets_a_gradient(
    net: dict[str, Any], weight: float, make_context: Make
) -> None:
    context = make_context(net, recognise={"own_head_weight": weight})
    stage = RecogniseStage(context)
    updated(stage, context, 1)
    trained = {name: weight.grad for name, weight in context.net.named_parameters() if weight.requires_grad}
    # Several processes would wait for the others for ever.
    assert [name for name, gradient in trained.items() if gradient is None] == []


@pytest.mark.parametrize("weight", [0.0, 1.0, 5.0])
def test_the_loss_of_recognition_is_equation_6(weight: float, small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net()
    images, labels = next(iter(noise(4, 3).batches([range(4)])))
    looks = play(net, ImageBatch(images), 3, CentreCornerPolicy())
    total = 0.0
    for look in looks:
        encoder = net.glance_encoder if look.number == 1 else net.focus_encoder
        own = encoder.own_head(look.vector).detach().softmax(dim=1)
        answer = look.logits.detach().softmax(dim=1)
        for row, label in enumerate(labels.tolist()):
            total += -math.log(float(answer[row, label])) - weight * math.log(float(own[row, label]))
    got = recognition_loss(net, looks, labels, weight)
    assert float(got.detach()) == pytest.approx(total / (3 * 4), abs=1e-5)


def test_distillation_teaches_the_last_look_to_the_earlier_ones(look_with: LookWith) -> None:
    looks = [look_with([0.5], 1), look_with([0.9], 2), look_with([0.8], 3)]
    # KL(last || earlier) = sum of last x log(last / earlier), averaged over the two earlier looks
    first = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
    second = 0.8 * math.log(0.8 / 0.9) + 0.2 * math.log(0.2 / 0.1)
    assert float(distillation_loss(looks)) == pytest.approx((first + second) / 2, abs=1e-6)


def test_distillation_does_not_move_the_last_look(look_with: LookWith) -> None:
    logits = [look_with([p], number).logits.requires_grad_() for number, p in ((1, 0.5), (2, 0.8))]
    looks = [replace(look_with([0.5], n), logits=answer) for n, answer in enumerate(logits, start=1)]
    distillation_loss(looks).backward()
    assert logits[0].grad is not None
    assert logits[1].grad is None
    # d KL / d logits of the pupil: its softmax less the teacher's
    torch.testing.assert_close(logits[0].grad, torch.tensor([[-0.3, 0.3]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_batch_in_parts_gives_the_step_of_the_whole_batch(parts: int, make_context: Make) -> None:
    # Encoders are frozen: batch norms in training would see other batches. 10 images in 3 or 4 parts are uneven.
    results = []
    for accumulation in (1, parts):
        context = make_context(accumulation=accumulation, finetune={"freeze_encoders": True, "classifier_lr": 0.1})
        stage = FinetuneStage(context)
        stage.train_mode()
        images, labels = next(iter(context.data.train.batches([range(10)])))
        numbers = stage.update(images, labels, Moment(0.0, torch.Generator().manual_seed(0)))
        results.append(
            (numbers["loss"], torch.cat([p.detach().flatten() for p in context.net.classifier.parameters()]))
        )
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["backbone", "recognise", "aim", "joint"])
def test_half_precision_trains_weights_in_full_precision(name: str, make_context: Make) -> None:
    context = make_context(precision="bf16")
    before = {tensor: value.clone() for tensor, value in context.net.state_dict().items()}
    stage = build_stage(name, context)
    updated(stage, context, 1)
    assert any(changed_parts(before, context.net).values())
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in context.net.parameters())


def test_rates_fall_as_a_cosine_from_each_groups_own(make_context: Make) -> None:
    one, two = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = make_optimizer("sgd", [{"params": [one], "lr": 0.1}, {"params": [two], "lr": 0.02}], 1e-4)
    rates = []
    for progress in (0.0, 0.5, 1.0):
        set_rates(optimizer, progress)
        rates.append([group["lr"] for group in optimizer.param_groups])
    assert rates[0] == [0.1, 0.02]
    assert rates[1] == pytest.approx([0.05, 0.01], abs=1e-12)
    assert rates[2] == pytest.approx([0.0, 0.0], abs=1e-12)
    assert all(group["momentum"] == 0.9 and group["nesterov"] for group in optimizer.param_groups)


@pytest.mark.parametrize("name", ["backbone", "glance", "recognise", "finetune", "joint"])
@pytest.mark.parametrize("kept", [False, True])
def test_statistics_of_batch_norms_are_kept_where_asked_for(name: str, kept: bool, make_context: Make) -> None:
    context = make_context(keep_statistics=kept)
    stage = build_stage(name, context)
    stage.begin()
    before = {tensor: value.clone() for tensor, value in context.net.state_dict().items()}
    updated(stage, context)
    changed = {name for name, value in context.net.state_dict().items() if not torch.equal(before[name], value)}
    assert any("running_mean" in name for name in changed) == (not kept)
    assert any(".bn1.weight" in name for name in changed)  # its weights learn either way


def test_regnets_glance_is_answered_by_the_classifier_while_it_trains(make_context: Make) -> None:
    context = make_context({"first_answer": "own_head_evaluating"})
    net = context.net
    vector = torch.randn(2, net.glance_encoder.vector_features, generator=torch.Generator().manual_seed(0))
    own = net.glance_encoder.own_head(vector)
    recurrent = net.classifier.answer(net.classifier.remember(vector, None), 1)
    train_only(context, [net.classifier, net.focus_encoder])
    assert torch.equal(net.answer_glance(vector)[1], recurrent)
    net.eval()
    assert torch.equal(net.answer_glance(vector)[1], own)


def test_exploring_aims_are_clipped_to_the_image_and_scored_after_clipping(
    small_net: Callable[..., GlanceFocus],
) -> None:
    net = small_net()
    look = net.glance(ImageBatch(torch.randn(64, 3, 64, 64, generator=torch.Generator().manual_seed(0))))
    aim = ExploringPolicy(net.policy, 0.5, torch.Generator().manual_seed(1)).aim(look)
    assert aim.mean is not None
    assert aim.log_prob is not None
    noise_drawn = torch.randn(64, 2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(aim.where, (aim.mean + 0.5 * noise_drawn).clamp(0, 1))
    assert bool((aim.where == 0).any())
    expected = torch.distributions.Normal(aim.mean, 0.5).log_prob(aim.where).sum(dim=1)
    torch.testing.assert_close(aim.log_prob, expected, rtol=0, atol=1e-5)


def test_stage_three_trains_around_the_learnt_aims_and_is_validated_with_them(make_context: Make) -> None:
    made = make_context(finetune={"deviation": 0.1})
    stage = FinetuneStage(made)
    net = made.net.eval()
    look = net.glance(ImageBatch(torch.randn(200, 3, 64, 64, generator=torch.Generator().manual_seed(0))))
    learnt = net.policy.aim(look).where.detach()
    away = stage.learning_aims(torch.Generator().manual_seed(1)).aim(look).where - learnt
    assert 0.09 < float(away.std()) < 0.11
    assert torch.equal(stage.aims(torch.Generator().manual_seed(1)).aim(look).where, learnt)


@pytest.mark.parametrize("name", ["recognise", "aim", "finetune"])
def test_sizes_of_patches_are_drawn_at_random_in_all_three_stages(name: str, make_context: Make) -> None:
    context = make_context({"patch_px": (32, 48)})
    stage = build_stage(name, context)
    sides: list[int] = []
    context.net.focus_encoder.register_forward_pre_hook(lambda _, inputs: sides.append(inputs[0].shape[-1]))
    updated(stage, context, 6)
    # Two focus looks in each of six updates: one size for the whole batch, each drawn about as often as the other.
    assert len(sides) == 12
    assert min(sides.count(32), sides.count(48)) >= 2


def test_a_loss_that_is_not_a_number_stops_before_the_weights_are_touched(make_context: Make) -> None:
    context = make_context()
    stage = RecogniseStage(context)
    with torch.no_grad():
        context.net.classifier.linear.bias.fill_(math.nan)  # type: ignore[union-attr, operator]
    before = [p.detach().clone() for p in context.net.focus_encoder.parameters()]
    with pytest.raises(BadRun, match="the loss became nan"):
        updated(stage, context, 1)
    after = context.net.focus_encoder.parameters()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_the_whole_image_and_the_distillation_are_part_of_the_joint_loss_when_asked_for(make_context: Make) -> None:
    losses = {}
    for name, joint in {
        "plain": {"distill_weight": 0.0},
        "distilled": {"distill_weight": 2.0},
        "whole": {"distill_weight": 0.0, "whole_image_weight": 3.0},
    }.items():
        context = make_context(joint=joint)
        stage = build_stage("joint", context)
        context.net.eval()  # so that batch norms take the same statistics in all three
        images, labels = next(iter(context.data.train.batches([range(6)])))
        policy = CentreCornerPolicy()
        with torch.no_grad():
            loss, _ = stage.recognise_step(images, labels, policy)  # type: ignore[attr-defined]
            looks = play(context.net, ImageBatch(images), 3, policy)
            encoder = context.net.focus_encoder
            whole = F.cross_entropy(encoder.own_head(encoder(images).vector), labels)
        losses[name] = float(loss)
    assert losses["distilled"] == pytest.approx(losses["plain"] + 2 * float(distillation_loss(looks)), abs=1e-5)
    assert losses["whole"] == pytest.approx(losses["plain"] + 3 * float(whole), abs=1e-5)
