"""Draws looks onto a picture, as in the paper's figures: a numbered box for each look, coloured by right and wrong."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from glancefocus.escaping import one_line
from glancefocus.outcome import Outcome

# Okabe and Ito's colours, which the colour-blind can tell apart, each with the ink that reads best on it.
RIGHT, WRONG, UNKNOWN = "#009E73", "#D55E00", "#0072B2"
_INK = {RIGHT: "black", WRONG: "black", UNKNOWN: "white"}
_PAPER, _TEXT = "white", "black"

_SHORTEST_PX = 320  # smaller pictures are enlarged to at least this
_LONGEST_PX = 4096  # but not beyond this: a strip of 8x2000 px stays narrow
_SMALLEST_FONT_PX = 14

_Font = ImageFont.ImageFont | ImageFont.FreeTypeFont
_Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class LookDrawn:
    """One look, ready to be drawn.

    box         left, top, right, bottom in pixels of the picture, right and bottom exclusive; None: the glance
    number      1 for the glance, then counting on
    confidence  in [0, 1]
    label       what this look answered
    right       whether that is true; None where nobody knows
    """

    box: _Box | None
    number: int
    confidence: float
    label: str
    right: bool | None

    @property
    def colour(self) -> str:
        """Of the box, the tag and the mark in the caption."""
        if self.right is None:
            return UNKNOWN
        return RIGHT if self.right else WRONG

    @property
    def tag(self) -> str:
        """What stands at the box: "2  0.97"."""
        return f"{self.number}  {self.confidence:.2f}"

    @property
    def caption(self) -> str:
        """The line under the picture: "2 focus: 50  0.97"."""
        kind = "glance" if self.box is None else "focus"
        return f"{self.number} {kind}: {self.label}  {self.confidence:.2f}"


def looks_taken(outcome: Outcome, row: int, boxes: Sequence[_Box], truth: str | None) -> list[LookDrawn]:
    """The looks of one image of an outcome; boxes are those of its focus looks, truth its label where somebody knows it."""
    taken = []
    for look in range(int(outcome.looks[row])):
        label = outcome.name(int(outcome.answer_after[row, look]))
        taken.append(
            LookDrawn(
                box=None if look == 0 else boxes[look - 1],
                number=look + 1,
                confidence=float(outcome.confidence_after[row, look]),
                label=label,
                right=None if truth is None else label == truth,
            )
        )
    return taken


def draw_looks(picture: Image.Image, looks: Sequence[LookDrawn], *, title: str = "") -> Image.Image:
    """A new RGB picture with a box and a tag for each look, and a caption underneath; the given one stays as it is.

    A small picture is enlarged, see enlargement. A box that leaves the picture is cut at the border. A picture too
    narrow for a tag has only boxes and the caption.
    """
    return draw_strip([picture], looks, title=title)


def draw_strip(
    pictures: Sequence[Image.Image], looks: Sequence[LookDrawn], *, title: str = "", notes: Sequence[str] = ()
) -> Image.Image:
    """The same for frames of one clip side by side, each with all boxes and tags, over one caption (paper, Figure of videos).

    notes  lines at the end of the caption
    """
    factor = enlargement(pictures[0].size)
    size = (pictures[0].width * factor, pictures[0].height * factor)
    font_px = max(_SMALLEST_FONT_PX, min(size) // 24)
    font = ImageFont.load_default(size=font_px)
    step = size[0] + max(4, font_px // 2)
    # Of a narrow picture the caption is still readable.
    canvas_width = max(step * (len(pictures) - 1) + size[0], _SHORTEST_PX)
    lines = _caption_lines(looks, title, notes, font, canvas_width - font_px)
    line_height = round(1.4 * font_px)
    height = size[1] + len(lines) * line_height + (font_px if lines else 0)
    canvas = Image.new("RGB", (canvas_width, height), _PAPER)
    for column, picture in enumerate(pictures):
        canvas.paste(_marked(picture, looks, factor, font), (column * step, 0))
    draw = ImageDraw.Draw(canvas)
    for row, line in enumerate(lines):
        _draw_line(draw, line, (font_px // 2, size[1] + font_px // 2 + row * line_height), line_height, font)
    return canvas


def _marked(picture: Image.Image, looks: Sequence[LookDrawn], factor: int, font: _Font) -> Image.Image:
    """The picture so many times as large, with a box and a tag for each look."""
    width, height = picture.width * factor, picture.height * factor
    line_px = max(3, min(width, height) // 120)
    canvas = picture.convert("RGB").resize((width, height), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(canvas)
    boxes = [_drawn_box(look.box, factor, (width, height)) for look in looks]
    for look, box in zip(looks, boxes, strict=True):
        _draw_box(draw, box, look.colour, line_px if look.box is not None else max(1, line_px // 2))
    taken: list[_Box] = []  # tags come after all boxes, so that no line runs through a number
    for look, box in zip(looks, boxes, strict=True):
        _draw_tag(draw, look, box, (width, height), font, taken)
    return canvas


def enlargement(size: tuple[int, int]) -> int:
    """The whole factor that brings the shorter side to 320 px, but the longer side not beyond 4096 px; at least 1."""
    return max(1, min(math.ceil(_SHORTEST_PX / min(size)), _LONGEST_PX // max(size)))


def _drawn_box(box: _Box | None, factor: int, size: tuple[int, int]) -> _Box:
    """The box in drawn pixels, inside the picture, at least 1 px wide; right and bottom inclusive, as Pillow draws."""
    width, height = size
    if box is None:
        return 0, 0, width - 1, height - 1
    left, top, right, bottom = (edge * factor for edge in box)
    left, top = min(max(left, 0), width - 1), min(max(top, 0), height - 1)
    return left, top, max(min(right, width) - 1, left), max(min(bottom, height) - 1, top)


def _draw_box(draw: ImageDraw.ImageDraw, box: _Box, colour: str, line_px: int) -> None:
    """The outline, inwards from the edge of the box, with a thin white one inside to part it from the background."""
    draw.rectangle(box, outline=colour, width=line_px)
    left, top, right, bottom = box
    inner = (left + line_px, top + line_px, right - line_px, bottom - line_px)
    if inner[0] < inner[2] and inner[1] < inner[3]:
        draw.rectangle(inner, outline=_PAPER, width=max(1, line_px // 4))


def _draw_tag(
    draw: ImageDraw.ImageDraw, look: LookDrawn, box: _Box, size: tuple[int, int], font: _Font, taken: list[_Box]
) -> None:
    """The filled tag of a look, in the first free place of _places; its place is added to taken."""
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


def _places(corner: tuple[int, int], tag: tuple[int, int], size: tuple[int, int]) -> Iterator[_Box]:
    """Where a tag may stand: at the corner of its box, then down from there, then column by column; always inside."""
    room_x, room_y = size[0] - tag[0], size[1] - tag[1]
    x, y = min(corner[0], room_x), min(corner[1], room_y)
    columns = [x, *range(x + tag[0], room_x + 1, tag[0]), *range(x - tag[0], -1, -tag[0])]
    for column in columns:
        # A step of a quarter tag finds the gap between tags of boxes that nearly coincide.
        below, above = range(y, room_y + 1, max(1, tag[1] // 4)), range(y - 1, -1, -max(1, tag[1] // 4))
        for row in (*below, *above):
            yield column, row, column + tag[0], row + tag[1]


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@dataclass(frozen=True)
class _Line:
    """A line of the caption: its text, how far it is indented, and the colour of the mark before it."""

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
    """The text in lines of at most room_px, broken at blanks, and within a word that is too long by itself."""
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
