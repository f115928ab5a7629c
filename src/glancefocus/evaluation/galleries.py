"""Pictures for the report: looks drawn onto a user's own images, and what training makes of them."""

import base64
import io
from collections.abc import Sequence
from dataclasses import replace

import torch
from PIL import Image
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.splits import MemorySplit, Split
from glancefocus.evaluation.boxes import draw_strip, looks_taken
from glancefocus.loop import look_until_sure
from glancefocus.outcome import Outcome
from glancefocus.region import top_left
from glancefocus.scene import as_batch
from glancefocus.settings import ViewSettings

FRAMES_SHOWN = 4
"""Of a clip."""
SHEET_VIEWS, SHEET_COLUMNS, SHEET_PX = 24, 8, 112
_LARGE_PIXELS = 300_000  # larger drawings are JPEG: some dozens of PNG would make a page of many megabytes
_LONGEST_PX = 640


def draw_rows(bundle: Bundle, split: Split, rows: Sequence[int]) -> list[str]:
    """Images of a split with the looks that the bundle's own thresholds take at them, as data URLs."""
    return [_drawn(bundle, *_look_at(bundle, split, row), int(split.labels[row])) for row in rows]


def sheet_of_views(split: Split, view: ViewSettings, seed: int = 0) -> str | None:
    """Training images as the network sees them, cropped and mirrored at random, in one picture; None for clips.

    The first image stands in each row several times, so that one sees what changes from epoch to epoch.
    """
    count = min(len(split), SHEET_VIEWS // SHEET_COLUMNS)
    step = max(1, len(split) // count)
    chosen = [index * step for index in range(count)]
    sheet = Image.new("RGB", (SHEET_COLUMNS * (SHEET_PX + 4) - 4, count * (SHEET_PX + 4) - 4), "white")
    for column in range(SHEET_COLUMNS):
        images, _ = next(iter(split.batches([chosen], seed + column)))
        if images.dim() != 4:
            return None
        for row, image in enumerate(_pixels(images, view)):
            picture = Image.fromarray(image.permute(1, 2, 0).numpy())
            picture.thumbnail((SHEET_PX, SHEET_PX))
            sheet.paste(picture, (column * (SHEET_PX + 4), row * (SHEET_PX + 4)))
    return data_url(sheet)


def data_url(picture: Image.Image) -> str:
    """A picture inside a page; large ones as JPEG."""
    stream = io.BytesIO()
    large = picture.width * picture.height > _LARGE_PIXELS
    if large:
        picture.thumbnail((_LONGEST_PX * 4, _LONGEST_PX))
    kind = "jpeg" if large else "png"
    picture.save(stream, format=kind, **({"quality": 85} if large else {"optimize": True}))
    return f"data:image/{kind};base64," + base64.b64encode(stream.getvalue()).decode()


def _look_at(bundle: Bundle, split: Split, row: int) -> tuple[Tensor, Outcome]:
    """One image as pixels, and what the bundle makes of it."""
    view = bundle.settings.view
    pixels = _pixels_of(split, row, view)
    with torch.inference_mode():
        outcome = look_until_sure(bundle.net, as_batch(pixels.to(bundle.device), view), bundle.exit_rule())
    return pixels[0], replace(outcome, classes=bundle.classes)


def _pixels_of(split: Split, row: int, view: ViewSettings) -> Tensor:
    """(1, 3, H, W), or (1, F, 3, H, W), uint8."""
    if isinstance(split, MemorySplit):
        return split.images[row][None]
    return _pixels(next(iter(split.batches([[row]])))[0], view)


def _pixels(images: Tensor, view: ViewSettings) -> Tensor:
    """Normalised images (..., 3, H, W) as uint8."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (view.mean, view.std))
    return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)


def _drawn(bundle: Bundle, pixels: Tensor, outcome: Outcome, label: int) -> str:
    frames = pixels if pixels.dim() == 4 else pixels[None]  # of a clip some, of a picture itself
    shown = frames[:: max(1, len(frames) // FRAMES_SHOWN)][:FRAMES_SHOWN]
    boxes = [_box(outcome, focus, pixels) for focus in range(int(outcome.looks[0]) - 1)]
    truth = bundle.classes[label]
    pictures = [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in shown]
    return data_url(draw_strip(pictures, looks_taken(outcome, 0, boxes, truth), title=f"is {truth}"))


def _box(outcome: Outcome, focus: int, pixels: Tensor) -> tuple[int, int, int, int]:
    px = int(outcome.patch_px[0, focus])
    where = outcome.where[0, focus][None].cpu()
    top, left = top_left(where, pixels.shape[-2], pixels.shape[-1], px)[0].tolist()
    return left, top, left + px, top + px
