"""Glances of a frozen encoder are encoded once, with the same results as when they are encoded with every batch."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from glancefocus.data.augmentation import AugmentSettings
from glancefocus.data.splits import FileSplit, MemorySplit, shuffled
from glancefocus.look import as_batch
from glancefocus.network.model import GlanceFocus
from glancefocus.network.policy import RandomCandidates
from glancefocus.settings import ViewSettings
from glancefocus.training.episode import ExploringPolicy, after_exploring, play
from glancefocus.training.stage import KeptGlances, Moment, TrainingContext
from glancefocus.training.stage_aim import AimStage, episode_rewards, play_and_reward
from glancefocus.training.stage_recognise import RecogniseStage

IMAGES, BATCH = 20, 4
EVERY_BATCH = {"keep_glances_mib": 0}
APART: dict[str, Any] = {**EVERY_BATCH, "aim": {"compare_together": False, "epochs": 3}}
TOGETHER: dict[str, Any] = {"aim": {"epochs": 3}}
Make = Callable[..., TrainingContext]


def noise(view: ViewSettings, seed: int, flip: bool = False) -> MemorySplit:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (IMAGES, 3, 64, 64), dtype=torch.uint8, generator=generator)
    return MemorySplit(images, torch.randint(0, 2, (IMAGES,), generator=generator), view, flip)


@pytest.fixture
def make_context(small_net: Callable[..., GlanceFocus], context_of: Make) -> Make:
    """Noise to learn from, in batches of 4, with a small network."""

    def make(flip: bool = False, network: dict[str, Any] | None = None, **settings: Any) -> TrainingContext:
        net = small_net(classes=2, **(network or {}))
        train, val = noise(net.settings.view, 1, flip), noise(net.settings.view, 2)
        return context_of(net, train, val, batch_size=BATCH, **settings)

    return make


def learn(stage: Any, epochs: int = 3, first_step: int = 0) -> list[dict[str, Any]]:
    """So many epochs; the numbers of every update."""
    train = stage.context.data.train
    order = [batch for epoch in range(epochs) for batch in shuffled(IMAGES, BATCH, epoch)]
    stage.train_mode()
    numbers = []
    batches = train.pixel_batches(order[first_step:], seed=0)
    for step, (images, labels) in enumerate(batches, start=first_step):
        generator = torch.Generator().manual_seed(step)
        rows = torch.as_tensor(order[step])
        numbers.append(stage.update(images, labels, Moment(step / len(order), generator, rows)))
    return numbers


@contextmanager
def counted(net: GlanceFocus) -> Iterator[list[int]]:
    """How many images the glance encoder encodes, call by call."""
    rows: list[int] = []
    hook = net.glance_encoder.register_forward_hook(lambda _, images, __: rows.append(images[0].shape[0]))
    yield rows
    hook.remove()


def test_glances_are_encoded_once_a_stage_and_not_once_an_epoch(make_context: Make) -> None:
    for settings, encoded in ((TOGETHER, IMAGES), (APART, 3 * IMAGES)):
        context = make_context(**settings)
        with counted(context.net) as rows:
            learn(AimStage(context))
        assert sum(rows) == encoded


def test_validation_encodes_its_glances_once_too(make_context: Make) -> None:
    context = make_context(**TOGETHER)
    stage = AimStage(context)
    with counted(context.net) as rows:
        first, second = (stage.validate(context.data.val) for _ in range(2))
    assert sum(rows) == IMAGES
    assert first == second == AimStage(make_context(**APART)).validate(context.data.val)


@pytest.mark.parametrize("frozen", ["freeze_encoders", "freeze_glance"])
def test_stage_one_encodes_the_glances_of_a_frozen_encoder_once(frozen: str, make_context: Make) -> None:
    losses = []
    for keeps, encoded in (({}, IMAGES), (EVERY_BATCH, 3 * IMAGES)):
        context = make_context(recognise={"epochs": 3, frozen: True}, accumulation=2, **keeps)
        with counted(context.net) as rows:
            losses.append([step["loss"] for step in learn(RecogniseStage(context))])
        assert sum(rows) == encoded
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] != pytest.approx(losses[0][0], rel=1e-3)  # the classifier has moved, and its answers with it


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"flip": True}, "augmented images change"),
        ({"keep_glances_mib": 0}, "nothing is to be kept"),
        ({"aim": {"epochs": 1}}, "they are needed once only"),
    ],
)
def test_glances_are_encoded_with_every_batch_if_they_cannot_be_kept(
    change: dict[str, Any], why: str, make_context: Make
) -> None:
    context = make_context(**{**TOGETHER, **change})
    with counted(context.net) as rows:
        learn(AimStage(context), epochs=2)
    assert rows == [BATCH] * (2 * IMAGES // BATCH), why


def test_glances_of_an_encoder_that_is_trained_are_encoded_again(make_context: Make) -> None:
    context = make_context(recognise={"epochs": 3})
    with counted(context.net) as rows:
        learn(RecogniseStage(context))
    assert sum(rows) == 3 * IMAGES


def test_glances_that_would_not_fit_are_not_kept(make_context: Make) -> None:
    net = make_context().net
    images = torch.rand(2, 3, 64, 64)
    look = net.glance(images)
    columns = (look.map, look.vector, look.memory, look.logits)
    needed = 10 * sum(column[0].numel() * 4 for column in columns)
    for limit, full in ((needed, False), (needed - 1, True)):
        net.requires_grad_(False)
        kept = KeptGlances(net, 10, limit)
        kept.look(as_batch(images, net.settings.view), torch.tensor([3, 7]))
        assert kept.full is full
        assert kept.known.tolist() == [False if full else row in (3, 7) for row in range(10)]


@pytest.mark.parametrize("network", [{}, {"focus": ["32", "48"], "looks": 4}, {"classifier": "cascaded"}])
def test_rewards_and_the_step_of_the_policy_are_the_same(network: dict[str, Any], make_context: Make) -> None:
    numbers, gradients = [], []
    for settings in (TOGETHER, APART):
        aim = {**settings["aim"], "monte_carlo": 2}
        context = make_context(network=network, **{**settings, "aim": aim})
        numbers.append(learn(AimStage(context), epochs=1)[0])
        context = make_context(network=network, **{**settings, "aim": aim})
        stage = AimStage(context)
        stage.train_mode()
        images, labels = next(context.data.train.pixel_batches([[5, 1, 7, 2]]))  # type: ignore[attr-defined]
        stage.update(images, labels, Moment(0, torch.Generator().manual_seed(3), torch.tensor([5, 1, 7, 2])))
        gradients.append({n: p.grad.clone() for n, p in context.net.policy.named_parameters() if p.grad is not None})
    assert numbers[0]["reward"] == pytest.approx(numbers[1]["reward"], abs=1e-6)
    assert numbers[0]["accuracy"] == numbers[1]["accuracy"]
    assert numbers[0]["loss"] == pytest.approx(numbers[1]["loss"], abs=1e-5)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-5)


def test_random_patches_in_one_batch_with_the_chosen_ones_are_the_same_as_afterwards(make_context: Make) -> None:
    context = make_context(network={"focus": ["32", "48"], "looks": 4}, aim={"monte_carlo": 3})
    net, settings = context.net, context.settings.aim
    images, labels = next(context.data.train.pixel_batches([list(range(6))]))  # type: ignore[attr-defined]
    scene = as_batch(images, net.settings.view)

    def explorer() -> ExploringPolicy:
        generator = torch.Generator().manual_seed(8)
        return ExploringPolicy(RandomCandidates(net.policy, generator), 0.1, generator)

    with torch.no_grad():
        looks, rewards = play_and_reward(net, scene, labels, explorer(), context)
        alone = explorer()
        looks_alone = play(net, scene, 4, alone)
        rewards_alone = episode_rewards(net, looks_alone, labels, settings, alone.generator, None)
    assert [look.candidate for look in looks] == [look.candidate for look in looks_alone]
    for look, other in zip(looks, looks_alone, strict=True):
        for name in ("logits", "map", "memory", "rows"):
            torch.testing.assert_close(getattr(look, name), getattr(other, name), rtol=1e-4, atol=1e-5)
        if look.aim is not None and other.aim is not None:
            torch.testing.assert_close(look.aim.where, other.aim.where, rtol=0, atol=1e-6)
    torch.testing.assert_close(rewards, rewards_alone, rtol=0, atol=1e-6)


def test_after_exploring_does_not_change_the_generator() -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    after_exploring(generator, 3, 5, 2)
    assert torch.equal(generator.get_state(), before)


def test_a_stage_resumed_in_the_middle_of_an_epoch_ends_bit_for_bit_the_same(make_context: Make) -> None:
    whole = AimStage(make_context(**TOGETHER))
    learn(whole)
    killed = AimStage(make_context(**TOGETHER))
    learn(killed, epochs=1)
    kept: dict[str, Tensor] = copy.deepcopy(killed.context.net.state_dict())
    resumed = AimStage(make_context(**TOGETHER))  # knows no glances
    resumed.context.net.load_state_dict(kept)
    resumed.optimizer.load_state_dict(copy.deepcopy(killed.optimizer.state_dict()))
    assert "glances" not in killed.state()
    learn(resumed, first_step=IMAGES // BATCH)
    for name, weight in whole.context.net.state_dict().items():
        assert torch.equal(weight, resumed.context.net.state_dict()[name]), name


@pytest.mark.parametrize(
    ("augment", "fit", "fixed"),
    [
        (AugmentSettings(), "crop", False),
        (AugmentSettings(crop=1.0, flip=True), "crop", False),
        (AugmentSettings(crop=1.0, flip=False), "crop", True),
        (AugmentSettings(crop=0.5, flip=False), "whole", True),
        (AugmentSettings(crop=1.0, flip=False, shift_px=1), "whole", False),
    ],
)
def test_files_are_fixed_where_nothing_is_augmented(augment: AugmentSettings, fit: Any, fixed: bool) -> None:
    assert FileSplit([], torch.zeros(0), ViewSettings(fit=fit), augment).fixed is fixed
