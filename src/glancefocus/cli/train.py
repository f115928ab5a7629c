"""`gf train`: trains a network on a data set, and reports the result."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from glancefocus.cli.main import Flag, Json, OutputName, command_options
from glancefocus.cli.printing import notice
from glancefocus.cli.train_result import print_result
from glancefocus.errors import BadRun, BadSetting
from glancefocus.interrupts import prints_messages
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

if TYPE_CHECKING:
    from glancefocus.training.settings import TrainSettings

# Options that are settings of the run under the same name.
_CHANGES = ("weights", "start", "teacher", "rounds", "batch_size", "precision", "accumulation", "seed", "rivals")
Several = Parameter(consume_multiple=True)


@command_options
@dataclass(frozen=True)
class TrainOptions:
    """Options of `gf train`. Their names are stored with a run (see training.run_folder), so that it can be found again."""

    data: str
    """A folder with one folder of images (or clips) for each class; or a folder with train/ and val/, each of which holds such
    folders; a CSV file with the columns path and label; a data set as it was published (ImageNet, Something-Something, Jester and
    others, see docs/train.md); or a built-in data set: signs (images) or gestures (clips). Without val/, 20 % of each class are
    held out for validation; in small data sets up to 33 %, to reach 150 images in all. --set data.val_share=0.3 holds out 30 %
    instead."""
    _: KW_ONLY
    output: Annotated[Path | None, OutputName] = None
    """Folder of the run. Default: runs/ and the name of the data, such as runs/photos. The same command again continues its run.
    With another option the default becomes runs/photos-2; a folder that is given here and holds a run with other options is
    refused. To repeat a run from the beginning, give another folder."""
    quick: Flag = False
    """Train every stage for a third of the epochs, for a first result."""
    thorough: Flag = False
    """Train every stage for three times the epochs."""
    preset: str | None = None
    """Name of a preset (ready-made network settings); `gf models` lists them. Presets of the paper are trained with the recipe of
    the paper, which is meant for ImageNet and GPUs."""
    backbone: str | None = None
    """Any timm backbone, instead of a preset. Default: tf_efficientnet_lite0; for a built-in data set, that of its own preset."""
    weights: str | None = None
    """Initial weights of the backbone: a file, "pretrained" (timm downloads them), or "none" (random initialisation). Default:
    pretrained, with a download, for your own data without a preset; otherwise none."""
    start: str | None = None
    """Start from a complete trained network instead of weights of a backbone: the folder `bundle` that another run wrote. It must
    have the same preset or backbone, sizes and number of classes. All of its stages would be trained again: name with --stages
    those that you want to train further."""
    teacher: str | None = None
    """A file with weights of the same backbone, already trained on the same classes, such as backbone.safetensors in the folder of
    another run. Glance and focus looks learn from its answers (distillation). Default: the backbone that this run trains. If the
    --stages have no stage backbone, there is no teacher, and training uses the labels only."""
    stages: list[str] | None = None
    """Training stages, separated by commas; they run in the order that you give. initialise: train the backbone on whole images,
    then the glance encoder on glances (the same as backbone,glance). 1: train encoders and classifier on focus looks. point: train
    the policy, by supervision, to look at the places where the backbone finds its evidence for the label (its class activation
    map). 2: train the policy by reinforcement learning, as in the paper; instead of point, or after it. 3: fine-tune encoders and
    classifier on focus looks at the places that this policy chooses. joint: train everything together, instead of 1, 2 and 3. For
    built-in data sets also small and small_glance: train backbone and glance encoder on small images first. Default:
    initialise,1,point for your own images, initialise,1,2 for your own clips, glance,1,2 for large images with --fit whole;
    otherwise the stages of the preset or built-in data set."""
    rounds: Rounds | None = None
    """Repeat the stages 2 and 3 at the end of --stages: with --stages initialise,1,2,3 --rounds 2 the stages are
    initialise,1,2,3,2,3. Default: 1."""
    glance_px: Pixels | None = None
    """Side of the glance (the whole image, resized) in pixels. Default: chosen to fit the data, or that of the preset; see the
    plan."""
    focus: Annotated[list[str] | None, Several] = None
    """What a focus look shows: one view, or several candidate views, the one with the fewest pixels first. If there are several,
    one of them is chosen for each look, by thresholds on the confidence that are found at the end of the run. 96: a patch of 96 px,
    cut out of the image at the resolution of --source-px. 0.5@112: a square of half of the image's shorter side, resized to 112 px.
    200px@96: a square of 200 px, resized to 96 px. whole@160: the whole image, resized to 160 px. For example: --focus 96 0.5@112
    whole@160. Default: chosen to fit the data, or those of the preset; see the plan."""
    patch_px: Annotated[list[Pixels] | None, Several] = None
    """The same as --focus for patches at full resolution only: their sides in pixels, such as --patch-px 32 48 64."""
    looks: Looks | None = None
    """Largest number of looks at an image: the glance and the focus looks together. Default: 3 for your own data; otherwise
    that of the preset."""
    frames: Frames | None = None
    """Number of evenly spaced frames that the network sees of each clip (video file, or folder of frames). Needed for clips, unless
    the preset is one for clips; not for images."""
    source_px: Pixels | None = None
    """Side in pixels to which images are resized before the network looks at them, such as 448: the same as --height-px and
    --width-px with this number. In a larger image a patch shows more detail. Glance and focus views grow with it, unless
    --glance-px and --focus are given. Default: 224; less for small images."""
    height_px: Pixels | None = None
    """Height to which images are resized before patches are cut out. Default: as for --source-px."""
    width_px: Pixels | None = None
    """Width to which images are resized before patches are cut out. Default: as for --source-px."""
    fit: Literal["crop", "stretch", "whole"] | None = None
    """How images are brought to --height-px and --width-px. crop: resize, then cut out the centre. stretch: resize without keeping
    the proportions. whole: do not resize, every image keeps its size; the three sizes are then used only to estimate costs and
    times. Of images with more than 4.2 megapixels only the regions that are looked at are read. Default: crop for your own data."""
    flip: bool | None = None
    """Mirror training images at random. Use --no-flip if left and right have different meanings. Default: on for images, off for
    clips."""
    crop: PositiveShare | None = None
    """Augmentation by random crops: the smallest fraction of the image's area that a crop keeps, above 0 and up to 1; 1 turns it
    off. Give a larger value, such as 0.6, if a small crop often misses the object. Only training images are cropped, never those
    of validation or prediction. Clips are cropped as in TSM (Temporal Shift Module, the paper's method for clips); 1
    turns that off, other values have no effect on clips. Default:
    0.35 for your own images."""
    shift_px: Shift | None = None
    """Augmentation: move training images at random by up to this many pixels in each direction, repeating the edge pixels.
    Default: 0 for your own data."""
    in_memory: bool | None = None
    """--in-memory: read and resize all images (or clips) once and keep them in main memory, however large they are; this turns
    random crops off. --no-in-memory: read the files again in every epoch. Default: images are kept in memory, with random crops,
    if they need at most an eighth of the machine's memory (--set data.hold_mib=2048: 2 GiB); otherwise, and for clips, the files
    are read in every epoch."""
    check_files: bool | None = None
    """Decode every file before training, to find damaged ones early. --no-check-files saves this time; then the first damaged file
    stops the run when it is used, even with --max-bad-files. Default: on."""
    max_bad_files: BadFiles | None = None
    """Skip up to this many damaged files, and list them; abort if there are more. Default: 10."""
    scenes: tuple[Scenes, Scenes, Scenes] | None = None
    """For a built-in data set: number of scenes (images or clips) to draw for training, validation and test, such as --scenes 2000
    400 400. Default: those of the recipe, such as 5000 500 1000 for signs and 2500 300 1000 for gestures."""
    batch_size: TrainBatchSize | None = None
    """Images (or clips) in one optimiser step, over all processes. Default: chosen to fit the data, or that of the preset; see the
    plan."""
    precision: Literal["no", "bf16", "fp16"] | None = None
    """Numbers that training computes with. bf16, fp16: mixed precision. no: float32 only. Default: no."""
    accumulation: BatchSize | None = None
    """Compute each batch in this many parts, one after the other, to save memory (gradient accumulation). Default: as few
    parts as the memory allows."""
    workers: Workers | None = None
    """Number of processes that read files; 0: the training process reads them. Default: 2, or 1 if only one CPU core may be used.
    Images that are kept in memory need none."""
    processes: Processes = 1
    """Number of training processes on this machine, one for each GPU. On several machines start the training with torchrun instead:
    torchrun [its options] -m glancefocus train DATA [options]."""
    resume: Flag = False
    """Continue the latest run on this data, or the run in --output, with the options that it was started with, so that they need
    not be typed again."""
    seed: Seed | None = None
    """Seed of all random numbers. On the same machine the same seed gives the same run. Default: 0."""
    rivals: Literal["none", "as-is", "tuned"] | None = None
    """The rivals (baselines) that the network is compared with at the end of the run, at an equal number of multiply-adds per
    image. as-is: the run's backbone on validation images resized to several sizes, without further training; the network's own
    encoders, each alone; and cascades of these (a small size first, a larger one if the confidence is low). tuned: also the
    backbone trained further at each smaller size, which for each size takes about as long as the stage glance. none: no comparison.
    Default: as-is."""
    setting: Annotated[list[str] | None, Parameter(name=["--set"])] = None
    """Any other setting, as name=value; may be repeated. Epochs and learning rates are set here: --set glance.epochs=10 --set
    recognise.encoder_lr=0.005. The prefixes are backbone, glance, recognise (stage 1), point, aim (stage 2), finetune (stage 3),
    joint, network and data. The file settings.json in the folder of a run lists all names."""
    track: Annotated[list[str] | None, Several] = None
    """Experiment trackers that get the metrics of every epoch, such as --track tensorboard wandb: tensorboard, wandb (Weights &
    Biases), mlflow, or none. Default: tensorboard if it is installed. The file metrics.jsonl in the folder of the run is always
    written."""
    json: Json = False

    def __post_init__(self) -> None:
        if self.source_px is not None and (self.height_px is not None or self.width_px is not None):
            raise BadSetting("--source-px is both --height-px and --width-px. Leave it out, or the two of them.")
        if self.quick and self.thorough:
            raise BadSetting("--quick and --thorough exclude each other. Leave one of them out.")

    @property
    def effort(self) -> Literal["quick", "usual", "thorough"]:
        return "quick" if self.quick else "thorough" if self.thorough else "usual"


def train(options: TrainOptions) -> None:
    """Train a network on your images or clips. To continue a stopped run, give the same command again.

    Sizes, batch size, learning rates and epochs are chosen to fit the data, unless you give them or a preset of the paper. A plan
    with all of them and the expected time is printed, then training starts. The trained network is the folder bundle in the folder
    of the run.

    Words: a glance shows the whole image at low resolution. A focus look is any look after the glance. A view is what such a look
    shows: how much of the image, at which size. The policy is the part of the network that chooses where to look. The paper is
    Glance and Focus Networks (Huang et al., 2022).

    Example: gf train photos/

    Example: gf train photos/ --weights tf_efficientnet_lite0.safetensors --quick
    """
    _check_names(options.preset, options.backbone)
    from glancefocus.cli.processes import run_in_processes
    from glancefocus.data.worlds import WORLDS
    from glancefocus.network.weights import check_weights
    from glancefocus.training.journal import chosen_trackers
    from glancefocus.training.run_folder import asked_for, choose_run

    trackers = chosen_trackers(options.track)
    asked = asked_for(vars(options))
    chosen = choose_run(asked, options.data, options.output, resume=options.resume)
    if chosen.sentence is not None and prints_messages():
        notice(chosen.sentence)
    settings = chosen.settings or settings_from(options)
    check_weights(settings.network.backbone, settings.weights)
    if options.workers is not None:
        settings = replace(settings, data=replace(settings.data, workers=options.workers))
    if options.rivals is not None:
        settings = replace(settings, rivals=options.rivals)
    if options.processes != 1:
        run_in_processes(settings, chosen.folder, options.processes, asked=asked, as_json=options.json, track=trackers)
        return
    sized = bool(_given(options, "source_px", "height_px", "width_px"))
    if sized and settings.network.view.fit == "whole" and options.data not in WORLDS and prints_messages():
        notice(
            "images keep their own size (fit is whole): --source-px, --height-px and --width-px are used only to estimate costs "
            "and times. Use --fit stretch or --fit crop to resize them."
        )
    run_training(settings, chosen.folder, asked=asked, as_json=options.json, track=trackers)


def _check_names(preset: str | None, backbone: str | None) -> None:
    """Refuse misspelt names before anything slow is imported or read."""
    if preset is not None:
        from glancefocus.network.presets import check_preset

        check_preset(preset)
    if backbone is not None:
        from glancefocus.network.presets import refuse_misspelt

        refuse_misspelt(backbone)


def _focus(options: TrainOptions) -> tuple[str, ...] | None:
    if options.patch_px is None:
        return None if options.focus is None else tuple(options.focus)
    if options.focus is not None:
        raise BadSetting("--focus and --patch-px both name the views of the focus looks. Give one of them.")
    return tuple(map(str, options.patch_px))


def settings_from(options: TrainOptions) -> "TrainSettings":
    """The settings of a new run with these options."""
    import torch

    from glancefocus.training.recipes import train_settings

    view = _given(options, "fit", "height_px", "width_px")
    if options.source_px is not None:
        view |= {"height_px": options.source_px, "width_px": options.source_px}
    augment = _given(options, "flip", "crop", "shift_px")
    return train_settings(
        options.data,
        preset=options.preset,
        backbone=options.backbone,
        network={
            "glance_px": options.glance_px,
            "focus": _focus(options),
            "looks": options.looks,
            "frames": options.frames,
            **({"view": view} if view else {}),
        },
        data={
            "in_memory": options.in_memory,
            "hold_mib": 0 if options.in_memory is False else None,
            "check_files": options.check_files,
            "max_bad_files": options.max_bad_files,
            "workers": options.workers,
            "scenes": None if options.scenes is None else list(options.scenes),
            **({"augment": augment} if augment else {}),
        },
        stages=options.stages,
        changes={name: getattr(options, name) for name in _CHANGES},
        assignments=options.setting,
        effort=options.effort,
        on_gpu=torch.accelerator.is_available(),
    )


def _given(options: TrainOptions, *names: str) -> dict[str, Any]:
    """Those of these options that were given."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


@command_options
@dataclass(frozen=True)
class TrainProcessOptions:
    """Options of `gf train-process`."""

    folder: Path
    """Folder of the run, which holds its settings."""
    _: KW_ONLY
    track: Annotated[list[str] | None, Several] = None
    """As in `gf train`."""
    json: Json = False


def train_process(options: TrainProcessOptions) -> None:
    """One of several processes of a run, started by `gf train --processes`."""
    from glancefocus.cli.processes import end_with_parent
    from glancefocus.training.run_folder import settings_of

    end_with_parent()
    run_training(settings_of(options.folder), options.folder, as_json=options.json, track=options.track)


def run_training(
    settings: "TrainSettings",
    folder: Path,
    *,
    asked: dict[str, Any] | None = None,
    as_json: bool,
    track: Sequence[str] | None,
) -> None:
    """Train, and report the result; if the run is finished already, only report it.

    asked  the options that the run was started with, see asked_for
    track  the trackers to send figures to, see chosen_trackers
    """
    from glancefocus.machine import keep_freed_memory
    from glancefocus.training import run
    from glancefocus.training.run_folder import run_stop_message

    keep_freed_memory()
    first_process = os.environ.get("RANK", "0") == "0"
    with run_stop_message(folder), _memory_errors(settings):
        bundle = run.finished_bundle(settings, folder)
        if bundle is None:
            bundle = run.train(settings, folder, asked=asked, quiet=as_json, planned=True, reported=True, track=track)
        elif first_process:
            notice(f"the run in {folder} is finished; this is its result. For another run use other options, or -o.")
    if first_process:
        print_result(bundle, folder, as_json=as_json)


@contextlib.contextmanager
def _memory_errors(settings: "TrainSettings") -> Iterator[None]:
    """Report that there was not enough memory, although the plan had estimated that there was."""
    from glancefocus.machine import is_out_of_memory

    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise BadRun(
            f"there is not enough memory for batches of {settings.batch_size} images of {settings.network.view.height_px}x"
            f"{settings.network.view.width_px} px. The last checkpoint is kept. Compute batches in more parts "
            f"(--accumulation {2 * settings.accumulation}), or free some memory, and start again in another folder."
        ) from None
