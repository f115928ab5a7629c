"""How a bundle forms batches, and what it reports about the images of each."""

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.bundle.predicting import Viewed, in_batches
from glancefocus.errors import BadImage, BadSetting
from glancefocus.outcome import Outcome
from glancefocus.region import Placement

MakeBundle = Callable[..., Bundle]


def of(size: int) -> Viewed:
    """An image of this many bytes."""
    return Viewed(torch.zeros(size, dtype=torch.uint8))


def sizes(batch: list[Viewed] | None) -> list[int] | None:
    return None if batch is None else [one.held_bytes for one in batch]


@pytest.fixture
def _eight_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glancefocus.bundle.predicting.batch_bytes", lambda: 8)


@pytest.mark.usefixtures("_eight_bytes")
def test_batches_are_limited_in_images_and_in_memory() -> None:
    batches = in_batches(map(of, [1, 1, 1, 1, 9, 1, 5, 5, 1]), 3)
    assert [sizes(batch) for batch in batches] == [[1, 1, 1], [1], [9], [1, 5], [5, 1]]


@pytest.mark.usefixtures("_eight_bytes")
def test_a_full_batch_is_given_before_the_next_image_is_read() -> None:
    read: list[int] = []

    def items() -> Iterator[Viewed]:
        for number in (1, 2, 8, 3):
            read.append(number)
            yield of(number)

    batches = in_batches(items(), 2)
    assert sizes(next(batches)) == [1, 2]
    assert read == [1, 2]
    assert sizes(next(batches)) == [8]
    assert read == [1, 2, 8]


def test_a_batch_that_is_not_full_is_given_when_no_image_arrives() -> None:
    a, b, c = of(1), of(2), of(3)
    assert [sizes(batch) for batch in in_batches([a, b, c], 2)] == [[1, 2], [3]]
    assert [sizes(batch) for batch in in_batches([a, None, None, b, c], 2)] == [[1], None, [2, 3]]


def test_pictures_to_draw_on_count_as_memory() -> None:
    assert Viewed(torch.zeros(3, 2, 2), pictures=(Image.new("RGB", (5, 2)),)).held_bytes == 48 + 40


def test_boxes_are_in_pixels_of_the_picture(small_bundle: MakeBundle, tmp_path: Path) -> None:
    """A picture of 128x128 px is resized to 64x64, so patches of 32 px cover 64 px of it."""
    pixels = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    bundle = small_bundle(view={"fit": "stretch"})
    outcome = bundle.predict([tmp_path / "a.png", torch.zeros(3, 64, 64)])
    assert [len(boxes) for boxes in outcome.boxes] == [2, 2]
    for (left, top, right, bottom), (y, x) in zip(outcome.boxes[0], outcome.where[0].tolist(), strict=True):
        assert (right - left, bottom - top) == (64, 64)
        assert (left, top) == (2 * int(32 * x), 2 * int(32 * y))
    assert all(right - left == bottom - top == 32 for left, top, right, bottom in outcome.boxes[1])
    assert outcome.image_px is not None
    assert outcome.image_px.tolist() == [[64, 64], [64, 64]]
    assert outcome.placements == (Placement(0.5, 0.5), Placement())


def test_a_stream_can_skip_unreadable_files(small_bundle: MakeBundle, tmp_path: Path) -> None:
    """As the command does it: files are read with view, and what it returns goes into the stream."""
    bundle = small_bundle()
    for number in range(5):
        Image.new("RGB", (64, 64), (50 * number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "2.png").write_bytes(b"no picture")
    bad: list[str] = []

    def readable() -> Iterator[Viewed]:
        for file in sorted(tmp_path.iterdir()):
            try:
                yield bundle.view(file)
            except BadImage:
                bad.append(file.name)

    outcomes = list(bundle.predict_stream(readable(), batch_size=2))
    assert [len(outcome) for outcome in outcomes] == [2, 2]
    assert bad == ["2.png"]
    expected = bundle.predict([tmp_path / f"{number}.png" for number in (0, 1, 3, 4)])
    torch.testing.assert_close(Outcome.join(outcomes).logits, expected.logits, rtol=0, atol=1e-5)
    assert Outcome.join(outcomes).boxes == expected.boxes


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.usefixtures("_eight_bytes")
def test_an_image_that_stopped_is_freed_before_the_next_one_is_read(merge: bool, small_bundle: MakeBundle) -> None:
    """Every image is a batch of its own here, and takes a single look."""
    made: list[weakref.ref[torch.Tensor]] = []
    in_memory: list[int] = []

    def viewed() -> Viewed:
        image = torch.zeros(3, 64, 64)
        made.append(weakref.ref(image))
        return Viewed(image)

    def pictures() -> Iterator[Viewed]:
        for _ in range(4):
            in_memory.append(sum(image() is not None for image in made))
            yield viewed()

    outcomes = small_bundle().predict_stream(pictures(), looks=1, batch_size=1, full_batch=1, merge=merge)
    assert [len(outcome) for outcome in outcomes] == [1, 1, 1, 1]
    assert in_memory == [0, 0, 0, 0]


def test_batches_of_a_stream_have_a_deadline_each(small_bundle: MakeBundle) -> None:
    bundle = small_bundle()
    pictures = torch.zeros(3, 3, 64, 64, dtype=torch.uint8)
    late = list(bundle.predict_stream(pictures, batch_size=2, deadline_ms=1e-6))
    assert [outcome.looks.tolist() for outcome in late] == [[1, 1], [1]]
    in_time = list(bundle.predict_stream(pictures, batch_size=2, deadline_ms=1e6))
    assert [outcome.looks.tolist() for outcome in in_time] == [[3, 3], [3]]
    with pytest.raises(BadSetting, match="a deadline is for one batch"):
        bundle.predict_stream(pictures, deadline_ms=1000, merge=True)


def test_undecided_images_are_pooled_by_default_if_there_are_several_batches(
    small_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = small_bundle()
    ways: list[str] = []
    for name in ("run_apart", "run_pooled"):
        function = getattr(__import__("glancefocus.bundle.predicting", fromlist=[name]), name)

        def noted(*words: object, name: str = name, function: Callable[..., object] = function) -> object:
            ways.append(name)
            return function(*words)

        monkeypatch.setattr(f"glancefocus.bundle.predicting.{name}", noted)
    pictures = torch.zeros(3, 3, 64, 64, dtype=torch.uint8)
    bundle.predict(pictures, batch_size=2, thresholds=[0.5, 0.5])
    bundle.predict(pictures, batch_size=3, thresholds=[0.5, 0.5])  # a single batch
    bundle.predict(pictures, batch_size=2, looks=2)  # no image can stop early
    bundle.predict(pictures, batch_size=2, thresholds=[0.5, 0.5], merge=False)
    bundle.predict(pictures, batch_size=2, looks=2, merge=True)
    bundle.predict(pictures, batch_size=2, thresholds=[0.5, 0.5], deadline_ms=1e6)
    assert ways == ["run_pooled", "run_apart", "run_apart", "run_apart", "run_pooled", "run_apart"]
