"""The world `gestures`: the class is the motion of one small mark, which a glance cannot see."""

from pathlib import Path

import numpy as np
import pytest
import torch

from glancefocus.data.gestures import CLASSES, GesturesSettings, _place_discs, draw_clip, motion
from glancefocus.data.worlds import draw_split
from glancefocus.errors import BadSetting, UnknownName
from glancefocus.region import shrink

SMALL = GesturesSettings(frames=4, height=64, width=64, distractors_max=1)


def path_of(name: str, seed: int = 0, frames: int = 8) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return motion(CLASSES.index(name), frames, 4.0, np.random.default_rng(seed))


@pytest.mark.parametrize(("name", "axis", "sign"), [("left", 1, -1), ("right", 1, 1), ("up", 0, -1), ("down", 0, 1)])
def test_a_mark_goes_straight_where_its_class_says(name: str, axis: int, sign: int) -> None:
    for seed in range(20):
        path = path_of(name, seed)
        steps = sign * np.diff(path[:, axis])
        assert bool((steps > 0.2).all())
        assert float(np.ptp(path[:, 1 - axis])) == 0.0


def test_a_circle_comes_back_to_where_it_began_and_a_still_mark_stays() -> None:
    for seed in range(20):
        circle, still = path_of("circle", seed), path_of("still", seed)
        radius = np.hypot(*circle.T)
        assert float(np.ptp(radius)) == pytest.approx(0, abs=1e-9)
        assert np.allclose(circle.mean(axis=0), 0, atol=1e-9)  # eight places evenly round the middle
        assert float(np.ptp(still, axis=0).max()) == 0.0


def test_no_mark_leaves_its_disc() -> None:
    for name in CLASSES[1:]:
        assert all(np.hypot(*path_of(name, seed).T).max() <= 4.0 + 1e-9 for seed in range(50))


def test_without_an_amber_disc_there_are_as_many_discs() -> None:
    """In a clip of `none` nothing is amber: no pixel has hardly any blue beside much red and green."""
    drawn = {
        name: [len(_place_discs(GesturesSettings(), CLASSES.index(name), np.random.default_rng(i))) for i in range(60)]
        for name in ("none", "left")
    }
    assert np.mean(drawn["none"]) == pytest.approx(np.mean(drawn["left"]), abs=0.4)
    assert min(drawn["none"]) == min(drawn["left"]) == 2
    for seed in range(5):
        clips = [draw_clip(SMALL, CLASSES.index(name), seed)[0].astype(int) for name in ("none", "left")]
        none, left = (int(((c[..., 1] - c[..., 2] > 60) & (c[..., 0] > c[..., 1])).sum()) for c in clips)
        assert none < 0.1 * left


def test_the_same_seed_draws_the_same_clip() -> None:
    one, two, other = (draw_clip(SMALL, 1, seed)[0] for seed in (3, 3, 4))
    assert one.shape == (4, 64, 64, 3)
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_a_clip_does_not_depend_on_how_many_there_are() -> None:
    few, many = (draw_split("val", count, SMALL, 0, cache=None) for count in (7, 14))
    assert torch.equal(few.images, many.images[:7])
    assert torch.equal(few.labels, many.labels[:7])
    assert sorted(few.labels.tolist()) == list(range(7))


def test_the_box_holds_the_amber_disc() -> None:
    split = draw_split("train", 14, SMALL, 1, cache=None)
    assert torch.equal(split.boxes.isnan().all(dim=1), split.labels == CLASSES.index("none"))
    there = split.labels != CLASSES.index("none")
    for clip, box in zip(split.images[there], split.boxes[there], strict=True):
        top, left, bottom, right = box.tolist()
        assert 0 <= top < bottom <= 64
        assert 0 <= left < right <= 64
        # The left edge of the ring, half way down, is amber: red and green, hardly any blue.
        red, green, blue = clip[0, :, int((top + bottom) / 2), int(left) + 1].tolist()
        assert red > green > blue + 30


def test_close_up_the_mark_stands_out_and_at_the_glance_nothing_is_left_of_it() -> None:
    """What differs between frames is the marks and the noise: large at full resolution, next to nothing at a third of it."""
    settings = GesturesSettings()
    split = draw_split("test", 7, settings, 0, cache=None)
    moving = [row for row in range(7) if CLASSES[int(split.labels[row])] not in ("still", "none")]
    assert len(moving) == 5
    for row in moving:
        top, left, bottom, right = (round(edge) for edge in split.boxes[row].tolist())
        first, last = split.images[row, 0].float(), split.images[row, 4].float()
        close = (first - last).mean(dim=0)[top:bottom, left:right].abs().max()
        glances = shrink(torch.stack([first, last]), 40)
        scale = 40 / 128
        part = (glances[0] - glances[1]).mean(dim=0)
        far = part[int(top * scale) : round(bottom * scale), int(left * scale) : round(right * scale)].abs().max()
        assert float(close) > 60
        assert float(far) < 0.2 * float(close)


def test_clips_are_kept_and_opened_again(tmp_path: Path) -> None:
    reported: list[int] = []
    one = draw_split("val", 6, SMALL, 0, cache=tmp_path, progress=lambda done, total: reported.append(done))
    two = draw_split("val", 6, SMALL, 0, cache=tmp_path, progress=lambda done, total: reported.append(done))
    assert reported == [1, 2, 3, 4, 5, 6]
    assert torch.equal(one.images, two.images)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(BadSetting, match="frames must be a whole number from 3 to 256, but got 2"):
        GesturesSettings(frames=2)
    with pytest.raises(BadSetting, match="height must be a whole number from 64 to 1,024, but got 20"):
        GesturesSettings(height=20)
    with pytest.raises(BadSetting, match="radius_min_px must be a number from 8 to 256, but got 4"):
        GesturesSettings(radius_min_px=4)
    with pytest.raises(BadSetting, match="distractors_max must be a whole number from 1 to 12, but got 0"):
        GesturesSettings(distractors_max=0)
    with pytest.raises(UnknownName, match="no split of gestures named 'tset'. Did you mean 'test'"):
        draw_split("tset", 6, SMALL, 0, cache=None)
    with pytest.raises(BadSetting, match="count of gestures is 0"):
        draw_split("test", 0, SMALL, 0, cache=None)
    with pytest.raises(BadSetting, match="there is no class 7"):
        draw_clip(SMALL, 7, 0)
