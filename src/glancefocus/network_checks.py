"""Checks of a network's settings that concern several of them: views that fit, and parts that fit together."""

from typing import TYPE_CHECKING

from glancefocus.errors import BadSetting

if TYPE_CHECKING:
    from glancefocus.settings import NetworkSettings

_MOST_VIEWS = 16
_MOST_COLUMNS = 100_000  # of tables that have one for every sequence of views


def check_network(settings: "NetworkSettings") -> None:
    """Refuse what does not fit together; fields are checked one by one before."""
    _check_focus(settings)
    _check_first_view(settings)
    _check_encoders(settings)
    _check_classifier(settings)
    if settings.shift_div == 1:
        raise BadSetting(
            f"shift_div is the part of the channels that is shifted each way, 8 for an eighth, but got {settings.shift_div}. "
            "Use at least 2, or 0 for no shift."
        )


def _check_focus(settings: "NetworkSettings") -> None:
    views, count = settings.candidates, len(settings.focus)
    if not views or len(set(settings.focus)) != count:
        raise BadSetting(
            f"focus must name one or several different views, but got {' '.join(settings.focus) or 'none'}."
        )
    if count > _MOST_VIEWS:
        raise BadSetting(f"focus names at most {_MOST_VIEWS} views, but got {count}.")
    if [view.px for view in views] != sorted(view.px for view in views):
        raise BadSetting(f"focus names the smallest view first, but got {' '.join(settings.focus)}.")
    if sum(count**look for look in range(settings.looks)) > _MOST_COLUMNS:
        raise BadSetting(
            f"with {count} candidate views and {settings.looks} looks there are more than {_MOST_COLUMNS:,} sequences of views to "
            "choose from. Use fewer views or looks."
        )
    height_px, width_px = settings.view.height_px, settings.view.width_px
    for view in views if settings.looks > 1 else ():
        needed_px = view.px if view.is_whole else view.extent_px(height_px, width_px)
        if needed_px > min(height_px, width_px):
            raise BadSetting(
                f"the view {view.name} is larger than the image ({min(height_px, width_px)} px). Use a smaller view or larger "
                "images."
            )
        if view.is_whole and view.px <= settings.glance_px:
            raise BadSetting(
                f"the view {view.name} shows no more than the glance, which is whole@{settings.glance_px}. Use a larger one."
            )


def _check_first_view(settings: "NetworkSettings") -> None:
    if settings.zoom and settings.first_view != "glance":
        raise BadSetting(
            f"zoom=true begins with the whole image, but first_view is {settings.first_view!r}. Use first_view='glance', or leave "
            "zoom out."
        )
    shorter_px = min(settings.view.height_px, settings.view.width_px)
    if settings.first_view != "glance" and settings.glance_px > shorter_px:
        raise BadSetting(
            f"the first look is a patch of glance_px={settings.glance_px}, which is larger than the image ({shorter_px} px)."
        )


def _check_encoders(settings: "NetworkSettings") -> None:
    if settings.own_norms and not settings.shared_encoder:
        raise BadSetting("own_norms=true needs shared_encoder=true: separate encoders have their own norms anyway.")
    if not settings.whole_encoder:
        return
    if settings.classifier != "summed" or settings.shared_encoder != settings.own_norms:
        raise BadSetting(
            "whole_encoder=true needs classifier='summed', and with shared_encoder=true also own_norms=true."
        )
    if not any(view.is_whole for view in settings.candidates):
        raise BadSetting(
            f"whole_encoder=true needs a view of the whole image, but focus names {' '.join(settings.focus)}."
        )


def _check_classifier(settings: "NetworkSettings") -> None:
    parts = any(not view.is_whole for view in settings.candidates)
    if settings.classifier_place and (settings.classifier != "recurrent" or not parts):
        raise BadSetting(
            "classifier_place=true needs classifier='recurrent' and a view of a part of the image, but got "
            f"{settings.classifier!r} and {' '.join(settings.focus)}. Leave it out."
        )
    if settings.classifier == "cascaded" and settings.first_answer == "classifier":
        raise BadSetting(
            "a cascaded classifier has no layer for the glance: its first_answer is 'own_head', not 'classifier'."
        )
