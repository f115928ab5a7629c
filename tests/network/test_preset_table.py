"""The table of presets that is shipped is what counting gives."""

import json
import subprocess
import sys

import pytest

from glancefocus.network.preset_table import count_preset, read_table
from glancefocus.network.presets import PRESETS

ROWS = {row["preset"]: row for row in read_table()}


def test_every_preset_is_in_the_table_in_their_order() -> None:
    assert list(ROWS) == list(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_the_table_is_what_counting_gives(name: str) -> None:
    assert json.loads(json.dumps(count_preset(PRESETS[name]))) == ROWS[name], (
        "write it again: python -m glancefocus.network.preset_table"
    )


def test_listing_the_presets_needs_neither_torch_nor_timm() -> None:
    program = (
        "import sys; from glancefocus.cli.models import ModelsOptions, models; models(ModelsOptions()); "
        "assert not {'torch', 'timm', 'torchvision', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "gf-resnet50-96" in done.stdout
    assert "1 look     an image that stops after the glance" in done.stdout
