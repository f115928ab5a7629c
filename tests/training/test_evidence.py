"""Where the evidence lies: closed forms, and a backbone that learnt from labels alone."""

import pytest
import torch
import torch.nn.functional as F

from glancefocus.network.encoder import Encoder, build_backbone
from glancefocus.scene import top_left
from glancefocus.training.evidence import aims_at, strongest_places


def test_the_place_is_the_middle_of_the_evidence_in_the_patch_that_holds_the_most() -> None:
    evidence = torch.zeros(2, 6, 8)
    evidence[0, 2, 5] = 1
    evidence[0, 2, 6] = 3
    evidence[0, 5, 0] = 3.5  # stronger than any one of them, weaker than both
    evidence[0, 0, 0] = -100  # what speaks against the label does not count
    evidence[1, 5, 7] = 2  # in the corner
    places = strongest_places(evidence, (96, 128), patch_px=48)
    torch.testing.assert_close(places.centre, torch.tensor([[2.5 * 16, 6.25 * 16], [5.5 * 16, 7.5 * 16]]))
    # 9 cells of 48 would hold 9/48 of evidence all over the image; in the corner there are 4.
    torch.testing.assert_close(places.weight, torch.tensor([(4 / 7.5 - 9 / 48) / (1 - 9 / 48), 1.0]))


def test_what_no_patch_could_hold_together_is_not_taken_together() -> None:
    evidence = torch.zeros(1, 8, 8)
    evidence[0, 4, 2], evidence[0, 4, 4] = 2, 1.9  # 16 px cells: from the first to the last of them 48 px
    one = strongest_places(evidence, (128, 128), patch_px=32)
    torch.testing.assert_close(one.centre, torch.tensor([[4.5 * 16, 2.5 * 16]]))
    both = strongest_places(evidence, (128, 128), patch_px=64)
    torch.testing.assert_close(both.centre, torch.tensor([[4.5 * 16, 16 * (2.5 + 2 * 1.9 / 3.9)]]))


@pytest.mark.parametrize("value", [1.0, 0.0, -1.0])
def test_evidence_all_over_the_image_has_no_weight(value: float) -> None:
    places = strongest_places(torch.full((1, 6, 8), value), (96, 128), patch_px=48)
    assert float(places.weight) == pytest.approx(0, abs=1e-6)
    assert bool(places.centre.isfinite().all())


def test_a_patch_as_large_as_the_image_or_smaller_than_a_cell_is_fine() -> None:
    evidence = torch.rand(3, 4, 4)
    assert bool((strongest_places(evidence, (64, 64), patch_px=64).weight <= 1).all())
    places = strongest_places(evidence, (64, 64), patch_px=8)
    strongest = torch.stack([(e == e.max()).nonzero()[0] for e in evidence])
    torch.testing.assert_close(places.centre, strongest * 16.0 + 8)


@pytest.mark.parametrize("patch_px", [48, torch.tensor([32, 48, 64, 96])])
def test_aims_are_those_whose_patches_have_these_middles(patch_px: int | torch.Tensor) -> None:
    centre = torch.tensor([[60.0, 60.0], [48.0, 100.0], [0.0, 10.0], [96.0, 128.0]])
    where = aims_at(centre, (96, 128), patch_px)
    assert float(where.min()) >= 0
    assert float(where.max()) <= 1
    sizes = torch.as_tensor(patch_px).expand(4).tolist()
    for row, px in enumerate(sizes):
        corner = top_left(where[row : row + 1] + 1e-6, 96, 128, px)[0].float()
        wanted = torch.stack(
            [(centre[row, 0] - px / 2).clamp(0, 96 - px), (centre[row, 1] - px / 2).clamp(0, 128 - px)]
        )
        assert float((corner - wanted).abs().max()) <= 1


def test_a_backbone_that_learnt_from_labels_alone_shows_where_the_squares_are() -> None:
    generator = torch.Generator().manual_seed(0)

    def squares(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        images = 0.3 * torch.randn(count, 3, 128, 128, generator=generator)
        labels = torch.randint(0, 2, (count,), generator=generator)
        corner = torch.randint(0, 128 - 20, (count, 2), generator=generator)
        for row, (label, (top, left)) in enumerate(zip(labels.tolist(), corner.tolist(), strict=True)):
            images[row, label, top : top + 20, left : left + 20] += 2
        return images, labels, corner + 10.0

    torch.manual_seed(0)
    encoder = Encoder(build_backbone("test_resnet", 2))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3)
    for _ in range(40):
        images, labels, _ = squares(16)
        loss = F.cross_entropy(encoder.own_head(encoder(images).vector), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    images, labels, middle = squares(100)
    places = strongest_places(encoder.eval().evidence(images, labels), (128, 128), patch_px=48)
    away = (places.centre - middle).abs().amax(dim=1)
    assert float((away < 24).float().mean()) > 0.9
