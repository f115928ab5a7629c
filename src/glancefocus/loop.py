"""The loop. Training, evaluation, video and serving all run it; they differ in the policy, the exit rule and the recorder."""

from typing import Protocol

from torch import Tensor

from glancefocus.exits.rule import ExitRule, SizeRule
from glancefocus.look import Aim, Look
from glancefocus.outcome import Outcome, OutcomeRecorder
from glancefocus.scene import Scene


class Policy(Protocol):
    """Chooses where to look next."""

    def aim(self, look: Look) -> Aim: ...


class SizedPolicy(Protocol):
    """The same, with patches of given sizes."""

    def aim(self, look: Look, patch_px: int | Tensor | None = None) -> Aim: ...


class LookingNetwork(Protocol):
    """The first look at a scene, and the next look where it was aimed."""

    def glance(self, scene: Scene) -> Look: ...

    def focus(self, look: Look, aim: Aim) -> Look: ...


class Recorder(Protocol):
    """Notes what each look gave."""

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None: ...


class KnownGlance:
    """A network whose first look is known already."""

    def __init__(self, net: LookingNetwork, look: Look) -> None:
        self.net = net
        self.look = look

    def glance(self, scene: Scene) -> Look:
        return self.look

    def focus(self, look: Look, aim: Aim) -> Look:
        return self.net.focus(look, aim)


class ChosenSizes:
    """A policy with patches of the sizes that an exit rule chooses."""

    def __init__(self, policy: SizedPolicy, rule: SizeRule) -> None:
        self.policy = policy
        self.rule = rule

    def aim(self, look: Look) -> Aim:
        return self.policy.aim(look, self.rule.next_px(look))


def run_looks(net: LookingNetwork, scene: Scene, exit_rule: ExitRule, policy: Policy, recorder: Recorder) -> None:
    """Look, release the rows that are above their threshold, look closer at the others, until no row is left."""
    look = exit_rule.calibrated(net.glance(scene))
    while (staying := release(look, exit_rule, policy, recorder)) is not None:
        look = look_closer(net, *staying, exit_rule, policy)


def release(look: Look, exit_rule: ExitRule, policy: Policy, recorder: Recorder) -> tuple[Look, Aim | None] | None:
    """One half of the loop: the rows that stay, with their next aim if it is known already; None if no row stays."""
    aim = policy.aim(look) if exit_rule.needs_aim(look) else None
    sure = exit_rule.sure(look, aim)
    leaving = exit_rule.leaves(look, sure)
    recorder.record(look, leaving, sure)
    left = leaving.tolist()  # for a few rows plain Python is several times faster than torch
    if all(left):
        return None
    if not any(left):
        return look, aim
    rows = (~leaving).nonzero(as_tuple=True)[0]
    return look.at(rows), None if aim is None else aim.keep(rows)


def look_closer(net: LookingNetwork, look: Look, aim: Aim | None, exit_rule: ExitRule, policy: Policy) -> Look:
    """The other half: the next look at these rows."""
    return exit_rule.calibrated(net.focus(look, policy.aim(look) if aim is None else aim))


def policy_for(net: LookingNetwork, exit_rule: ExitRule) -> Policy:
    """The network's own policy, with patches of the sizes that the rule chooses."""
    own = net.policy  # type: ignore[attr-defined]
    return ChosenSizes(own, exit_rule) if isinstance(exit_rule, SizeRule) else own


def look_until_sure(net: LookingNetwork, scene: Scene, exit_rule: ExitRule, policy: Policy | None = None) -> Outcome:
    """The outcome of a scene. Rows above their threshold leave the batch and stop costing anything.

    policy  chooses where to look; None: see policy_for
    """
    recorder = OutcomeRecorder(exit_rule.looks)
    run_looks(net, scene, exit_rule, policy_for(net, exit_rule) if policy is None else policy, recorder)
    return recorder.finish(aims_first=exit_rule.score.needs_aim)
