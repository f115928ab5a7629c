"""Costs: the multiply-adds of each part of a network, which budgets, outcomes and reports share."""

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from glancefocus.errors import BadSetting
from glancefocus.values import Fields, whole_of

MOST_MACS, MOST_LOOKS, MOST_CANDIDATES = 10**18, 64, 64
_VIEW_NAME = re.compile("([a-z0-9.]{1,16}@)?[0-9]{1,6}")


@dataclass(frozen=True)
class Costs:
    """Multiply-adds of each part, for one image.

    encoder_macs            the glance encoder on a glance, without its own head
    encoder_with_head_macs  the same with it
    focus_encoder_macs      the focus encoder on each candidate view, in their order: {name of the view: macs}
    policy_macs             the aim after the glance
    classifier_macs         the answer after look 1, 2, ... T
    backbone_macs           the plain backbone, head included, on the whole image
    focus_policy_macs       the aim after each candidate view: {name of the view: macs}; the others cost as after the glance
    """

    encoder_macs: int
    encoder_with_head_macs: int
    focus_encoder_macs: dict[str, int]
    policy_macs: int
    classifier_macs: tuple[int, ...]
    backbone_macs: int
    focus_policy_macs: dict[str, int] = field(default_factory=dict)

    @property
    def looks(self) -> int:
        """Largest number of looks, the glance included."""
        return len(self.classifier_macs)

    @functools.cached_property
    def _focus(self) -> list[tuple[int, int]]:
        """(encoder's, policy's) multiply-adds of each candidate."""
        return [
            (macs, self.focus_policy_macs.get(name, self.policy_macs)) for name, macs in self.focus_encoder_macs.items()
        ]

    @property
    def macs_after_look(self) -> tuple[int, ...]:
        """Everything spent when leaving after look 1, 2, ... T, with the last candidate, which is the largest, at every look."""
        return self.macs_along([len(self._focus) - 1] * (self.looks - 1))

    def macs_along(self, candidates: Sequence[int]) -> tuple[int, ...]:
        """Everything spent when leaving after the glance, after a look at the first of these candidates, the second, ..."""
        spent, aim_macs = [self.encoder_macs + self.classifier_macs[0]], self.policy_macs
        for candidate, answer_macs in zip(candidates, self.classifier_macs[1:], strict=False):
            encoder_macs, next_aim_macs = self._focus[candidate]
            spent.append(spent[-1] + aim_macs + encoder_macs + answer_macs)
            aim_macs = next_aim_macs
        return tuple(spent)

    def macs_of(self, candidates: Sequence[int], aims_first: bool = False) -> int:
        """Everything spent when leaving after these looks; aims_first: one more aim, unless it was the last look."""
        spent = self.macs_along(candidates)[-1]
        if aims_first and len(candidates) < self.looks - 1:
            spent += self._focus[candidates[-1]][1] if candidates else self.policy_macs
        return spent

    def macs_of_tree(self, aims_first: bool = False) -> tuple[int, ...]:
        """The same for every sequence of candidates, in the order of a look table's nodes."""
        every = range(len(self._focus))
        paths = (path for looks in range(self.looks) for path in itertools.product(every, repeat=looks))
        return tuple(self.macs_of(path, aims_first) for path in paths)

    def spent(self, looks: Tensor, candidate: Tensor, aims_first: bool = False) -> Tensor:
        """What each image cost, (N,) float64.

        looks       (N,) number of looks taken
        candidate   (N, at most T - 1) candidate view of each focus look; those beyond `looks` do not count
        aims_first  the score needs the next aim, so images that left before the last look had paid for it already
        """
        looks, candidate = looks.cpu(), candidate.cpu()
        # A first column of -1, so that there is always something to compare rows by.
        candidate = torch.cat([torch.full_like(looks, -1)[:, None], candidate], dim=1)
        taken = torch.where(torch.arange(1, candidate.shape[1] + 1) <= looks[:, None], candidate, -1)
        paths, which = torch.unique(taken, dim=0, return_inverse=True)
        if paths.numel() and int(paths.max()) >= len(self._focus):
            raise BadSetting(
                f"the table of costs has no candidate view {int(paths.max())}, only {list(self.focus_encoder_macs)}."
            )
        spent = [self.macs_of([each for each in path if each >= 0], aims_first) for path in paths.tolist()]
        return torch.tensor(spent, dtype=torch.float64)[which]

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "encoder_macs": self.encoder_macs,
            "encoder_with_head_macs": self.encoder_with_head_macs,
            "focus_encoder_macs": dict(self.focus_encoder_macs),
            "policy_macs": self.policy_macs,
            "focus_policy_macs": dict(self.focus_policy_macs),
            "classifier_macs": list(self.classifier_macs),
            "macs_after_look": list(self.macs_after_look),
            "backbone_macs": self.backbone_macs,
        }

    @staticmethod
    def from_plain(plain: Any, where: str = "costs") -> "Costs":
        """From plain values; a field that is missing or out of range is refused by its name."""
        fields = Fields(plain, where)
        macs = partial(whole_of, least=0, most=MOST_MACS)
        return Costs(
            encoder_macs=fields.whole("encoder_macs", 1, MOST_MACS),
            encoder_with_head_macs=fields.whole("encoder_with_head_macs", 1, MOST_MACS),
            focus_encoder_macs=_by_view(fields, "focus_encoder_macs"),
            policy_macs=fields.whole("policy_macs", 0, MOST_MACS),
            classifier_macs=tuple(fields.listed("classifier_macs", MOST_LOOKS, macs)),
            backbone_macs=fields.whole("backbone_macs", 1, MOST_MACS),
            focus_policy_macs=_by_view(fields, "focus_policy_macs") if "focus_policy_macs" in fields.plain else {},
        )


def _by_view(fields: Fields, name: str) -> dict[str, int]:
    """{name of the view: macs}"""
    table = fields.table(name)
    if len(table.plain) > MOST_CANDIDATES or not all(map(_VIEW_NAME.fullmatch, table.plain)):
        raise BadSetting(
            f"{table.where} must have a number for each candidate view, by names such as '96' or 'whole@160'."
        )
    return {view: table.whole(view, 0, MOST_MACS) for view in table.plain}
