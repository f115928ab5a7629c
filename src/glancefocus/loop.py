"""THE loop. Training, evaluation, serving and video all run it; they differ in who aims, when to stop and who takes notes."""

from typing import Protocol

from torch import Tensor

from glancefocus.exits.rule import ExitRule, SizeRule
from glancefocus.look import Aim, Look
from glancefocus.outcome import Outcome, OutcomeRecorder
from glancefocus.scene import Scene


class Policy(Protocol):
    """Who aims."""

    def aim(self, look: Look) -> Aim: ...


class SizedPolicy(Protocol):
    """Who aims patches of the sizes that it is told."""

    def aim(self, look: Look, patch_px: int | Tensor | None = None) -> Aim: ...


class LookingNetwork(Protocol):
    """What looks: the first look at a scene, and the next look where it was aimed."""

    def glance(self, scene: Scene) -> Look: ...

    def focus(self, look: Look, aim: Aim) -> Look: ...


class LooksAtOnce(Protocol):
    """`look_at_once` of a network that can take all looks at some scenes in one go, without coming back in between.

    It gives what run_looks would with the network's own policy; None: not for this scene, or not by this rule.
    """

    def __call__(self, scene: Scene, exit_rule: ExitRule) -> Outcome | None: ...


class Recorder(Protocol):
    """Who takes notes."""

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None: ...


class KnownGlance:
    """A network that need not glance: the first look is known already."""

    def __init__(self, net: LookingNetwork, look: Look) -> None:
        self.net = net
        self.look = look

    def glance(self, scene: Scene) -> Look:
        return self.look

    def focus(self, look: Look, aim: Aim) -> Look:
        return self.net.focus(look, aim)


class ChosenSizes:
    """A policy whose patches have the sizes that a rule chooses."""

    def __init__(self, policy: SizedPolicy, rule: SizeRule) -> None:
        self.policy = policy
        self.rule = rule

    def aim(self, look: Look) -> Aim:
        return self.policy.aim(look, self.rule.next_px(look))


def run_looks(net: LookingNetwork, scene: Scene, exit_rule: ExitRule, policy: Policy, recorder: Recorder) -> None:
    """Look, let the rows go that are above their threshold, look closer at the rest; until none is left."""
    look = exit_rule.calibrated(net.glance(scene))
    while (staying := let_go(look, exit_rule, policy, recorder)) is not None:
        look = look_closer(net, *staying, exit_rule, policy)


def let_go(look: Look, exit_rule: ExitRule, policy: Policy, recorder: Recorder) -> tuple[Look, Aim | None] | None:
    """One half of the loop: the rows that stay, and their next aim where it is known already; None where nobody stays."""
    aim = policy.aim(look) if exit_rule.needs_aim(look) else None
    sure = exit_rule.sure(look, aim)
    leaving = exit_rule.leaves(look, sure)
    recorder.record(look, leaving, sure)
    left = leaving.tolist()  # Python counts a few rows in a fraction of the time that torch takes
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

    A runtime may know how to go through the same loop by itself, see LooksAtOnce.

    policy  who aims; None: see policy_for
    """
    at_once: LooksAtOnce | None = getattr(net, "look_at_once", None)
    if policy is None and at_once is not None and (outcome := at_once(scene, exit_rule)) is not None:
        return outcome
    recorder = OutcomeRecorder(exit_rule.looks)
    run_looks(net, scene, exit_rule, policy_for(net, exit_rule) if policy is None else policy, recorder)
    return recorder.finish(aims_first=exit_rule.score.needs_aim)
