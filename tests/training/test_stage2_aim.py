"""Stage II must learn to aim in a world that only aiming solves: one bright square on grey, read only where it is looked at."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from glancefocus.data.splits import shuffled
from glancefocus.errors import BadSetting
from glancefocus.evaluation.every_look import evaluate_every_look
from glancefocus.network.policy import RandomPolicy
from glancefocus.training import stage_aim as stage2_aim
from glancefocus.training.settings import AimSettings
from glancefocus.training.stage import Moment, NonFinite, TrainingContext
from glancefocus.training.stage_aim import AimStage

World = Callable[..., TrainingContext]
STEPS = 220


def learn(context: TrainingContext, steps: int = STEPS) -> AimStage:
    """So many updates of stage II."""
    stage = AimStage(context)
    stage.train_mode()
    train = context.data.train
    order = [batch for epoch in range(1 + steps * 100 // len(train)) for batch in shuffled(len(train), 100, epoch)]
    for step, (images, labels) in enumerate(train.batches(order[:steps])):
        stage.update(images, labels, Moment(step / steps, torch.Generator().manual_seed(step)))
    return stage


def hit_rate(context: TrainingContext, policy: RandomPolicy | None = None) -> list[float]:
    """Share of patches that hold the whole square, at each focus look."""
    val = context.data.val
    assert val.boxes is not None
    return evaluate_every_look(context.net, val, policy).hit_rate_per_focus(val.boxes)


@pytest.mark.parametrize("head", ["conv", "linear"])
@pytest.mark.parametrize("reward", ["increment", "contrastive", "cross_entropy"])
def test_the_policy_finds_the_square(head: str, reward: str, square_world: World) -> None:
    context = square_world(head, looks=2, lr=5e-3, reward=reward)
    assert hit_rate(context)[0] < 0.2
    assert hit_rate(context, RandomPolicy([0], torch.Generator().manual_seed(0)))[0] < 0.2
    learn(context)
    assert hit_rate(context)[0] > 0.8


def test_with_more_looks_the_first_one_already_goes_to_the_square(square_world: World) -> None:
    context = square_world(looks=3, lr=5e-3, reward="increment")
    learn(context)
    assert hit_rate(context)[0] > 0.7
    assert evaluate_every_look(context.net, context.data.val).accuracy_per_look[2] > 0.8


def test_generalised_advantages_find_it_too(square_world: World) -> None:
    context = square_world(looks=2, lr=5e-3, reward="increment", gae_lambda=0.84, discount=0.5)
    learn(context)
    assert hit_rate(context)[0] > 0.8


def test_several_passes_find_it_in_fewer_batches(square_world: World) -> None:
    context = square_world(looks=2, lr=5e-3, reward="increment", passes=3)
    learn(context, steps=STEPS // 2)
    assert hit_rate(context)[0] > 0.8


class KnewBefore(nn.Module):
    """A classifier to whom no patch says anything new."""

    def remember(self, vector: Tensor, memory: Tensor | None, candidate: int = 0) -> Tensor:
        return vector if memory is None else memory

    def answer(self, memory: Tensor, look: int) -> Tensor:
        return 6 * memory


@pytest.mark.parametrize("together", [True, False], ids=["compared together", "one by one"])
def test_own_heads_teach_where_the_classifier_has_nothing_to_say(together: bool, square_world: World) -> None:
    for judge, found in (("classifier", False), ("own_head", True)):
        context = square_world(looks=3, lr=5e-3, judge=judge, compare_together=together)
        context.net.classifier = KnewBefore()  # type: ignore[assignment]
        learn(context)
        assert (hit_rate(context)[0] > 0.8) is found, judge


@pytest.mark.parametrize("reward", ["increment", "cross_entropy"])
def test_own_heads_judge_by_contrast_only(reward: str) -> None:
    with pytest.raises(BadSetting, match=f"own_head goes with aim.reward=contrastive only, but got {reward}"):
        AimSettings(judge="own_head", reward=reward)  # type: ignore[arg-type]


def broken(how: str) -> Callable[..., Tensor]:
    """The rewards of an episode, spoilt."""
    whole = stage2_aim.episode_rewards

    def rewards(*arguments: object) -> Tensor:
        right: Tensor = whole(*arguments)  # type: ignore[arg-type]
        if how == "nought":
            return torch.zeros_like(right)
        if how == "negated":
            return -right
        order = torch.randperm(right.shape[1], generator=torch.Generator().manual_seed(int(1e6 * right.abs().sum())))
        return right[:, order]  # given to others than those who earned it

    return rewards


@pytest.mark.parametrize("how", ["nought", "negated", "shuffled"])
def test_a_broken_reward_teaches_nothing(how: str, square_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage2_aim, "episode_rewards", broken(how))
    context = square_world(looks=2, lr=5e-3, reward="increment")
    learn(context)
    assert hit_rate(context)[0] < 0.25


def test_a_shuffled_advantage_teaches_nothing(square_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stage2_aim.ppo_loss
    generator = torch.Generator().manual_seed(0)

    def shuffled_loss(*, advantages: Tensor, **others: object) -> object:
        order = torch.randperm(advantages.shape[1], generator=generator)
        return whole(advantages=advantages[:, order], **others)  # type: ignore[arg-type]

    monkeypatch.setattr(stage2_aim, "ppo_loss", shuffled_loss)
    context = square_world(looks=2, lr=5e-3, reward="increment")
    learn(context)
    assert hit_rate(context)[0] < 0.25


def ratios_of_one_update(context: TrainingContext, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The ratio of new to old probability in each pass over one batch."""
    seen: list[Tensor] = []
    whole = stage2_aim.ppo_loss

    def noted(*, log_prob: Tensor, old_log_prob: Tensor, **others: object) -> object:
        seen.append((log_prob - old_log_prob).exp().detach())
        return whole(log_prob=log_prob, old_log_prob=old_log_prob, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(stage2_aim, "ppo_loss", noted)
    learn(context, steps=1)
    return seen


def test_with_one_pass_the_ratio_is_one_as_in_the_paper(square_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (ratio,) = ratios_of_one_update(square_world(looks=3, lr=0.01), monkeypatch)
    torch.testing.assert_close(ratio, torch.ones(2, 100), rtol=0, atol=1e-5)


def test_with_several_passes_the_ratio_leaves_one_and_the_clip_acts(
    square_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios = ratios_of_one_update(square_world(looks=3, lr=0.01, passes=4), monkeypatch)
    assert len(ratios) == 4
    torch.testing.assert_close(ratios[0], torch.ones(2, 100), rtol=0, atol=1e-5)
    assert bool(((ratios[-1] < 0.8) | (ratios[-1] > 1.2)).any())


@pytest.mark.parametrize(("passes", "same"), [(1, True), (4, False)])
def test_the_width_of_the_clip_matters_only_with_several_passes(passes: int, same: bool, square_world: World) -> None:
    policies = []
    for clip in (0.05, 0.9):
        context = square_world(looks=2, lr=0.01, passes=passes, clip=clip)
        learn(context, steps=1)
        policies.append(torch.cat([p.flatten() for p in context.net.policy.parameters()]))
    assert torch.equal(*policies) is same


def test_deviation_and_rate_stay_unless_they_are_given_an_end(square_world: World) -> None:
    def at(progress: float, **settings: float) -> list[float]:
        stage = AimStage(square_world(**settings))
        deviation = stage.set_rate(progress)
        return [deviation, *(group["lr"] for group in stage.optimizer.param_groups)]

    assert at(0.5, deviation=0.1, lr=0.01) == [0.1, 0.01]
    falling = {"deviation": 0.25, "deviation_end": 0.1, "lr": 0.01, "lr_end": 0.002}
    assert at(0.0, **falling) == [0.25, 0.01]
    assert at(0.5, **falling) == pytest.approx([0.175, 0.006], abs=1e-12)


def test_a_policy_that_aims_at_the_centre_of_every_image_is_not_called_better(square_world: World) -> None:
    context = square_world(looks=2)
    stage = AimStage(context)
    with torch.no_grad():
        context.net.policy.actor.weight.zero_()
        context.net.policy.actor.bias.zero_()  # the middle, after the sigmoid
    assert stage.validate(context.data.val)["aim_deviation"] == pytest.approx([0.0, 0.0], abs=1e-6)
    checked = stage.check_aims()
    assert checked.over_centre[0] == 0
    assert not checked.better
    assert "aim.deviation=0.2" in checked.sentence


def test_a_policy_that_finds_the_square_is_better_than_aims_that_learn_nothing(square_world: World) -> None:
    context = square_world(looks=2, lr=5e-3, reward="increment")
    stage = learn(context)
    stage.validate(context.data.val)
    good = {name: tensor.clone() for name, tensor in context.net.policy.state_dict().items()}
    with torch.no_grad():
        context.net.policy.actor.weight.zero_()
    checked = stage.check_aims()  # of the best policy, not of the last one
    assert checked.better
    assert checked.over_random[0] > 0.3
    assert "Learnt aims improve accuracy" in checked.sentence
    assert bool((context.net.policy.actor.weight == 0).all())  # which is put back
    assert any(bool((good[name] != tensor).any()) for name, tensor in context.net.policy.state_dict().items())


def test_the_policy_with_the_best_last_look_is_the_one_that_is_kept(square_world: World) -> None:
    context = square_world(looks=2, lr=5e-3, reward="increment")
    stage = learn(context, steps=120)
    good = stage.validate(context.data.val)["val_accuracy"][-1]
    kept = {name: tensor.clone() for name, tensor in context.net.policy.state_dict().items()}
    with torch.no_grad():
        context.net.policy.actor.weight.zero_()
        context.net.policy.actor.bias.fill_(-9)
    assert stage.validate(context.data.val)["val_accuracy"][-1] < good
    resumed = AimStage(context)  # as after a restart
    resumed.load_state(stage.state())
    resumed.finish()
    for name, tensor in context.net.policy.state_dict().items():
        assert torch.equal(tensor, kept[name])
    assert resumed.validate(context.data.val)["val_accuracy"][-1] == good


def test_a_policy_that_only_gets_worse_stays_as_it_was(square_world: World) -> None:
    context = square_world(looks=2, lr=5e-3, reward="increment")
    learn(context).finish()
    before = {name: tensor.clone() for name, tensor in context.net.policy.state_dict().items()}
    stage = AimStage(context)
    stage.begin()
    with torch.no_grad():
        context.net.policy.actor.bias.fill_(-9)  # as a stage that starts too wildly would leave it
    stage.validate(context.data.val)
    stage.finish()
    for name, tensor in context.net.policy.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_among_policies_equal_after_the_last_look_the_earlier_right_or_more_confident_one_is_kept(
    square_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = square_world(looks=3)
    stage = AimStage(context)
    whole = stage2_aim.evaluate_every_look

    def validated(accuracy: list[float], surely_right: float, mark: float) -> float:
        """Marks the policy, says that it has this accuracy, and returns the mark of the one that is kept."""

        def reported(*arguments: object, **others: object) -> object:
            evaluation = whole(*arguments, **others)  # type: ignore[arg-type]
            return SimpleNamespace(
                accuracy_per_look=accuracy,
                surely_right=surely_right,
                outcome=evaluation.outcome,
                hit_rate_per_focus=lambda boxes: [0.0, 0.0],
            )

        monkeypatch.setattr(stage2_aim, "evaluate_every_look", reported)
        torch.nn.init.constant_(context.net.policy.critic.bias, mark)
        stage.validate(context.data.val)
        return float(stage.best_policy["critic.bias"])

    assert validated([0.5, 0.6, 0.9], 0.4, 1) == 1
    assert validated([0.5, 0.8, 0.9], 0.5, 2) == 2
    assert validated([0.5, 0.7, 0.9], 0.8, 3) == 2
    assert validated([0.9, 0.9, 0.8], 0.8, 4) == 2
    assert validated([0.5, 0.8, 0.9], 0.4, 5) == 2
    assert validated([0.5, 0.8, 0.9], 0.6, 6) == 6  # alike in all looks: the surer one
    assert validated([0.5, 0.8, 0.9], 0.6, 7) == 7  # alike in everything: the later one
    assert validated([0.0, 0.0, 0.95], 0.1, 8) == 8


def test_more_random_patches_make_the_contrastive_reward_steadier(square_world: World) -> None:
    context = square_world(looks=2)
    net, settings = context.net, context.settings
    images, labels = next(iter(context.data.train.batches([list(range(200))])))
    policy = stage2_aim.ExploringPolicy(net.policy, 0.1, torch.Generator().manual_seed(0))
    with torch.no_grad():
        looks = stage2_aim.play(net, stage2_aim.as_batch(images, net.settings.view), 2, policy)
        spread = []
        for draws in (1, 16):
            aim = AimSettings(reward="contrastive", monte_carlo=draws)
            several = [
                stage2_aim.episode_rewards(net, looks, labels, aim, torch.Generator().manual_seed(seed), None)
                for seed in range(8)
            ]
            spread.append(float(torch.stack(several).std(dim=0).mean()))
    assert settings.aim.monte_carlo == 1
    assert spread[1] < 0.5 * spread[0]  # a quarter, but for chance


def test_an_aim_that_is_not_finite_stops_training_before_any_patch_is_cut(square_world: World) -> None:
    context = square_world(looks=2)
    torch.nn.init.constant_(context.net.policy.actor.weight, float("nan"))
    with pytest.raises(NonFinite, match="an aim of the policy became infinite or not a number"):
        learn(context, steps=1)
