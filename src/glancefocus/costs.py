"""What looking costs, in multiply-adds: a table of numbers that exits, budgets and reports share."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glancefocus.errors import BadSetting


@dataclass(frozen=True)
class Costs:
    """Multiply-adds of each part, for one image.

    encoder_macs            the glance encoder on a glance, without its own head
    encoder_with_head_macs  the same with it
    focus_encoder_macs      the focus encoder on a patch of each size: {patch_px: macs}
    policy_macs             one aim
    classifier_macs         the answer after look 1, 2, ... T
    backbone_macs           the plain backbone, head included, on the whole image
    """

    encoder_macs: int
    encoder_with_head_macs: int
    focus_encoder_macs: dict[int, int]
    policy_macs: int
    classifier_macs: tuple[int, ...]
    backbone_macs: int

    @property
    def macs_after_look(self) -> tuple[int, ...]:
        """Everything spent when leaving after look 1, 2, ... T, with patches of the largest size."""
        patch_px = max(self.focus_encoder_macs)
        spent = [self.encoder_macs + self.classifier_macs[0]]
        for answer_macs in self.classifier_macs[1:]:
            spent.append(spent[-1] + self.policy_macs + self.focus_encoder_macs[patch_px] + answer_macs)
        return tuple(spent)

    def spent(self, looks: Tensor, patch_px: Tensor) -> Tensor:
        """What each image cost that left after so many looks, (N,) float64.

        looks     (N,) number of looks taken
        patch_px  (N, at most T - 1) side of each focus patch; what lies beyond `looks` does not count
        """
        total = torch.full(looks.shape, float(self.encoder_macs + self.classifier_macs[0]), dtype=torch.float64)
        for index in range(patch_px.shape[1]):
            answer_macs = self.classifier_macs[index + 1]
            looked = looks.cpu() >= index + 2
            for px, encoder_macs in self.focus_encoder_macs.items():
                rows = looked & (patch_px[:, index].cpu() == px)
                total[rows] += self.policy_macs + encoder_macs + answer_macs
        return total

    def to_plain(self) -> dict[str, Any]:
        """For JSON, whose keys are strings."""
        return {
            "encoder_macs": self.encoder_macs,
            "encoder_with_head_macs": self.encoder_with_head_macs,
            "focus_encoder_macs": {str(px): macs for px, macs in self.focus_encoder_macs.items()},
            "policy_macs": self.policy_macs,
            "classifier_macs": list(self.classifier_macs),
            "macs_after_look": list(self.macs_after_look),
            "backbone_macs": self.backbone_macs,
        }

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> "Costs":
        try:
            return Costs(
                encoder_macs=int(plain["encoder_macs"]),
                encoder_with_head_macs=int(plain["encoder_with_head_macs"]),
                focus_encoder_macs={int(px): int(macs) for px, macs in plain["focus_encoder_macs"].items()},
                policy_macs=int(plain["policy_macs"]),
                classifier_macs=tuple(int(m) for m in plain["classifier_macs"]),
                backbone_macs=int(plain["backbone_macs"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadSetting(f"the table of costs is damaged: {type(error).__name__} {error}.") from None
