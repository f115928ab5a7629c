"""Pictures that are to be answered, and the thresholds by which each of them stops."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.predicting import Viewed
from glancefocus.look import Aim, Look
from glancefocus.loop import CandidateRule, Deadline, ExitRule, Policy, policy_for
from glancefocus.region import Placement


@dataclass(frozen=True)
class Stopping:
    """When looks stop.

    rule         the exit rule
    budget_macs  the budget that it was chosen for; None: it was not chosen by a budget
    """

    rule: ExitRule
    budget_macs: float | None = None


@dataclass(eq=False)
class Job:
    """One picture that is to be answered.

    viewed     the picture, normalised or not; None once it was glanced at
    stopping   its own thresholds; None: those that are in force when it stops
    came       when it came, in seconds of the scheduler's clock
    deadline   by when it must have stopped; None: no deadline
    cancelled  the answer is not needed any more
    """

    viewed: Viewed | None
    came: float
    stopping: Stopping | None = None
    deadline: Deadline | None = None
    cancelled: bool = False
    placement: Placement | None = None
    notes: tuple[str, ...] = ()
    image_px: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if self.viewed is not None:
            self.placement, self.notes = self.viewed.placement, self.viewed.notes
            self.image_px = (int(self.viewed.image.shape[-2]), int(self.viewed.image.shape[-1]))

    def since(self, patience_s: float) -> float:
        """When it came; moved earlier by the amount by which its deadline is shorter than the usual patience."""
        return self.came if self.deadline is None else min(self.came, self.deadline.ends_at - patience_s)


@dataclass(frozen=True)
class RowRules(ExitRule):
    """An exit rule by which every row stops by the rule of its own job.

    thresholds  are not used
    job_of      the job of a row
    stopping_of the thresholds of a job
    """

    job_of: Callable[[int], Job] = lambda row: Job(None, 0.0)
    stopping_of: Callable[[Job], Stopping] = lambda job: Stopping(ExitRule([0.0]))

    def rules(self, look: Look) -> list[ExitRule]:
        """The rule of every row."""
        return [self.stopping_of(self.job_of(row)).rule for row in look.rows.tolist()]

    def sure(self, look: Look, aim: Aim | None = None) -> Tensor:
        rules = self.rules(look)
        if all(rule is rules[0] for rule in rules):
            return rules[0].sure(look, aim)
        thresholds = [self._threshold(rule, look.number) for rule in rules]
        return self.score.of(look, aim) > torch.tensor(thresholds, device=look.logits.device)

    def _threshold(self, rule: ExitRule, number: int) -> float:
        """Infinite where ExitRule.sure is False for every score."""
        threshold = rule.threshold(number)
        return float("inf") if number == rule.looks and (threshold <= 0 or self.score.needs_aim) else threshold

    def leaves(self, look: Look, sure: Tensor | None = None) -> Tensor:
        sure = self.sure(look) if sure is None else sure
        jobs = [self.job_of(row) for row in look.rows.tolist()]
        forced = [
            job.cancelled
            or look.number >= self.stopping_of(job).rule.looks
            or (job.deadline is not None and not job.deadline.allows_another(look))
            for job in jobs
        ]
        return sure | torch.tensor(forced, device=sure.device) if any(forced) else sure


class RowPolicy:
    """The network's policy, with the candidate views that the rule of each row chooses."""

    def __init__(self, bundle: Bundle, rules: RowRules) -> None:
        self.net = bundle.net
        self.rules = rules

    def aim(self, look: Look) -> Aim:
        rules = self.rules.rules(look)
        if self.net.settings.view_choices == 1 or all(rule is rules[0] for rule in rules):
            policy: Policy = policy_for(self.net, rules[0])
            return policy.aim(look)
        chosen = torch.full((look.count,), len(self.net.candidates) - 1, device=look.logits.device)
        for rule in {id(rule): rule for rule in rules if isinstance(rule, CandidateRule)}.values():
            own = torch.tensor([each is rule for each in rules], device=chosen.device)
            chosen = torch.where(own, rule.next_candidate(look), chosen)
        return self.net.policy.aim(look, chosen)
