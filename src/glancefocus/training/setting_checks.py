"""Checks of a run's settings that concern what its stages see: small scenes, evidence, aims, first views."""

import math
from typing import TYPE_CHECKING

from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadSetting

if TYPE_CHECKING:
    from glancefocus.training.settings import TrainSettings

POLICY_STAGES = ("point", "aim", "joint")  # these train the policy


def check_small_scenes(settings: "TrainSettings") -> None:
    """Small scenes exist in built-in worlds only, and must be large enough for their objects."""
    for name, small in (("small", settings.small), ("small_glance", settings.small_glance)):
        if name in settings.stages and settings.data.source not in WORLDS:
            raise BadSetting(
                f"the stage {name} draws small scenes of a built-in world ({', '.join(WORLDS)}), "
                f"which {settings.data.source} is not. Leave it out."
            )
        least_px = math.ceil(4 * settings.data.signs.radius_max_px)
        if name in settings.stages and settings.data.source == "signs" and small.side_px < least_px:
            raise BadSetting(
                f"signs with a radius of up to {settings.data.signs.radius_max_px:g} px do not fit the small scenes of the stage "
                f"{name}, which have {small.side_px}x{small.side_px} px. Set {name}.side_px to at least {least_px}."
            )


def check_evidence(settings: "TrainSettings") -> None:
    """A glance encoder can learn from evidence only after the focus encoder was trained."""
    for name in ("small_glance", "glance"):
        if name not in settings.stages or getattr(settings, name).evidence_weight == 0:
            continue
        if {"small", "backbone"} & set(settings.stages[settings.stages.index(name) :]):
            raise BadSetting(
                f"with {name}.evidence_weight the stage {name} learns from the focus encoder where objects are, so the stages "
                "small and backbone must come before it."
            )


def check_aims(settings: "TrainSettings") -> None:
    """Only a learnt policy with something to aim can be trained."""
    policy_stages = [name for name in settings.stages if name in POLICY_STAGES]
    if policy_stages and settings.network.looks < 2:
        raise BadSetting("a network with one look has nothing to aim. Use at least 2 looks.")
    kind = settings.network.policy.kind
    if kind == "learnt":
        return
    if policy_stages:
        raise BadSetting(
            f"the stage {policy_stages[0]} trains the policy, but this network aims by a rule (policy.kind={kind}). Leave the "
            "stage out, or set policy.kind=learnt."
        )
    if "recognise" in settings.stages and settings.recognise.aims != "random":
        raise BadSetting(
            f"recognise.aims={settings.recognise.aims} prepares for a learnt policy, but this network aims by a rule "
            f"(policy.kind={kind}). Set recognise.aims=random."
        )


def check_first_view(settings: "TrainSettings") -> None:
    """What learns from glances needs them."""
    if settings.network.first_view == "glance":
        return
    words = f"the first look of this network is {settings.network.first_words}"
    if "small_glance" in settings.stages:
        raise BadSetting(f"the stage small_glance trains on glances, but {words}. Leave the stage out.")
    if "glance" in settings.stages and settings.glance.evidence_weight > 0:
        raise BadSetting(f"glance.evidence_weight is for glances, but {words}. Set glance.evidence_weight=0.")
