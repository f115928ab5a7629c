"""When an exported network stops and what its answers cost: what stopping.py and costs.py do, out of glancefocus.json alone."""

import math
from typing import Any


def thresholds_for(about: dict[str, Any], budget_macs: float | None = None, looks: int | None = None) -> Any:
    """What to stop by: within an average budget, after so many looks, or as was chosen before the export.

    One for each look, with several patch sizes a row of them; None: every look is taken.
    """
    if budget_macs is not None and looks is not None:
        raise ValueError("give a budget or a number of looks, not both.")
    if looks is not None:
        if not 1 <= looks <= about["looks"]:
            raise ValueError(f"this network takes 1 to {about['looks']} looks, not {looks}.")
        smaller = len(about["patch_px"]) - 1
        return [[-1.0] * smaller + [math.inf] if smaller else math.inf] * looks
    if budget_macs is None:
        return about["thresholds"]
    return _within(about, budget_macs)


def _within(about: dict[str, Any], budget_macs: float) -> Any:
    glance, everything, points = about["cheapest"], about["dearest"], about["curve"]
    if not budget_macs >= glance["mean_macs"]:
        raise ValueError(
            f"a budget of {budget_macs:.3g} multiply-adds is less than one glance ({glance['mean_macs']:.3g})."
        )
    if budget_macs >= everything["mean_macs"]:
        return everything["thresholds"]
    if not points:
        raise ValueError(
            "there are no operating points to choose from. Solve them with `gf budget`, then export again."
        )
    count = sum(point["mean_macs"] <= budget_macs for point in points)
    if count == 0:
        return glance["thresholds"]
    below = points[count - 1]
    if count == len(points) or isinstance(below["thresholds"][0], list):
        return below["thresholds"]
    above = points[count]
    share = (budget_macs - below["mean_macs"]) / (above["mean_macs"] - below["mean_macs"])
    return [(1 - share) * a + share * b for a, b in zip(below["thresholds"], above["thresholds"], strict=True)]


def cost_macs(about: dict[str, Any], patches_px: list[int]) -> int:
    """Multiply-adds of an answer after a glance and patches of these sizes."""
    costs = about["costs"]
    aims = [costs["policy_macs"], *(costs["focus_policy_macs"].get(str(px), costs["policy_macs"]) for px in patches_px)]
    spent = costs["encoder_macs"] + costs["classifier_macs"][0]
    for number, px in enumerate(patches_px, start=1):
        spent += aims[number - 1] + costs["focus_encoder_macs"][str(px)] + costs["classifier_macs"][number]
    if about["score"] == "value" and len(patches_px) < about["looks"] - 1:
        spent += aims[-1]  # whoever left had been aimed for already
    return int(spent)
