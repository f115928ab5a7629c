"""The settings of the built-in worlds, of folders and of the paper's presets, value by value.

expected_settings.json holds, for each case, every value that differs from the defaults of TrainSettings. The network is left out:
it belongs to the preset and is tested with it.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from glancefocus.data.sources import DataSettings
from glancefocus.network.presets import PRESETS
from glancefocus.settings import NetworkSettings
from glancefocus.training.recipes import train_settings
from glancefocus.training.settings import TrainSettings
from glancefocus.values import to_plain

EXPECTED = Path(__file__).with_name("expected_settings.json")
LARGE = {"view": {"height_px": 960, "width_px": 1280}}
PAPER = [name for name in PRESETS if "mini" not in name]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "signs": ("signs", {}),
    "signs, quick": ("signs", {"effort": "quick"}),
    "signs, thorough": ("signs", {"effort": "thorough"}),
    "signs, large scenes": ("signs", {"network": LARGE}),
    "signs, large scenes, quick": ("signs", {"network": LARGE, "effort": "quick"}),
    "signs, large scenes, own stages": ("signs", {"network": LARGE, "stages": ["initialise,1,2"]}),
    "signs, several patch sizes": ("signs", {"preset": "gf-ms-mini-48"}),
    "signs, several patch sizes, large scenes": ("signs", {"preset": "gf-ms-mini-48", "network": LARGE}),
    "signs, a backbone": ("signs", {"backbone": "test_resnet"}),
    "signs, a preset of the paper": ("signs", {"preset": "gf-resnet50-96"}),
    "gestures": ("gestures", {}),
    "gestures, five frames": ("gestures", {"network": {"frames": 5}}),
    "gestures, thorough": ("gestures", {"effort": "thorough"}),
    "gestures, a backbone": ("gestures", {"backbone": "test_resnet", "network": {"frames": 4}}),
    "photos": ("photos", {}),
    "photos, quick": ("photos", {"effort": "quick"}),
    "photos, on a GPU": ("photos", {"on_gpu": True}),
    "photos, random initialisation": ("photos", {"changes": {"weights": "none"}}),
    "photos, a backbone": ("photos", {"backbone": "resnet18", "changes": {"batch_size": 6}}),
    "clips, a backbone": ("clips", {"backbone": "resnet18", "network": {"frames": 8}}),
    **{
        name: ("clips" if PRESETS[name].settings.frames > 1 else "photos", {"preset": name, "effort": "usual"})
        for name in PAPER
    },
    **{
        f"{name}, pretrained": (
            "clips" if PRESETS[name].settings.frames > 1 else "photos",
            {"preset": name, "changes": {"weights": "pretrained"}},
        )
        for name in ("gf-resnet50-96", "gf-efficientnet-b3-144", "gf-tsm-resnet50-96-8f")
    },
}


def make_folders(folder: Path) -> None:
    """Folders of 60 photographs and of 4 clips; the clips are counted and not read."""
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        (folder / "clips" / name).mkdir(parents=True)
        for number in range(30):
            Image.new("RGB", (48, 60)).save(folder / "photos" / name / f"{number}.png")
        for number in range(2):
            (folder / "clips" / name / f"{number}.mp4").write_bytes(b"never read")


def changes_of(case: str) -> dict[str, Any]:
    """{name with dots: value} of what differs from the defaults."""
    source, words = CASES[case]
    defaults = TrainSettings(DataSettings(source), NetworkSettings("resnet18"))
    flat, usual = (flattened(json.loads(json.dumps(to_plain(s)))) for s in (train_settings(source, **words), defaults))
    return {name: value for name, value in flat.items() if not name.startswith("network.") and value != usual[name]}


def flattened(table: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= flattened(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return flat


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_folders(folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_settings_are_as_they_were(case: str, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folders)
    assert changes_of(case) == json.loads(EXPECTED.read_text())[case]
