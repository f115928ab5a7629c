"""THE loop. Training, evaluation, serving and video all run it; they differ in who aims, when to stop and who takes notes."""

from typing import Protocol

from torch import Tensor

from glancefocus.early_exit.rule import ExitRule
from glancefocus.look import Aim, Look
from glancefocus.outcome import Outcome, OutcomeRecorder
from glancefocus.scene import Scene


class Policy(Protocol):
    """Who aims."""

    def aim(self, look: Look) -> Aim: ...


class LookingNetwork(Protocol):
    """What looks: the first look at a scene, and the next look where it was aimed."""

    def glance(self, scene: Scene) -> Look: ...

    def focus(self, look: Look, aim: Aim) -> Look: ...


class Recorder(Protocol):
    """Who takes notes."""

    def record(self, look: Look, leaving: Tensor, sure: Tensor) -> None: ...


def run_looks(net: LookingNetwork, scene: Scene, exit_rule: ExitRule, policy: Policy, recorder: Recorder) -> None:
    """Look, let go whoever is sure, look closer at the rest; until nobody is left."""
    look = net.glance(scene)
    while True:
        leaving = exit_rule.leaves(look)
        recorder.record(look, leaving, exit_rule.sure(look))
        if bool(leaving.all()):
            return
        look = look.keep(~leaving)
        look = net.focus(look, policy.aim(look))


def look_until_sure(net: LookingNetwork, scene: Scene, exit_rule: ExitRule, policy: Policy | None = None) -> Outcome:
    """The outcome of a scene. Rows that are sure leave the batch and stop costing anything.

    policy  who aims; None: the network's own policy
    """
    recorder = OutcomeRecorder(exit_rule.looks)
    run_looks(net, scene, exit_rule, net.policy if policy is None else policy, recorder)  # type: ignore[attr-defined]
    return recorder.finish()
