"""The words of `gf train`. Nothing heavy is imported before they are read."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from glancefocus.cli.words import Json
from glancefocus.errors import BadSetting
from glancefocus.interrupts import speaks
from glancefocus.values import (
    BadFiles,
    BatchSize,
    Frames,
    Looks,
    Pixels,
    PositiveShare,
    Processes,
    Rounds,
    Scenes,
    Seed,
    Shift,
    TrainBatchSize,
    Workers,
)


def train(
    data: str,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    quick: Annotated[bool, Parameter(negative="")] = False,
    thorough: Annotated[bool, Parameter(negative="")] = False,
    preset: str | None = None,
    backbone: str | None = None,
    weights: str | None = None,
    start: str | None = None,
    stages: list[str] | None = None,
    rounds: Rounds | None = None,
    glance_px: Pixels | None = None,
    patch_px: Annotated[list[Pixels] | None, Parameter(consume_multiple=True)] = None,
    looks: Looks | None = None,
    frames: Frames | None = None,
    height_px: Pixels | None = None,
    width_px: Pixels | None = None,
    fit: Literal["crop", "stretch", "whole"] | None = None,
    flip: bool | None = None,
    crop: PositiveShare | None = None,
    shift_px: Shift | None = None,
    in_memory: bool | None = None,
    check_files: bool | None = None,
    max_bad_files: BadFiles | None = None,
    scenes: tuple[Scenes, Scenes, Scenes] | None = None,
    batch_size: TrainBatchSize | None = None,
    precision: Literal["no", "bf16", "fp16"] | None = None,
    accumulation: BatchSize | None = None,
    workers: Workers | None = None,
    processes: Processes = 1,
    resume: Annotated[bool, Parameter(negative="")] = False,
    seed: Seed | None = None,
    rivals: Literal["none", "as-is", "tuned"] | None = None,
    setting: Annotated[list[str] | None, Parameter(name=["--set"])] = None,
    track: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    json: Json = False,
) -> None:
    """Train on your images or clips. Prints a plan first; the same command again goes on where it was stopped.

    Sizes, batch, rates and epochs are chosen to fit the data, unless a preset of the paper is named or options say otherwise.

    Example: gf train photos/

    Example: gf train photos/ --weights tf_efficientnet_lite0.safetensors --quick

    Parameters
    ----------
    data
        A folder with train/ and val/ of class folders, or of class folders; a CSV of path,label; Something-Something or Jester as
        they are published; or a built-in world, signs or (of clips) gestures. Where there is no val/, some images of each class are
        held out: a fifth, of small sets more (150 images, at most a third), or --set data.val_share=0.3.
    output
        The run's folder. When left out it is runs/NAME; a run with other options gets runs/NAME-2, the same options go on with
        the run that has them.
    quick
        A third of the epochs: a first impression.
    thorough
        Three times the epochs.
    preset
        A network of `gf models`, with the paper's settings, which are for ImageNet and GPUs.
    backbone
        Any timm backbone; left out: tf_efficientnet_lite0, or the preset of a built-in world.
    weights
        A file of weights for the backbone, "pretrained" (those that timm names, downloaded), or "none" (random initialisation).
        Left out: pretrained where timm has weights and no preset is named, else none.
    start
        A bundle whose network is trained on, with the same preset or backbone and sizes.
    stages
        What to run: initialise, 1, 2, 3, or joint (one stage instead of three). Give it several times or with commas;
        2 and 3 may come again. point, before 2 or instead of it: the policy is taught where the backbone finds its evidence.
        In a built-in world also small and small_glance: backbone and glance encoder see small scenes first.
    rounds
        How many times stages II and III are run.
    glance_px
        Side of the glance.
    patch_px
        Side of the patches; several sizes, smallest first, make a network that chooses among them: --patch-px 32 48 64.
    looks
        The glance and the focus looks together.
    frames
        Learn from clips (video files, or folders of frames): look at this many evenly spaced frames of each.
    height_px
        Height of the images that are looked at.
    width_px
        Width of the images that are looked at.
    fit
        How pictures are brought to that size: crop or stretch. With whole they keep their own, and that size only stands for
        it where costs and times are measured.
    flip
        Mirror images at random; --no-flip where left and right matter. Clips are not mirrored unless --flip says so.
    crop
        Train on random parts of at least this share of the area; 1 turns it off.
    shift_px
        Move training images by up to this many pixels each way, the edge repeated; the built-in worlds' scenes, too.
    in_memory
        View all images once and hold them in memory.
    check_files
        Read every file once before training, and skip bad ones. Without it they are only hashed.
    max_bad_files
        List and skip up to this many unreadable files, then abort.
    scenes
        Scenes of the built-in world for training, validation and test.
    batch_size
        Images an update, over all processes.
    precision
        Mixed precision.
    accumulation
        Parts in which a batch is computed, where it does not fit.
    workers
        Processes that read files.
    processes
        Training processes on this machine; several machines: torchrun ... -m glancefocus train ...
    resume
        Go on with the latest run of this data (or with the one in --output), with the options that it was started with.
    seed
        Makes the run repeatable.
    rivals
        What the run is compared with at its end: as-is (the backbone on validation images resized to several sizes, no training),
        tuned (also tuned at two smaller sizes with the epochs of the stage backbone), or none.
    setting
        Any other setting as name=value, such as aim.reward=increment or recognise.encoder_lr=0.005.
    track
        Trackers that get the figures of every epoch: tensorboard, wandb (Weights & Biases), mlflow; none for none of them. Left
        out: tensorboard where it is installed. metrics.jsonl in the run's folder is always written.
    """
    options = dict(locals())
    _check_names(preset, backbone)
    from glancefocus.cli.printing import notice
    from glancefocus.cli.processes import run_in_processes
    from glancefocus.cli.train import run_training
    from glancefocus.data.worlds.names import WORLDS
    from glancefocus.network.pretrained import check_weights
    from glancefocus.training.journal import chosen_trackers
    from glancefocus.training.recipes import train_settings
    from glancefocus.training.run_folder import asked_for, choose_run

    trackers = chosen_trackers(track)

    asked = asked_for(options)
    chosen = choose_run(asked, data, output, resume=resume)
    if chosen.sentence is not None and speaks():
        notice(chosen.sentence)
    view = {"fit": fit, "height_px": height_px, "width_px": width_px}
    view = {name: value for name, value in view.items() if value is not None}
    augment = {"flip": flip, "crop": crop, "shift_px": shift_px}
    augment = {name: value for name, value in augment.items() if value is not None}
    made = chosen.settings or train_settings(
        data,
        preset=preset,
        backbone=backbone,
        network={
            "glance_px": glance_px,
            "patch_px": None if patch_px is None else tuple(patch_px),
            "looks": looks,
            "frames": frames,
            **({"view": view} if view else {}),
        },
        data={
            "in_memory": in_memory,
            "check_files": check_files,
            "max_bad_files": max_bad_files,
            "workers": workers,
            "scenes": None if scenes is None else list(scenes),
            **({"augment": augment} if augment else {}),
        },
        stages=stages,
        changes={
            "weights": weights,
            "start": start,
            "rounds": rounds,
            "batch_size": batch_size,
            "precision": precision,
            "accumulation": accumulation,
            "seed": seed,
            "rivals": rivals,
        },
        assignments=setting,
        effort=_effort(quick, thorough),
        on_gpu=_on_gpu(),
    )
    check_weights(made.network.backbone, made.weights)
    settings = made if workers is None else replace(made, data=replace(made.data, workers=workers))
    settings = settings if rivals is None else replace(settings, rivals=rivals)
    if processes != 1:
        run_in_processes(settings, chosen.folder, processes, asked=asked, as_json=json, track=trackers)
        return
    sized = height_px is not None or width_px is not None
    if sized and settings.network.view.fit == "whole" and data not in WORLDS and speaks():
        notice(
            "pictures keep their own size (fit is whole): --height-px and --width-px only stand for it where costs and times are "
            "measured. Use --fit stretch or --fit crop to resize them."
        )
    run_training(settings, chosen.folder, asked=asked, as_json=json, track=trackers)


def train_process(
    folder: Path,
    *,
    track: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    json: Json = False,
) -> None:
    """One of several processes of a run, started by `gf train --processes`.

    Parameters
    ----------
    folder
        The run's folder, which holds its settings.
    track
        As in `gf train`.
    """
    from glancefocus.cli.processes import end_with_parent
    from glancefocus.cli.train import run_training
    from glancefocus.training.run_folder import settings_of

    end_with_parent()
    run_training(settings_of(folder), folder, as_json=json, track=track)


def _check_names(preset: str | None, backbone: str | None) -> None:
    """Misspelt names are said before anything else is imported or read."""
    if preset is not None:
        from glancefocus.network.presets import check_preset

        check_preset(preset)
    if backbone is not None:
        from glancefocus.network.presets import refuse_misspelt

        refuse_misspelt(backbone)


def _effort(quick: bool, thorough: bool) -> Literal["quick", "usual", "thorough"]:
    if quick and thorough:
        raise BadSetting("--quick and --thorough exclude each other. Leave one of them out.")
    return "quick" if quick else "thorough" if thorough else "usual"


def _on_gpu() -> bool:
    import torch

    return torch.accelerator.is_available()
