"""timm's names are found in its files, so that a misspelt backbone is said without importing timm."""

import subprocess
import sys

import pytest
import timm

from glancefocus.errors import UnknownName
from glancefocus.network.presets import refuse_misspelt


def test_no_backbone_of_timm_is_refused() -> None:
    for name in (*timm.list_models()[::30], "resnet50.a1_in1k", "mobilenetv3_large_125", "hf-hub:timm/resnet18"):
        refuse_misspelt(name)


def test_a_backbone_that_a_program_has_registered_with_timm_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="no backbone named 'own_network'"):
        refuse_misspelt("own_network")
    monkeypatch.setitem(timm.models._registry._model_entrypoints, "own_network", timm.models.resnet18)
    refuse_misspelt("own_network")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnet5O", "resnet50"),
        ("tf_eficientnet_lite0", "tf_efficientnet_lite0"),
        ("mobilenetv3_large_12", "mobilenetv3_large_125"),
    ],
)
def test_a_misspelt_backbone_is_refused_with_a_suggestion(name: str, near: str) -> None:
    with pytest.raises(UnknownName, match=f"no backbone named '{name}'. Did you mean .*'{near}'"):
        refuse_misspelt(name)


def test_neither_torch_nor_timm_is_imported_to_say_so() -> None:
    program = (
        "import sys; from glancefocus.cli.main import main\n"
        "try: main(['train', '/nowhere', '--backbone', 'resnet5O'])\n"
        "finally: assert not {'torch', 'timm'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("gf: there is no backbone named 'resnet5O'. Did you mean 'resnet50'")
