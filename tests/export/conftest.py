"""Exports that several tests share: each is written once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glancefocus.bundle.bundle import Bundle
from glancefocus.export.compare import made_up
from glancefocus.export.deliver import export_bundle


@pytest.fixture(scope="session")
def exported_bundle(small_bundle: Callable[..., Bundle]) -> Bundle:
    """A bundle that leaves at every look, at budgets too."""
    bundle = small_bundle()
    pictures = [frames[0] for frames in next(made_up(bundle.settings).batches())]
    after = np.sort(bundle.predict(pictures, looks=3).confidence_after.numpy(), axis=0)
    bundle.thresholds = (*((float(column[15]) + float(column[16])) / 2 for column in after.T[:2]), 0.0)
    macs = bundle.costs.macs_after_look
    bundle.curve = [
        {"mean_macs": macs[0] * 1.2, "accuracy": 0.5, "thresholds": [float(after[20, 0]), 0.0, 0.0]},
        {"mean_macs": macs[1] * 1.2, "accuracy": 0.6, "thresholds": [float(after[25, 0]), float(after[25, 1]), 0.0]},
    ]
    return bundle


@pytest.fixture(scope="session")
def onnx_folder(exported_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "onnx"
    export_bundle(exported_bundle, folder, "onnx")
    return folder


VIEWS = ("32", "0.5@48", "40px@48", "whole@64")


@pytest.fixture(scope="session")
def bundle_of_views(small_bundle: Callable[..., Bundle]) -> Bundle:
    """A bundle with candidate views of every kind, which uses all of them."""
    policy = {"units": 16, "conv_channels": 4, "place": True}
    bundle = small_bundle(focus=VIEWS, classifier="summed", policy=policy)
    pictures = [frames[0] for frames in next(made_up(bundle.settings).batches())]
    after = np.sort(bundle.predict(pictures, looks=3).confidence_after.numpy(), axis=0)
    limits = tuple((float(after[row, 0]) + float(after[row + 1, 0])) / 2 for row in (5, 11, 17, 23))
    bundle.thresholds = (limits, limits[::-1], (0.0,) * 4)
    return bundle


@pytest.fixture(scope="session")
def onnx_folder_of_views(bundle_of_views: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported-views") / "onnx"
    export_bundle(bundle_of_views, folder, "onnx")
    return folder


@pytest.fixture(scope="session")
def pictures(exported_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures, each in a folder named as the bundle answers it."""
    folder = tmp_path_factory.mktemp("pictures")
    sample = made_up(exported_bundle.settings, count=24, seed=1)
    shown = [frames[0] for frames in next(sample.batches())]
    for number, (picture, label) in enumerate(zip(shown, exported_bundle.predict(shown).label, strict=True)):
        (folder / label).mkdir(exist_ok=True)
        picture.save(folder / label / f"{number:02}.png")
    return folder


@pytest.fixture
def described() -> Callable[[Path], dict[str, Any]]:
    return lambda folder: json.loads((folder / "glancefocus.json").read_text(encoding="utf-8"))


@pytest.fixture
def grey(tmp_path: Path) -> Path:
    Image.new("RGB", (70, 80), "grey").save(tmp_path / "grey.png")
    return tmp_path / "grey.png"
