"""Whether settings of a run fit together, and changes of a recipe for networks that it was not made for.

A shared encoder is never trained on glances alone, which would make it worse on focus looks: it learns glances and focus looks
together, in every batch of the stage recognise. If glances have batch norms of their own, the stage glance trains these only.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadSetting

if TYPE_CHECKING:
    from glancefocus.training.settings import TrainSettings

POLICY_STAGES = ("point", "aim", "joint")  # these train the policy
_GLANCE_STAGES = ("small_glance", "glance")
_LOOKING_STAGES = ("recognise", "finetune")


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
    if "point" in settings.stages and settings.point.return_weight > 0 and not settings.network.policy.place:
        raise BadSetting(
            "point.return_weight teaches the policy not to look at the same place again, but this policy does not get the "
            "places of earlier looks. Set network.policy.place=true, or point.return_weight=0."
        )
    if "point" in settings.stages and settings.point.return_weight > 0 and settings.network.zoom:
        raise BadSetting(
            "point.return_weight is for policies that aim in the whole image, but this network zooms. Set point.return_weight=0."
        )
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


def check_zoom(settings: "TrainSettings") -> None:
    """A zooming network is trained coarse to fine, with all of its views."""
    network = settings.network
    if not network.zoom or network.looks < 2:
        return
    if any(view.is_whole for view in network.candidates):
        raise BadSetting(
            "a network with zoom=true is trained coarse to fine, which has no place for views of the whole image, but focus names "
            f"{' '.join(network.focus)}. Leave these out; a larger glance shows the whole image more sharply."
        )
    size = network.view.height_px, network.view.width_px
    steps = {view.extent_px(*size) for view in network.candidates if view.extent_px(*size) >= view.px}
    if settings.data.source in WORLDS and len(steps) > network.looks - 1:
        raise BadSetting(
            f"with zoom=true there are {len(steps)} steps from the whole image to the finest view ({' '.join(network.focus)}), "
            f"but this network has {network.looks} looks. Use --looks {len(steps) + 1}."
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


def check_shared_encoder(settings: "TrainSettings") -> None:
    """Refuse stages that would train a shared encoder for one kind of views only."""
    network, stages = settings.network, settings.stages
    if not network.shared_encoder:
        return
    for name in (name for name in _GLANCE_STAGES if name in stages):
        if not network.own_norms:
            raise BadSetting(
                f"the stage {name} would train the shared encoder on glances only, which would make it worse on patches. "
                "Leave the stage out: recognise (1) trains the encoder on both. Or set network.own_norms=true."
            )
        if getattr(settings, name).fresh:
            raise BadSetting(
                f"{name}.fresh=true needs two encoders: in this network focus looks use the same weights. Set {name}.fresh=false."
            )
    for name in (name for name in _LOOKING_STAGES if name in stages):
        own = getattr(settings, name)
        if own.freeze_glance and not own.freeze_encoders:
            raise BadSetting(
                f"{name}.freeze_glance=true needs two encoders, but this network has one shared encoder. Set "
                f"{name}.freeze_glance=false, or freeze everything with {name}.freeze_encoders=true."
            )
    if "joint" in stages and network.whole_encoder:
        raise BadSetting(
            "the stage joint does not train the batch norms of views of the whole image. Set network.whole_encoder=false, or use "
            "the stages recognise and point instead."
        )


def fit_to_shared_encoder(plain: dict[str, Any], named: set[str]) -> None:
    """Change the plain settings of a recipe, which is made for two encoders, so that they suit a shared one.

    named  the settings that the user named, such as glance.fresh: they stay, and are refused where they make no sense
    """
    network: dict[str, Any] = plain["network"]
    if network.get("shared_encoder") is not True:
        return
    changes: dict[str, Any] = {f"{name}.freeze_glance": False for name in _LOOKING_STAGES}
    changes |= {f"{name}.fresh": False for name in _GLANCE_STAGES}
    changes["recognise.freeze_encoders"] = False  # no other stage before it has trained the encoder on glances
    if network.get("own_norms") is not True:
        changes["network.whole_encoder"] = False
        if "stages" not in named and "stages" in plain:
            plain["stages"] = [name for name in plain["stages"] if name not in _GLANCE_STAGES]
    for name, value in changes.items():
        section, _, setting = name.partition(".")
        if name not in named and isinstance(plain.get(section), dict):
            plain[section][setting] = value


def fit_to_rules(plain: dict[str, Any]) -> None:
    """Change a recipe for a network that aims by a rule, or that has no glance: it has fewer stages."""
    network = plain["network"]
    left_out = set()
    if network["policy"]["kind"] != "learnt":
        # Stage III stays, at the same places as stage I, so that networks with all kinds of policies are trained for as long.
        left_out |= {*POLICY_STAGES}
        plain.setdefault("recognise", {})["aims"] = "random"
    if network["first_view"] != "glance":
        left_out |= {"small_glance"}
        plain.setdefault("glance", {})["evidence_weight"] = 0.0
    plain["stages"] = [name for name in plain["stages"] if name not in left_out]


def refuse_unused(
    settings: "TrainSettings", every_stage: Sequence[str], assignments: list[str], changes: dict[str, Any]
) -> None:
    """Refuse a setting of a stage that does not run: it would have no effect."""
    used = {*settings.stages, *(["aim"] if "joint" in settings.stages else [])}  # joint uses the settings of aim, too
    used |= {"glance"} if settings.rivals == "tuned" else set()  # rivals are tuned with the settings of the glance
    running = ", ".join(settings.plan())
    names = [assignment.partition("=")[0].strip() for assignment in assignments]
    for name in names:
        stage = name.split(".")[0]
        if stage in every_stage and stage not in used:
            raise BadSetting(
                f"{name} is a setting of the stage {stage}, which does not run: the stages are {running}. "
                "Leave the setting out, or name the stage with --stages."
            )
    if "rounds" in {*changes, *names} and settings.rounds > 1 and not {"aim", "finetune"} & set(settings.stages):
        raise BadSetting(
            f"--rounds repeats the stages aim (2) and finetune (3), but the stages are {running}. Leave it out."
        )
