"""`gf demo`, until training exists: an untrained network looks at built-in pictures."""

from pathlib import Path

from PIL import Image

from glancefocus.bundle import Bundle
from glancefocus.commands.predict import predict_files
from glancefocus.commands.printing import output
from glancefocus.data.signs import CLASSES, SignsSettings, make_signs
from glancefocus.network.assemble import create
from glancefocus.network.multiply_adds import count_costs


def run_demo(folder: Path, *, as_json: bool) -> None:
    """Make pictures and a network with random weights, predict, draw."""
    signs = make_signs("val", 8, SignsSettings(), seed=0, cache=None)
    pictures = folder / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    files = []
    for index, image in enumerate(signs.images):
        file = pictures / f"{index}.png"
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)
        files.append(str(file))
    view = {"fit": "whole", "height_px": 160, "width_px": 160}
    net = create(backbone="test_resnet", classes=len(CLASSES), glance_px=48, patch_px=48, looks=4, view=view, seed=0)
    bundle = Bundle(
        net, CLASSES, count_costs(net.settings), notes={"untrained": "random weights; answers mean nothing"}
    )
    saved = bundle.save(folder / "untrained-bundle")
    if not as_json:
        output().print("[bold]An untrained network on built-in pictures: its answers mean nothing yet.[/bold]")
    predict_files(
        saved,
        files,
        looks=None,
        thresholds=None,
        budget_macs=None,
        topk=1,
        draw=folder / "drawings",
        batch_size=32,
        max_pixels=None,
        as_json=as_json,
    )
