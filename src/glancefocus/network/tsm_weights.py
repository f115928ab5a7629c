"""The names of TSM's released checkpoints, brought back to those of the ResNet inside.

There the backbone is `base_model`, a convolution that is shifted before is wrapped and called `net` inside its wrapper, and the
last layer stands outside the backbone as `new_fc` (or `fc`, where it was trained without dropout).
"""

from collections.abc import Mapping

from torch import Tensor

from glancefocus.errors import BadCheckpoint


def without_tsm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the backbone's own names; tensors of anything else stay as they are."""
    if not any(name.startswith("base_model.") for name in tensors):
        return dict(tensors)
    foreign = next((name for name in tensors if ".nl." in name), None)
    if foreign is not None:
        raise BadCheckpoint(
            f"this is TSM with non-local blocks (it has {foreign}), which are not built here. "
            "Give one of TSM's checkpoints without `_nl`."
        )
    return {_own_name(name): tensor for name, tensor in tensors.items()}


def _own_name(name: str) -> str:
    own = name.removeprefix("base_model.")
    if own.startswith("new_fc."):
        return own.replace("new_fc.", "fc.", 1)
    return own.replace(".net.", ".", 1)
