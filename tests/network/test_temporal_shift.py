"""The temporal shift moves channels in time and nothing else; a clip network without it is an image network frame by frame."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import glancefocus as gf
from glancefocus.errors import BadSetting
from glancefocus.network.build import build_backbone
from glancefocus.network.macs import count_costs
from glancefocus.network.model import GlanceFocus
from glancefocus.network.modules import Encoder
from glancefocus.network.presets import network_settings
from glancefocus.network.temporal_shift import ClipEncoder, add_temporal_shift, shift_frames

CLIPS = {"frames": 4, "classifier": "cascaded"}


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def backbone(name: str = "test_resnet", classes: int = 3) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_backbone(name, classes).eval()


def test_the_first_part_of_the_channels_comes_from_the_next_frame_and_the_second_from_the_one_before() -> None:
    # Three frames of four channels of one pixel; a quarter of the channels goes each way.
    clip = torch.tensor([[11.0, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34]])[:, :, None, None]
    shifted = shift_frames(clip, frames=3, div=4)
    assert shifted[:, :, 0, 0].tolist() == [[21, 0, 13, 14], [31, 12, 23, 24], [0, 22, 33, 34]]


def test_nothing_is_shifted_from_one_clip_into_another() -> None:
    two = torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]])[:, :, None, None]
    assert shift_frames(two, frames=2, div=2)[:, :, 0, 0].tolist() == [[3, 0], [0, 2], [7, 0], [0, 6]]


def test_what_is_shifted_stays_as_it_was_where_it_came_from() -> None:
    maps = noise(4, 8, 2, 2)
    before = maps.clone()
    shift_frames(maps, frames=4, div=8)
    assert torch.equal(maps, before)


def test_fewer_channels_than_parts_are_not_shifted() -> None:
    maps = noise(4, 7, 2, 2)
    assert torch.equal(shift_frames(maps, frames=4, div=8), maps)


def test_the_memory_stays_channels_last() -> None:
    maps = noise(4, 8, 3, 3).contiguous(memory_format=torch.channels_last)
    assert shift_frames(maps, frames=2, div=8).is_contiguous(memory_format=torch.channels_last)


def test_gradients_go_back_to_the_frame_that_the_channel_came_from() -> None:
    maps = noise(3, 4, 1, 1).requires_grad_()
    shift_frames(maps, frames=3, div=4)[0].sum().backward()
    assert maps.grad is not None
    # The first frame holds channel 0 of the second, nothing in channel 1, and its own channels 2 and 3.
    assert maps.grad[:, :, 0, 0].tolist() == [[0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("resnet18", 8),
        ("resnet50", 16),
        ("resnet101", 18),  # every second block of 3, 4, 23 and 3: 2 + 2 + 12 + 2
        ("regnety_002", 13),
        ("mobilenetv2_100", 10),  # TSM: inverted residuals with a shortcut
        ("mobilenetv3_large_100", 9),
        ("tf_efficientnet_lite0", 9),
        ("convnext_atto", 12),
        ("resnetv2_50", 16),
    ],
)
def test_every_residual_block_is_shifted(name: str, places: int) -> None:
    with torch.device("meta"):
        assert add_temporal_shift(build_backbone(name, 3), frames=8, div=8) == places


@pytest.mark.parametrize(("name", "step"), [("resnet50", 1), ("resnet101", 2)])
def test_the_shift_is_before_the_first_convolution_of_the_blocks_that_tsm_names(name: str, step: int) -> None:
    with torch.device("meta"):
        net = build_backbone(name, 3)
    add_temporal_shift(net, frames=8, div=8)
    shifted = [name for name, module in net.named_modules() if module._forward_pre_hooks]
    blocks = [3, 4, 6, 3] if step == 1 else [3, 4, 23, 3]
    # TSM: blocks 0, 2, 4, ... of each stage where the third one has 23 or more, otherwise all of them.
    expected = [f"layer{s}.{b}.conv1" for s, count in enumerate(blocks, start=1) for b in range(0, count, step)]
    assert shifted == expected


@pytest.mark.parametrize("name", ["densenet121", "deit_tiny_patch16_224"])
def test_a_backbone_without_residual_convolutions_is_refused(name: str) -> None:
    with pytest.raises(BadSetting, match=r"has none that are supported\. Choose a ResNet.* or shift_div=0"):
        gf.create(backbone=name, classes=3, glance_px=64, patch_px=64, looks=2, frames=4)


def test_names_of_the_weights_stay_those_of_timm() -> None:
    plain, shifted = backbone(), backbone()
    add_temporal_shift(shifted, frames=4, div=8)
    assert list(plain.state_dict()) == list(shifted.state_dict())


def test_without_a_shift_a_clip_is_seen_frame_by_frame() -> None:
    images, clips = Encoder(backbone()).eval(), ClipEncoder(backbone(), frames=4, shift_div=0).eval()
    frames = noise(2 * 4, 3, 64, 64)
    with torch.no_grad():
        each, together = images(frames), clips(frames)
        answers = images.own_head(each.vector).reshape(2, 4, 3)
        consensus = clips.own_head(together.vector)
    torch.testing.assert_close(together.map, each.map.reshape(2, 4 * 96, 2, 2), rtol=0, atol=0)
    torch.testing.assert_close(together.vector, each.vector.reshape(2, 4, 96).mean(dim=1), rtol=0, atol=1e-6)
    # TSM's consensus is the mean of what the last layer says of each frame.
    torch.testing.assert_close(consensus, answers.mean(dim=1), rtol=0, atol=1e-6)


def test_with_the_shift_the_same_frames_in_another_order_are_another_clip() -> None:
    clips = ClipEncoder(backbone(), frames=4, shift_div=8).eval()
    frames = noise(4, 3, 64, 64)
    with torch.no_grad():
        for module in clips.modules():  # fresh residual branches are turned off: the last norm of each is zero
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.fill_(1.0)
        forwards, backwards = clips(frames).vector, clips(frames.flip(0)).vector
    assert float((forwards - backwards).abs().max()) > 1e-3


def test_a_shifted_encoder_does_what_tsm_writes_down() -> None:
    """The first convolution of the first block is given exactly the shifted map, and its shortcut the map itself."""
    encoder = ClipEncoder(backbone("resnet18"), frames=4, shift_div=8).eval()
    block = encoder.backbone.layer1[0]
    maps = noise(8, 64, 6, 6)
    with torch.no_grad():
        block.bn2.weight.fill_(1.0)
        plain = copy.deepcopy(block)
        plain.conv1._forward_pre_hooks.clear()
        branch = plain.bn2(plain.conv2(plain.act1(plain.bn1(plain.conv1(shift_frames(maps, 4, 8))))))
        torch.testing.assert_close(block(maps), (branch + maps).relu(), rtol=0, atol=1e-6)


def test_a_clip_goes_from_glance_to_answer_and_may_leave_the_batch(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(**CLIPS)
    clips = noise(3, 4, 3, 64, 64)
    with torch.no_grad():
        glance = net.glance(clips)
        assert glance.map.shape == (3, 4 * 96, 1, 1)
        kept = glance.keep(torch.tensor([True, False, True]))
        focus = net.focus(kept, net.policy.aim(kept))
        alone = net.glance(clips[2:])
        alone = net.focus(alone, net.policy.aim(alone))
    assert focus.rows.tolist() == [0, 2]
    torch.testing.assert_close(focus.logits[1:], alone.logits, rtol=0, atol=1e-5)


def test_the_policy_sees_every_frame(small_net: Callable[..., GlanceFocus]) -> None:
    net = small_net(**CLIPS, shift_div=0)
    clips = noise(1, 4, 3, 64, 64).repeat(5, 1, 1, 1, 1)
    for row in range(4):
        clips[row + 1, row] = 0
    with torch.no_grad():
        where = net.policy.aim(net.glance(clips)).where
    assert bool(((where[1:] - where[0]).abs().amax(dim=1) > 1e-6).all())


def test_a_number_of_frames_that_the_network_does_not_look_at_is_refused(small_net: Callable[..., GlanceFocus]) -> None:
    with pytest.raises(BadSetting, match="this network looks at clips of 4 frames, but got images"):
        small_net(**CLIPS).glance(noise(4, 3, 64, 64))
    with pytest.raises(BadSetting, match="this network looks at images, but got clips of 4 frames"):
        small_net().glance(noise(1, 4, 3, 64, 64))


@pytest.mark.parametrize(("frames", "published", "digits", "ours"), [(8, 32.7, 1, 32.70), (16, 65, 0, 65.40)])
def test_tsm_resnet50_costs_what_is_published(frames: int, published: float, digits: int, ours: float) -> None:
    giga = count_costs(network_settings("gf-tsm-resnet50-96-8f", frames=frames)).backbone_macs / 1e9
    assert (round(giga, digits), round(giga, 2)) == (published, ours)


def test_a_clip_costs_its_frames(small_net: Callable[..., GlanceFocus]) -> None:
    image, clip = (count_costs(small_net(classifier="cascaded", **more).settings) for more in ({}, {"frames": 4}))
    assert clip.encoder_macs == 4 * image.encoder_macs
    assert clip.focus_encoder_macs == {"32": 4 * image.focus_encoder_macs["32"]}
    head = image.encoder_with_head_macs - image.encoder_macs
    assert clip.backbone_macs - head == 4 * (image.backbone_macs - head)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"frames": 0}, "frames must be a whole number from 1 to 256, but got 0"),
        ({"frames": 8, "shift_div": 1}, "Use at least 2, or 0 for no shift"),
        ({"frames": 8, "shift_div": -8}, "shift_div must be a whole number from 0 to 65,536, but got -8"),
    ],
)
def test_settings_of_clips_that_cannot_work_are_refused(change: dict[str, int], sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        gf.create(backbone="resnet18", classes=3, **change)
