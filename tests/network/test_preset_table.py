"""The table of presets that is shipped is what counting gives."""

import json
import subprocess
import sys

import pytest

from glancefocus.network.presets import PRESETS, count_preset, read_table

ROWS = {row["preset"]: row for row in read_table()}


def test_every_preset_is_in_the_table_in_their_order() -> None:
    assert list(ROWS) == list(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_the_table_is_what_counting_gives(name: str) -> None:
    assert json.loads(json.dumps(count_preset(PRESETS[name]))) == ROWS[name], (
        "write it again: python -m glancefocus.network.presets"
    )


def test_the_papers_networks_have_as_many_parameters_as_before_there_were_other_views() -> None:
    before = {
        "gf-resnet50-96": 107_732_027,
        "gf-resnet50-128": 137_092_155,
        "gf-densenet121-96": 50_555_579,
        "gf-regnety-600m-96": 18_643_931,
        "gf-mobilenetv3-large-100-96": 17_868_291,
        "gf-efficientnet-b2-128": 31_466_895,
    }
    assert {name: ROWS[name]["parameters"] for name in before} == before
    assert not any(preset.settings.policy.place for preset in PRESETS.values())


def test_listing_the_presets_needs_neither_torch_nor_timm() -> None:
    program = (
        "import sys; from glancefocus.cli.models import ModelsOptions, models; models(ModelsOptions()); "
        "assert not {'torch', 'timm', 'torchvision', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "gf-resnet50-96" in done.stdout
    assert "1 look     an image that stops after the glance" in done.stdout
