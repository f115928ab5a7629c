"""How a bundle's notes say that its data were opened. A bundle may come from anywhere: what it makes us draw is limited."""

from collections.abc import Mapping
from typing import Any

from glancefocus.data.datasets import DataSettings
from glancefocus.data.worlds import WORLDS
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.settings import from_plain

MOST_WORLD_BYTES = 50_000_000_000
"""Of the scenes of a built-in world, all splits together: two and a half times those of the largest recipe."""


def noted_settings(notes: Mapping[str, Any]) -> DataSettings | None:
    """The settings of the data that a bundle was trained on; None where it does not say them."""
    stored = notes.get("data_settings")
    if stored is None:
        return None
    try:
        settings = from_plain(DataSettings, stored, "notes.data_settings")
    except BadSetting as error:
        raise BadBundle(f"the bundle is damaged: {error}") from None
    if settings.source in WORLDS and world_bytes(settings) > MOST_WORLD_BYTES:
        raise BadBundle(
            f"the bundle's notes.data_settings ask for {sum(settings.scenes):,} scenes of {settings.source}, "
            f"{world_bytes(settings) / 1e9:,.0f} GB in all. At most {MOST_WORLD_BYTES / 1e9:,.0f} GB are drawn for a bundle."
        )
    return settings


def world_bytes(settings: DataSettings) -> int:
    """What the pictures of a built-in world take on disk."""
    drawn = settings.gestures if settings.source == "gestures" else settings.signs
    frames = settings.gestures.frames if settings.source == "gestures" else 1
    return sum(settings.scenes) * frames * 3 * drawn.height * drawn.width
