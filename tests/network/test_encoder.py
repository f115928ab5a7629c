"""The contract of encoders, kept by backbones of every family: a square map to aim by, a vector to answer by."""

import re
from typing import Any

import pytest
import timm
import torch

import glancefocus as gf
from glancefocus.bundle.bundle import Bundle
from glancefocus.errors import BadSetting, UnknownName
from glancefocus.network.build import build_backbone, check_backbone, expected_colours
from glancefocus.network.macs import count_costs
from glancefocus.network.modules import Encoder
from glancefocus.network.presets import network_settings
from glancefocus.network.temporal_shift import ClipEncoder

# timm's name -> channels and side of the map at 64 px, features of the vector.
BACKBONES = {
    "resnet18": (512, 2, 512),
    "test_resnet": (96, 2, 96),
    "densenet121": (1024, 2, 1024),
    "regnety_002": (368, 2, 368),
    "mobilenetv3_small_050": (288, 2, 1024),  # its vector comes after its conv_head
    "efficientnet_b0": (1280, 2, 1280),
    "test_efficientnet": (256, 2, 256),
    "tf_efficientnet_lite0": (1280, 2, 1280),
    "convnext_atto": (320, 2, 320),
    "deit_tiny_patch16_224": (192, 4, 192),
    "resnetv2_50": (2048, 2, 2048),  # its head is a convolution
    "test_vit": (64, 4, 64),
}


@pytest.mark.parametrize("backbone", BACKBONES)
def test_any_backbone_works_from_glance_to_answer(backbone: str) -> None:
    channels, side, features = BACKBONES[backbone]
    view = {"height_px": 96, "width_px": 96}
    small = {"units": 16, "conv_channels": 4, "linear_units": 32}
    net = gf.create(
        backbone=backbone,
        classes=3,
        glance_px=64,
        patch_px=64,
        looks=2,
        view=view,
        policy=small,
        classifier_units=16,
        seed=0,
    )
    images = torch.randn(2, 3, 96, 80, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        glance = net.glance(images)
        aim = net.policy.aim(glance)
        focus = net.focus(glance, aim)
    assert glance.logits.shape == focus.logits.shape == (2, 3)
    assert glance.map.shape == focus.map.shape == (2, channels, side, side)
    assert glance.vector.shape == focus.vector.shape == (2, features)
    assert aim.where.shape == (2, 2)
    assert bool(((aim.where >= 0) & (aim.where <= 1)).all())
    assert (glance.number, focus.number) == (1, 2)
    bundle = Bundle(net, ("cat", "dog", "eel"), count_costs(net.settings))
    outcome = bundle.predict(torch.rand(2, 3, 100, 130, generator=torch.Generator().manual_seed(1)))
    assert set(outcome.label) <= {"cat", "dog", "eel"}
    assert outcome.cost_macs.tolist() == [bundle.costs.macs_after_look[1]] * 2


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_own_head_on_the_vector_answers_as_the_backbone_itself(backbone: str) -> None:
    encoder = Encoder(build_backbone(backbone, 7)).eval()
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(
            encoder.own_head(encoder(images).vector), encoder.backbone(images), rtol=0, atol=1e-5
        )


def test_tokens_go_back_to_where_they_came_from() -> None:
    encoder = Encoder(build_backbone("test_vit", 2)).eval()
    image = torch.zeros(1, 3, 64, 96)
    with torch.no_grad():
        tokens = encoder.backbone.forward_features(image)
        map_ = encoder(image).map
    prefix = encoder.backbone.num_prefix_tokens
    assert map_.shape == (1, 64, 4, 6)
    # Row 2, column 5 of the map is token 2 x 6 + 5.
    assert torch.equal(map_[0, :, 2, 5], tokens[0, prefix + 17])


def test_both_encoders_have_their_own_weights_unless_they_are_shared() -> None:
    own = gf.create(backbone="test_resnet", classes=2)
    assert own.glance_encoder is not own.focus_encoder
    shared = gf.create(backbone="test_resnet", classes=2, shared_encoder=True)
    assert shared.glance_encoder is shared.focus_encoder


def test_a_seed_repeats_the_weights_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two = (gf.create(backbone="test_resnet", classes=2, seed=3).state_dict() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = gf.create(backbone="test_resnet", classes=2, seed=4).state_dict()
    assert not torch.equal(one["classifier.linear.weight"], other["classifier.linear.weight"])


def test_options_go_to_the_backbone() -> None:
    net = gf.create(backbone="resnet18", classes=2, backbone_options={"channels": [8, 16, 24, 32]}, glance_px=64)
    assert net.glance_encoder.map_channels == 32


@pytest.mark.parametrize(("wrong", "right"), [("resnet81", "resnet18"), ("mobilenetv3_large_126", "_large_125")])
def test_a_misspelt_backbone_gets_a_suggestion(wrong: str, right: str) -> None:
    with pytest.raises(UnknownName, match=rf"no backbone named '{wrong}'. Did you mean .*{right}"):
        gf.create(backbone=wrong)


@pytest.mark.parametrize("name", ["test_resnet.", "test_resnet.r160_in1", "resnet50.a1.in1k"])
def test_weights_that_timm_does_not_know_are_refused_before_anything_is_built(name: str) -> None:
    for ask in (check_backbone, expected_colours):
        with pytest.raises(UnknownName, match="Leave out what follows the point: "):
            ask(name)
    check_backbone("test_resnet.r160_in1k")


def test_an_option_that_the_backbone_does_not_take_is_named() -> None:
    with pytest.raises(BadSetting, match=r"'test_resnet' does not take these options .*patch_size"):
        gf.create(backbone="test_resnet", backbone_options={"patch_size": 8})


def test_a_size_that_the_backbone_does_not_take_is_refused() -> None:
    with pytest.raises(
        BadSetting, match=r"'deit_tiny_patch16_224' does not take images of 60 px: .*Choose another size"
    ):
        gf.create(backbone="deit_tiny_patch16_224", glance_px=60)


def test_a_backbone_of_a_fixed_size_is_refused_at_another() -> None:
    with pytest.raises(BadSetting, match=r"'mixer_s32_224' does not take images of 96 px"):
        gf.create(backbone="mixer_s32_224")


@pytest.mark.parametrize(
    "name", ["hf-hub:timm/resnet18.a1_in1k", "hf_hub:a/b", "local-dir:/etc", "timm/resnet18", "../resnet18"]
)
def test_a_backbone_from_a_hub_or_a_folder_is_refused_before_timm_is_asked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timm, "create_model", None)
    with pytest.raises(BadSetting, match="lies outside of timm. Name one of timm's own"):
        build_backbone(name, 3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"checkpoint_path": "/etc/passwd"}, "no option of backbones named 'checkpoint_path'"),
        ({"pretrained_cfg": {"url": "http://evil"}}, "no option of backbones named 'pretrained_cfg'"),
        ({"pretrained": True}, "no option of backbones named 'pretrained'"),
        ({"features_only": True}, "no option of backbones named 'features_only'"),
        ({"in_chans": 1}, "no option of backbones named 'in_chans'"),
        ({"channels": [8, 16, 24, 10**9]}, "channels must be a whole number from 1 to 8,192, but got 1000000000"),
        ({"channels": [8] * 17}, "channels must have from 1 to 16 values, but has 17"),
        ({"layers": [256, 256, 256, 256]}, "layers asks for 1024 blocks. Use at most 512"),
        ({"layers": [[1]]}, "layers must be a whole number from 1 to 256, but got [1]"),
        ({"layers": [True, True]}, "layers must be a whole number from 1 to 256, but got True"),
        ({"drop_rate": float("nan")}, "drop_rate must be a number from 0 to 1, but got nan"),
        ({"act_layer": "os.system"}, "act_layer must be one of timm's words, but got 'os.system'"),
        ({"zero_init_last": 1}, "zero_init_last must be true or false, but got 1"),
        ({"output_stride": 9}, "cannot be built for 3 classes with {'output_stride': 9}"),
        ({"act_layer": "nothing"}, "'resnet18' "),
    ],
)
def test_only_options_on_the_list_reach_timm(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSetting, match=re.escape(sentence)):
        build_backbone("resnet18", 3, options)


@pytest.mark.parametrize("backbone", ["mobilenetv3_large_075", "mobilenetv3_large_125"])
def test_a_backbone_without_public_weights_says_so(backbone: str) -> None:
    with pytest.raises(BadSetting, match=f"no public weights of {backbone}"):
        gf.create(backbone=backbone, weights="pretrained")


GREY, IMAGENET = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    ("backbone", "colours"), [("tf_efficientnet_lite0", GREY), ("resnet50", IMAGENET), ("test_resnet", GREY)]
)
def test_images_get_the_colours_that_the_backbones_weights_were_trained_with(
    backbone: str, colours: tuple[tuple[float, ...], tuple[float, ...]]
) -> None:
    mean, std = colours
    assert expected_colours(backbone) == {"mean": mean, "std": std}
    view = network_settings(backbone=backbone).view
    assert (view.mean, view.std) == colours
    told = network_settings(backbone=backbone, view={"mean": (0.1, 0.2, 0.3)}).view
    assert (told.mean, told.std) == ((0.1, 0.2, 0.3), std)


def test_a_backbone_that_timm_does_not_know_expects_nothing() -> None:
    assert expected_colours("mobilenetv3_large_125") == {}
    assert expected_colours("resnet81") == {}
    assert (network_settings(backbone="mobilenetv3_large_125").view.mean) == IMAGENET[0]


@pytest.mark.parametrize("backbone", ["test_resnet", "test_efficientnet", "resnetv2_50"])
def test_evidence_is_the_answer_spread_over_the_places_it_comes_from(backbone: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(build_backbone(backbone, 3)).eval()
    images, labels = torch.randn(3, 3, 96, 128), torch.tensor([0, 2, 1])
    with torch.no_grad():
        answers = encoder.own_head(encoder(images).vector) - encoder.own_head(torch.zeros(1, encoder.vector_features))
    own = answers[range(3), labels]
    evidence = encoder.evidence(images, labels)
    assert evidence.shape == (3, 3, 4)
    assert not evidence.requires_grad
    torch.testing.assert_close(
        evidence.mean(dim=(1, 2)), own - (answers.sum(dim=1) - own) / 2, rtol=1e-4, atol=1e-5
    )  # of averages and linear heads: the class activation map, without biases


@pytest.mark.parametrize("backbone", ["convnext_atto", "mobilenetv3_small_050", "swin_tiny_patch4_window7_224"])
def test_heads_that_are_not_linear_have_evidence_too(backbone: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(build_backbone(backbone, 3)).eval()
    px = 224 if backbone.startswith("swin") else 128
    evidence = encoder.evidence(torch.randn(2, 3, px, px), torch.tensor([0, 1]))
    assert evidence.shape == (2, px // 32, px // 32)
    assert bool(evidence.isfinite().all())
    assert bool((evidence != 0).any())


def test_a_head_that_does_not_read_the_map_has_no_evidence_in_it() -> None:
    encoder = Encoder(build_backbone("deit_tiny_patch16_224", 3)).eval()  # answers from its class token
    assert not bool(encoder.evidence(torch.randn(1, 3, 64, 64), torch.tensor([0])).any())


def test_evidence_of_a_clip_is_the_mean_of_that_of_its_frames() -> None:
    torch.manual_seed(0)
    backbone = build_backbone("test_resnet", 3).eval()
    labels = torch.tensor([1, 2])
    frames = torch.randn(6, 3, 64, 64)
    each = Encoder(backbone).evidence(frames, labels.repeat_interleave(3)).unflatten(0, (2, 3))
    torch.testing.assert_close(ClipEncoder(backbone, 3, shift_div=0).evidence(frames, labels), each.mean(dim=1))
