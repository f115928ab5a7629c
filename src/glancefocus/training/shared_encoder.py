"""What one encoder for all views changes in a run: settings that make no sense with it, and recipes that are made for two encoders.

A shared encoder is never trained on glances alone, which would make it worse on focus looks: it learns glances and focus looks
together, in every batch of the stage recognise. If glances have batch norms of their own, the stage glance trains these only.
"""

from typing import TYPE_CHECKING, Any

from glancefocus.errors import BadSetting

if TYPE_CHECKING:
    from glancefocus.training.settings import TrainSettings

_GLANCE_STAGES = ("small_glance", "glance")
_LOOKING_STAGES = ("recognise", "finetune")


def check_shared_encoder(settings: "TrainSettings") -> None:
    """Refuse stages that would train a shared encoder for one kind of views only."""
    network, stages = settings.network, settings.stages
    if not network.shared_encoder:
        return
    for name in (name for name in _GLANCE_STAGES if name in stages):
        if not network.own_norms:
            raise BadSetting(
                f"the stage {name} would train the shared encoder on glances only, and it would forget what patches look like. "
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
