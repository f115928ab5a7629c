"""Draws looks onto pictures, as in the paper's figures: a numbered box for each look, coloured by right and wrong."""

import base64
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from glancefocus.bundle.bundle import Bundle
from glancefocus.data.file_scene import FileImage
from glancefocus.data.splits import Split
from glancefocus.outcome import Outcome
from glancefocus.region import Box, Region
from glancefocus.settings import View, ViewSettings, whole
from glancefocus.values import one_line

# Okabe and Ito's palette for colour-blind readers, and the text colour that is most readable on each.
RIGHT, WRONG, UNKNOWN = "#009E73", "#D55E00", "#0072B2"
_INK = {RIGHT: "black", WRONG: "black", UNKNOWN: "white"}
_PAPER, _TEXT = "white", "black"

_SHORTEST_PX = 320  # smaller pictures are enlarged at least to this
_LONGEST_PX = 4096  # but not beyond this: a strip of 8x2000 px stays narrow
_SMALLEST_FONT_PX = 14

_Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


@dataclass(frozen=True)
class LookDrawn:
    """One look, ready to be drawn.

    box         left, top, right, bottom in pixels of the picture, right and bottom exclusive; None: the glance
    number      1 for the glance, 2 for the first focus look, ...
    confidence  in [0, 1]
    label       what this look answered
    right       whether that is correct; None if the true label is unknown
    view        what the look saw, for the caption, such as "whole image, 160 px"; empty for native patches
    in_truth    confidence in the true class, as in the paper's figures; None if it is unknown
    """

    box: Box | None
    number: int
    confidence: float
    label: str
    right: bool | None
    view: str = ""
    in_truth: float | None = None

    @property
    def colour(self) -> str:
        """The colour of the box, the tag and the mark in the caption."""
        if self.right is None:
            return UNKNOWN
        return RIGHT if self.right else WRONG

    @property
    def tag(self) -> str:
        """The text at the box: "2  0.97"; the confidence is that in the true class where it is known."""
        shown = self.confidence if self.in_truth is None else self.in_truth
        return f"{self.number}  {shown:.2f}"

    @property
    def caption(self) -> str:
        """The line under the picture: "2 focus: 50  0.97", "3 focus (whole image, 160 px): 50  0.99".

        A wrong answer is followed by the confidence in the true class: "2 focus: 70  0.61, true class 0.30".
        """
        kind = "glance" if self.box is None else "first" if self.number == 1 else "focus"
        view = f" ({self.view})" if self.view else ""
        truth = f", true class {self.in_truth:.2f}" if self.right is False and self.in_truth is not None else ""
        return f"{self.number} {kind}{view}: {self.label}  {self.confidence:.2f}{truth}"


def _confidence_in(outcome: Outcome, row: int, name: str) -> list[float] | None:
    """The probability of the class of this name after each look that was taken; None if it is unknown."""
    if outcome.logits_after is None or outcome.classes is None or name not in outcome.classes:
        return None
    shares: Tensor = outcome.logits_after[row, : int(outcome.looks[row])].float().softmax(dim=1)
    return [float(share) for share in shares[:, outcome.classes.index(name)]]


def looks_taken(
    outcome: Outcome, row: int, boxes: Sequence[Box], truth: str | None, first_box: Box | None = None
) -> list[LookDrawn]:
    """The looks of one image of an outcome; boxes are those of its focus looks, truth is its label if it is known.

    first_box  of the first look; None for a glance
    """
    taken = []
    in_truth = None if truth is None else _confidence_in(outcome, row, truth)
    for look in range(int(outcome.looks[row])):
        label = outcome.name(int(outcome.answer_after[row, look]))
        view = outcome.views[int(outcome.candidate[row, look - 1])] if look > 0 else None
        taken.append(
            LookDrawn(
                box=first_box if look == 0 else boxes[look - 1],
                number=look + 1,
                confidence=float(outcome.confidence_after[row, look]),
                label=label,
                right=None if truth is None else label == truth,
                view="" if view is None else described(view),
                in_truth=None if in_truth is None else in_truth[look],
            )
        )
    return taken


def described(view: View) -> str:
    """A view in a caption: its size if it is the whole image, its name if it is resized, nothing for a native patch."""
    if view.is_whole:
        return f"whole image, {view.px} px"
    return "" if view.extent == view.px and isinstance(view.extent, int) else view.name


def draw_looks(picture: Image.Image, looks: Sequence[LookDrawn], *, title: str = "") -> Image.Image:
    """A new RGB picture with a box and a tag for each look, and a caption underneath.

    A small picture is enlarged, see enlargement. A box that reaches beyond the picture is cut at the border. A picture that is
    too narrow for a tag gets only boxes and the caption.
    """
    return draw_strip([picture], looks, title=title)


def draw_strip(
    pictures: Sequence[Image.Image],
    looks: Sequence[LookDrawn],
    *,
    title: str = "",
    notes: Sequence[str] = (),
    trail: bool = False,
) -> Image.Image:
    """The frames of one clip side by side, each with all boxes and tags, above one caption, as in the paper's figure of videos.

    notes  more lines at the end of the caption
    trail  connect the looks by lines, in their order: boxes in the overview of a large picture may be tiny
    """
    factor = enlargement(pictures[0].size)
    size = (pictures[0].width * factor, pictures[0].height * factor)
    font_px = max(_SMALLEST_FONT_PX, min(size) // 24)
    font = ImageFont.load_default(size=font_px)
    step = size[0] + max(4, font_px // 2)
    # The caption stays readable under a narrow picture.
    canvas_width = max(step * (len(pictures) - 1) + size[0], _SHORTEST_PX)
    lines = _caption_lines(looks, title, notes, font, canvas_width - font_px)
    line_height = round(1.4 * font_px)
    height = size[1] + len(lines) * line_height + (font_px if lines else 0)
    canvas = Image.new("RGB", (canvas_width, height), _PAPER)
    for column, picture in enumerate(pictures):
        canvas.paste(_marked(picture, looks, factor, font, trail), (column * step, 0))
    draw = ImageDraw.Draw(canvas)
    for row, line in enumerate(lines):
        _draw_line(draw, line, (font_px // 2, size[1] + font_px // 2 + row * line_height), line_height, font)
    return canvas


def _marked(
    picture: Image.Image, looks: Sequence[LookDrawn], factor: int, font: _Font, trail: bool = False
) -> Image.Image:
    """The enlarged picture with a box and a tag for each look, and perhaps a line from each to the next."""
    width, height = picture.width * factor, picture.height * factor
    line_px = max(3, min(width, height) // 120)
    canvas = picture.convert("RGB").resize((width, height), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(canvas)
    boxes = [_drawn_box(look.box, factor, (width, height)) for look in looks]
    if trail and len(boxes) > 1:
        middles = [((left + right) / 2, (top + bottom) / 2) for left, top, right, bottom in boxes]
        draw.line(middles, fill=_PAPER, width=line_px + 2)
        draw.line(middles, fill=_TEXT, width=max(1, line_px // 2))
    for look, box in zip(looks, boxes, strict=True):
        _draw_box(draw, box, look.colour, line_px if look.box is not None else max(1, line_px // 2))
    # Tags are drawn after all boxes, so that no line crosses a number; where boxes are tiny, tags are beside them.
    tiny_px = 10 * line_px if trail else 0
    taken = [box for box in boxes if max(box[2] - box[0], box[3] - box[1]) < tiny_px]
    for look, box in zip(looks, boxes, strict=True):
        _draw_tag(draw, look, box, (width, height), font, taken)
    return canvas


def enlargement(size: tuple[int, int]) -> int:
    """The integer factor that brings the shorter side to 320 px, as long as the longer side stays within 4096 px; at least 1."""
    return max(1, min(math.ceil(_SHORTEST_PX / min(size)), _LONGEST_PX // max(size)))


def _drawn_box(box: Box | None, factor: int, size: tuple[int, int]) -> Box:
    """The box in drawn pixels, inside the picture, at least 1 px wide; right and bottom inclusive, as Pillow draws."""
    width, height = size
    if box is None:
        return 0, 0, width - 1, height - 1
    left, top, right, bottom = (edge * factor for edge in box)
    left, top = min(max(left, 0), width - 1), min(max(top, 0), height - 1)
    return left, top, max(min(right, width) - 1, left), max(min(bottom, height) - 1, top)


def _draw_box(draw: ImageDraw.ImageDraw, box: Box, colour: str, line_px: int) -> None:
    """The outline, inwards from the edge of the box, with a thin white line inside to set it off from the picture."""
    draw.rectangle(box, outline=colour, width=line_px)
    left, top, right, bottom = box
    inner = (left + line_px, top + line_px, right - line_px, bottom - line_px)
    if inner[0] < inner[2] and inner[1] < inner[3]:
        draw.rectangle(inner, outline=_PAPER, width=max(1, line_px // 4))


def _draw_tag(
    draw: ImageDraw.ImageDraw, look: LookDrawn, box: Box, size: tuple[int, int], font: _Font, taken: list[Box]
) -> None:
    """The filled tag of a look, at the first free place of _places, which is added to taken."""
    left, top, right, bottom = draw.textbbox((0, 0), look.tag, font=font)
    letter_px = math.ceil(bottom - top)
    tag_width, tag_height = math.ceil(right - left) + letter_px, 2 * letter_px - letter_px // 4
    if tag_width > size[0] or tag_height > size[1]:
        return
    places = list(_places(box[:2], (tag_width, tag_height), size))
    place = next((p for p in places if not any(_overlap(p, other) for other in taken)), places[0])
    taken.append(place)
    draw.rectangle((place[0], place[1], place[2] - 1, place[3] - 1), fill=look.colour)
    middle = ((place[0] + place[2]) // 2, (place[1] + place[3]) // 2)
    draw.text(middle, look.tag, fill=_INK[look.colour], font=font, anchor="mm")


def _places(corner: tuple[int, int], tag: tuple[int, int], size: tuple[int, int]) -> Iterator[Box]:
    """Possible places of a tag: at the corner of its box, then below it, then column by column; always inside the picture."""
    room_x, room_y = size[0] - tag[0], size[1] - tag[1]
    x, y = min(corner[0], room_x), min(corner[1], room_y)
    columns = [x, *range(x + tag[0], room_x + 1, tag[0]), *range(x - tag[0], -1, -tag[0])]
    for column in columns:
        # Steps of a quarter tag find the gap between tags of boxes that nearly coincide.
        below, above = range(y, room_y + 1, max(1, tag[1] // 4)), range(y - 1, -1, -max(1, tag[1] // 4))
        for row in (*below, *above):
            yield column, row, column + tag[0], row + tag[1]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@dataclass(frozen=True)
class _Line:
    """A line of the caption: its text, its indentation, and the colour of the mark in front of it."""

    text: str
    indent_px: int = 0
    mark: str | None = None


def _caption_lines(
    looks: Sequence[LookDrawn], title: str, notes: Sequence[str], font: _Font, room_px: int
) -> list[_Line]:
    lines = [_Line(text) for text in _wrapped(title, font, room_px)]
    indent_px = round(font.getbbox("0")[3] * 1.2)
    for look in looks:
        first, *more = _wrapped(look.caption, font, room_px - indent_px)
        lines.append(_Line(first, indent_px, look.colour))
        lines.extend(_Line(text, indent_px) for text in more)
    lines.extend(_Line(text) for note in notes for text in _wrapped(note, font, room_px))
    return lines


def _wrapped(text: str, font: _Font, room_px: int) -> list[str]:
    """The text in lines of at most room_px, broken at blanks, or inside a word that is too long for a line."""
    lines: list[str] = []
    line = ""
    for letter in one_line(" ".join(text.splitlines())):
        if line and font.getlength(line + letter) > room_px:
            head, blank, tail = line.rpartition(" ")
            broken_at_blank = bool(blank and head.strip()) and letter != " "
            lines.append((head if broken_at_blank else line).rstrip())
            line = tail if broken_at_blank else ""
            letter = letter.lstrip() if not line else letter
        line += letter
    return [*lines, line] if line else lines


def _draw_line(draw: ImageDraw.ImageDraw, line: _Line, at: tuple[int, int], line_height: int, font: _Font) -> None:
    left, middle = at[0], at[1] + line_height / 2
    if line.mark is not None:
        edge = round(line.indent_px * 0.6)
        top = round(middle - edge / 2)
        draw.rectangle((left, top, left + edge - 1, top + edge - 1), fill=line.mark)
    draw.text((left + line.indent_px, middle), line.text, fill=_TEXT, font=font, anchor="lm")


FRAMES_SHOWN = 4
"""Frames of a clip that are drawn."""
SHEET_VIEWS, SHEET_COLUMNS, SHEET_PX = 24, 8, 112
_LARGE_PIXELS = 300_000  # larger drawings are stored as JPEG: dozens of PNG files would make a page of many megabytes
_PAGE_HEIGHT_PX = 640
_OVERVIEW_PX = 640  # the longer side of a large image, of which only an overview is drawn


def draw_rows(bundle: Bundle, split: Split, rows: Sequence[int]) -> list[str]:
    """Images of a split with the looks that the bundle takes at them with its own thresholds, as data URLs."""
    return [_drawn(bundle, split, row) for row in rows]


def sheet_of_views(split: Split, view: ViewSettings, seed: int = 0) -> str | None:
    """Training images with their random augmentation, in one picture; None for clips.

    Each row shows one image several times, as the network sees it in different epochs.
    """
    count = min(len(split), SHEET_VIEWS // SHEET_COLUMNS)
    step = max(1, len(split) // count)
    chosen = [index * step for index in range(count)]
    sheet = Image.new("RGB", (SHEET_COLUMNS * (SHEET_PX + 4) - 4, count * (SHEET_PX + 4) - 4), "white")
    for column in range(SHEET_COLUMNS):
        images, _ = next(iter(split.batches([chosen], seed + column)))
        if not isinstance(images, Tensor):
            images = images.view(Region(whole(SHEET_PX)))
        if images.dim() != 4:
            return None
        for row, image in enumerate(_pixels(images, view)):
            picture = Image.fromarray(image.permute(1, 2, 0).numpy())
            picture.thumbnail((SHEET_PX, SHEET_PX))
            sheet.paste(picture, (column * (SHEET_PX + 4), row * (SHEET_PX + 4)))
    return data_url(sheet)


def data_url(picture: Image.Image) -> str:
    """A picture as a data URL for a page; large ones as JPEG."""
    stream = io.BytesIO()
    large = picture.width * picture.height > _LARGE_PIXELS
    if large:
        picture.thumbnail((_PAGE_HEIGHT_PX * 4, _PAGE_HEIGHT_PX))
    kind = "jpeg" if large else "png"
    picture.save(stream, format=kind, **({"quality": 85} if large else {"optimize": True}))
    return f"data:image/{kind};base64," + base64.b64encode(stream.getvalue()).decode()


def _pixels(images: Tensor, view: ViewSettings) -> Tensor:
    """Normalised images (..., 3, H, W) as uint8; images that are uint8 already as they are."""
    if images.dtype == torch.uint8:
        return images
    mean, std = (torch.tensor(values)[:, None, None] for values in (view.mean, view.std))
    return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)


def _drawn(bundle: Bundle, split: Split, row: int) -> str:
    """One image of a split with the looks that the bundle takes at it, as a data URL."""
    images = next(iter(split.batches([[row]])))[0]
    image = images[0] if isinstance(images, Tensor) else images.images[0]
    outcome, scale = bundle.predict_images([image], bundle.exit_rule()), 1.0
    if isinstance(image, FileImage):
        overview, scale = image.picture.overview(_OVERVIEW_PX)
        pictures = [overview]
    else:
        pixels = _pixels(image, bundle.settings.view)
        frames = pixels if pixels.dim() == 4 else pixels[None]
        shown = frames[:: max(1, len(frames) // FRAMES_SHOWN)][:FRAMES_SHOWN]
        pictures = [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in shown]
    truth = bundle.classes[int(split.labels[row])]
    boxes = [scaled(box, scale) for box in outcome.boxes[0]]
    looks = looks_taken(outcome, 0, boxes, truth, outcome.first_box(0))
    notes = [f"stopped: {outcome.stopped(0)}"]
    return data_url(
        draw_strip(pictures, looks, title=f"true class: {truth}", notes=notes, trail=isinstance(image, FileImage))
    )


def scaled(box: Box, scale: float) -> Box:
    """A box in a picture that was resized by this factor."""
    left, top, right, bottom = (round(side * scale) for side in box)
    return left, top, right, bottom
