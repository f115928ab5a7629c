"""Boxes must be where the looks were, in the colour of right and wrong, and readable on pictures of any size."""

import pytest
from PIL import Image, ImageColor

from glancefocus.evaluation.boxes import (
    RIGHT,
    UNKNOWN,
    WRONG,
    LookDrawn,
    described,
    draw_looks,
    draw_strip,
    enlargement,
)
from glancefocus.settings import View, native, whole

GREY = (128, 128, 128)


def grey(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), GREY)


def focus(box: tuple[int, int, int, int], *, number: int = 2, right: bool | None = None) -> LookDrawn:
    return LookDrawn(box, number=number, confidence=0.97, label="50", right=right)


def glance(right: bool | None = None, label: str = "30") -> LookDrawn:
    return LookDrawn(None, number=1, confidence=0.41, label=label, right=right)


def count(picture: Image.Image, colour: str) -> int:
    colours = picture.getcolors(maxcolors=picture.width * picture.height) or []
    return sum(pixels for pixels, found in colours if found == ImageColor.getrgb(colour))


@pytest.mark.parametrize(("right", "colour"), [(True, RIGHT), (False, WRONG), (None, UNKNOWN)])
def test_a_box_has_the_colour_of_right_wrong_or_unknown(right: bool | None, colour: str) -> None:
    drawn = draw_looks(grey(400, 400), [focus((100, 120, 300, 340), right=right)])
    expected = ImageColor.getrgb(colour)
    edges = {"left": (100, 250), "top": (280, 120), "right": (299, 250), "bottom": (200, 339)}
    assert {edge: drawn.getpixel(at) for edge, at in edges.items()} == dict.fromkeys(edges, expected)
    outside = {"left": (99, 250), "top": (280, 119), "right": (300, 250), "bottom": (200, 340)}
    assert {edge: drawn.getpixel(at) for edge, at in outside.items()} == dict.fromkeys(outside, GREY)
    assert drawn.getpixel((200, 250)) == GREY
    assert [c for c in (RIGHT, WRONG, UNKNOWN) if count(drawn, c)] == [colour]


def test_the_tag_fills_the_upper_left_corner_of_its_box() -> None:
    drawn = draw_looks(grey(400, 400), [focus((100, 120, 300, 340), right=True)])
    assert drawn.getpixel((104, 123)) == ImageColor.getrgb(RIGHT)  # 3 px of line, then the margin of the tag
    assert drawn.getpixel((280, 126)) == GREY


def test_the_glance_is_a_frame_around_the_whole_picture() -> None:
    drawn = draw_looks(grey(400, 330), [glance(right=False)])
    corners = [drawn.getpixel(at) for at in [(0, 200), (200, 0), (399, 200), (200, 329)]]
    assert corners == [ImageColor.getrgb(WRONG)] * 4
    assert drawn.getpixel((200, 200)) == GREY


def test_the_tag_and_the_caption_show_number_answer_and_confidence() -> None:
    assert (glance().tag, glance().caption) == ("1  0.41", "1 glance: 30  0.41")
    assert (focus((0, 0, 1, 1)).tag, focus((0, 0, 1, 1)).caption) == ("2  0.97", "2 focus: 50  0.97")


def test_a_look_at_the_whole_image_is_a_frame_with_its_number_and_its_size_in_the_caption() -> None:
    look = LookDrawn((0, 0, 400, 330), number=3, confidence=0.9, label="50", right=True, view=described(whole(160)))
    assert look.caption == "3 focus (whole image, 160 px): 50  0.90"
    drawn = draw_looks(grey(400, 330), [glance(right=False), look])
    # The later frame is drawn over that of the glance, and is as thick as other boxes; both have their tags.
    edges = [drawn.getpixel(at) for at in [(0, 200), (200, 0), (399, 200), (200, 329), (2, 200)]]
    assert edges == [ImageColor.getrgb(RIGHT)] * 5
    assert count(drawn.crop((0, 0, 400, 330)), WRONG) > 200


def test_only_views_that_are_resized_are_named_in_the_caption() -> None:
    views = [native(96), View(112, 0.5), View(96, 200), View(112, 1.0), whole(160)]
    assert list(map(described, views)) == ["", "0.5@112", "200px@96", "1@112", "whole image, 160 px"]


def test_the_given_picture_stays_as_it_is() -> None:
    picture = grey(400, 400)
    draw_looks(picture, [glance(), focus((0, 0, 50, 50))], title="a title")
    assert picture.getcolors() == [(160_000, GREY)]


def test_without_looks_and_title_the_picture_is_only_copied() -> None:
    picture = grey(400, 330)
    drawn = draw_looks(picture, [])
    assert drawn is not picture
    assert (drawn.size, drawn.tobytes()) == (picture.size, picture.tobytes())


def test_each_look_and_the_title_have_a_line_under_the_picture() -> None:
    looks = [glance(), focus((0, 0, 50, 50))]
    heights = [
        draw_looks(grey(400, 400), looks[:n], title=title).height for n, title in [(1, ""), (2, ""), (2, "title")]
    ]
    # 400 // 24 = 16 px of letters: lines of 22 px, and 16 px of margin.
    assert heights == [400 + 22 + 16, 400 + 44 + 16, 400 + 66 + 16]


def test_a_long_label_wraps_instead_of_leaving_the_picture() -> None:
    drawn = draw_looks(grey(320, 320), [glance(label="no parking on the priority road " * 4 + "w" * 200)])
    right_edge = drawn.crop((318, 321, 320, drawn.height))
    assert drawn.width == 320
    assert right_edge.getcolors() == [(2 * (drawn.height - 321), (255, 255, 255))]
    assert drawn.height > 320 + 14 + 5 * 20


@pytest.mark.parametrize("box", [(-50, -50, 60, 60), (350, 350, 500, 500), (0, 0, 400, 400), (370, 0, 400, 90)])
def test_a_box_at_the_border_or_beyond_is_drawn_inside(box: tuple[int, int, int, int]) -> None:
    drawn = draw_looks(grey(400, 400), [focus(box, right=True)])
    left = max(box[0], 0)
    right, bottom = min(box[2], 400) - 1, min(box[3], 400) - 1
    assert {drawn.getpixel((right, bottom)), drawn.getpixel((left, bottom))} == {ImageColor.getrgb(RIGHT)}
    # The tag is whole: as much black ink as in the middle of a picture.
    middle = draw_looks(grey(400, 400), [focus((100, 100, 300, 300), right=True)])
    assert count(drawn.crop((0, 0, 400, 400)), "black") == count(middle.crop((0, 0, 400, 400)), "black") > 10


@pytest.mark.parametrize("box", [(500, 500, 600, 600), (10, 10, 10, 10), (-9, -9, -1, -1)])
def test_a_box_without_any_pixel_in_the_picture_still_draws(box: tuple[int, int, int, int]) -> None:
    assert count(draw_looks(grey(400, 400), [focus(box, right=True)]), RIGHT) > 0


def test_identical_boxes_have_distinct_tags() -> None:
    box = (100, 100, 300, 300)
    first, second = focus(box, right=False), focus(box, number=3, right=True)
    alone = draw_looks(grey(400, 400), [first]).crop((0, 0, 400, 400))
    both = draw_looks(grey(400, 400), [first, second]).crop((0, 0, 400, 400))
    # The tag of the first stands where it stood alone, and is whole; that of the second begins below it.
    column = [alone.getpixel((104, y)) for y in range(100, 200)]
    tag_height = max(y for y, colour in enumerate(column) if colour == ImageColor.getrgb(WRONG)) + 1
    tag = (105, 100, 140, 100 + tag_height)
    assert tag_height > 14
    assert both.crop(tag).tobytes() == alone.crop(tag).tobytes()
    below = both.crop((105, tag[3], 140, tag[3] + 2 * tag_height))
    assert count(below, WRONG) == 0
    assert count(below, RIGHT) > 35 * tag_height // 2
    assert count(below, "black") > 0


def test_many_identical_boxes_in_a_corner_find_room_for_all_tags() -> None:
    looks = [focus((300, 300, 320, 320), number=n, right=True) for n in range(2, 12)]
    drawn = draw_looks(grey(320, 320), looks).crop((0, 0, 320, 320))
    one = draw_looks(grey(320, 320), looks[:1]).crop((0, 0, 320, 320))
    assert count(drawn, RIGHT) > 7 * count(one, RIGHT)


def test_small_pictures_are_enlarged_by_whole_factors_and_long_ones_stay_bounded() -> None:
    assert enlargement((8, 8)) == 40
    assert enlargement((128, 96)) == 4
    assert enlargement((320, 5000)) == 1
    assert enlargement((8, 2000)) == 2
    assert enlargement((1, 1)) == 320


def test_a_tiny_picture_keeps_its_pixels_as_squares() -> None:
    picture = Image.new("RGB", (8, 8), GREY)
    picture.putpixel((1, 5), (255, 255, 0))
    drawn = draw_looks(picture, [focus((4, 4, 8, 8), right=True)])
    assert drawn.width == 320
    assert drawn.crop((40, 200, 80, 240)).getcolors() == [(1600, (255, 255, 0))]
    assert drawn.getpixel((319, 319)) == ImageColor.getrgb(RIGHT)
    assert drawn.getpixel((159, 300)) == GREY


def test_a_huge_picture_keeps_its_size_and_has_thicker_lines() -> None:
    drawn = draw_looks(grey(6000, 4000), [focus((1000, 1000, 3000, 3000), right=True)])
    assert drawn.width == 6000
    # 4000 // 120 = 33 px of line, then 8 px of white.
    assert drawn.getpixel((1032, 2000)) == ImageColor.getrgb(RIGHT)
    assert drawn.getpixel((1033, 2000)) == (255, 255, 255)
    assert drawn.getpixel((1041, 2000)) == GREY


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (20, 4000)])
def test_a_picture_too_narrow_for_tags_still_has_its_caption(size: tuple[int, int]) -> None:
    drawn = draw_looks(grey(*size), [glance(), focus((0, 0, 1, 1), right=True)], title="narrow")
    assert drawn.width >= 320
    assert count(drawn, "black") > 50


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_a_picture_of_any_mode_becomes_rgb(mode: str) -> None:
    assert draw_looks(Image.new(mode, (400, 400)), [glance()]).mode == "RGB"


def test_where_the_label_is_known_the_tag_shows_the_confidence_in_it() -> None:
    wrong = LookDrawn((0, 0, 9, 9), number=2, confidence=0.61, label="70", right=False, in_truth=0.3)
    assert (wrong.tag, wrong.caption) == ("2  0.30", "2 focus: 70  0.61, true class 0.30")
    right = LookDrawn((0, 0, 9, 9), number=3, confidence=0.97, label="50", right=True, in_truth=0.97)
    assert (right.tag, right.caption) == ("3  0.97", "3 focus: 50  0.97")
    first = LookDrawn((0, 0, 9, 9), number=1, confidence=0.5, label="50", right=None)
    assert first.caption == "1 first: 50  0.50"  # a network without a glance


def test_the_tag_of_a_tiny_box_in_the_overview_of_a_large_picture_is_beside_it() -> None:
    drawn = draw_strip([grey(960, 960)], [focus((400, 500, 408, 508), right=True)], trail=True)
    tag_below = [drawn.getpixel((402, y)) for y in range(509, 540)]
    assert drawn.getpixel((404, 504)) == drawn.getpixel((401, 501))  # the box itself, filled by its outline
    assert drawn.getpixel((420, 504)) == (128, 128, 128)  # no tag beside it
    assert any(pixel != (128, 128, 128) for pixel in tag_below)
