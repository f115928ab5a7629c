"""`gf train`: trains a network on a data set, and reports the result."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from glancefocus.cli.main import Flag, Json, OutputName, command_options
from glancefocus.cli.printing import notice, print_line, print_verdict
from glancefocus.errors import BadBundle, BadRun, BadSetting
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
    from glancefocus.bundle.bundle import Bundle
    from glancefocus.training.settings import TrainSettings

_LONGEST_SENTENCE = 10_000
# Options that are settings of the run under the same name.
_CHANGES = ("weights", "start", "teacher", "rounds", "batch_size", "precision", "accumulation", "seed", "rivals")
Several = Parameter(consume_multiple=True)


@command_options
@dataclass(frozen=True)
class TrainOptions:
    """Options of `gf train`. Their names are stored with a run (see training.run_folder), so that it can be found again."""

    data: str
    """A folder with one folder of images (or clips) for each class; or a folder with train/ and val/, each of which holds such
    folders; a CSV file with the columns path and label; Something-Something or Jester as published; or a built-in data set: signs
    (images) or gestures (clips). Without val/, a fifth of each class is held out for validation; in small data sets more, up to a
    third, to reach 150 images. --set data.val_share=0.3 changes the share."""
    _: KW_ONLY
    output: Annotated[Path | None, OutputName] = None
    """Folder of the run. Default: runs/NAME, where NAME is that of the data. A command with the same options continues its run;
    with other options a new run gets runs/NAME-2. To train again with the same options, name another folder."""
    quick: Flag = False
    """Train for a third of the epochs, for a first impression."""
    thorough: Flag = False
    """Train for three times the epochs."""
    preset: str | None = None
    """A network from `gf models`. Those of the paper are trained with the recipe of the paper, which is meant for ImageNet and
    GPUs."""
    backbone: str | None = None
    """Any timm backbone, instead of a preset. Default: tf_efficientnet_lite0; for a built-in data set, that of its own preset."""
    weights: str | None = None
    """Initial weights of the backbone: a file, "pretrained" (timm downloads them), or "none" (random initialisation). Default:
    pretrained, with a download, for your own data without a preset; otherwise none."""
    start: str | None = None
    """Start a new run from the whole network of this bundle, not only from weights of a backbone. It must have the same preset or
    backbone, sizes and number of classes."""
    teacher: str | None = None
    """A file with weights of the same backbone, already trained on the same classes, such as backbone.safetensors in the folder of
    another run. Glance and focus looks learn from its answers (distillation). Default: the run's own backbone, after the stage
    backbone; stages that do not include it learn from labels only."""
    stages: list[str] | None = None
    """Training stages to run, in this order. initialise: train the backbone on whole images, then the glance encoder on glances
    (the same as backbone,glance). 1: train encoders and classifier on focus looks. point: train the policy, which chooses where to
    look, by supervision: to aim where the backbone finds its evidence for the label (its class activation map). 2, instead of
    point or after it: train the policy by reinforcement learning, as in the paper. 3: fine-tune encoders and classifier with this
    policy. joint: one stage instead of 1, 2 and 3. For built-in data sets also small and small_glance: train backbone and glance
    encoder on small images first. Separate stages with commas, or repeat the option; 2 and 3 may come several times. Default:
    initialise,1,point for your own images, initialise,1,2 for your own clips; otherwise the stages of the preset or built-in data
    set."""
    rounds: Rounds | None = None
    """Run stages 2 and 3 this many times, one after the other. They must be the last stages. Default: 1."""
    glance_px: Pixels | None = None
    """Side of the glance (the whole image, resized) in pixels. Default for this and the options below: fitted to the data, or that
    of the preset; the printed plan shows it."""
    focus: Annotated[list[str] | None, Several] = None
    """The views that a focus look (any look after the glance) may have, smallest first; with several, thresholds choose one for
    each look. 96: a patch of 96 px at full resolution. 0.5@112: a square of half of the image's shorter side, resized to 112 px.
    200px@96: a square of 200 px, resized to 96 px. whole@160: the whole image, resized to 160 px. For example: --focus 96 0.5@112
    whole@160."""
    patch_px: Annotated[list[Pixels] | None, Several] = None
    """The same as --focus for patches at full resolution only: their sides in pixels, such as --patch-px 32 48 64."""
    looks: Looks | None = None
    """Largest number of looks at an image: the glance and the focus looks together."""
    frames: Frames | None = None
    """Train on clips (video files, or folders of frames), with this many evenly spaced frames of each."""
    source_px: Pixels | None = None
    """Side in pixels to which images are resized before the network looks at them, such as 448: the same as --height-px and
    --width-px with this number. In a larger image a patch shows more detail. Glance and focus views grow with it, unless
    --glance-px and --focus name their sizes."""
    height_px: Pixels | None = None
    """Height to which images are resized before patches are cut out."""
    width_px: Pixels | None = None
    """Width to which images are resized before patches are cut out."""
    fit: Literal["crop", "stretch", "whole"] | None = None
    """How images are brought to --height-px and --width-px. crop: resize, then cut out the centre. stretch: resize without keeping
    the proportions. whole: keep the size of every image; --height-px and --width-px are then used only to estimate costs and
    times."""
    flip: bool | None = None
    """Mirror training images at random. Use --no-flip if left and right have different meanings. Default: on for images, off for
    clips."""
    crop: PositiveShare | None = None
    """Augmentation: in every epoch, cut a random rectangle out of each training image and resize it to the size of the image. The
    rectangle covers at least this share of the image's area, such as 0.35; use more if small parts do not show the object. 1
    turns it off. Images that are measured or predicted are never cut in this way. Clips are cut to fixed sizes instead; for them
    only 1 has an effect."""
    shift_px: Shift | None = None
    """Augmentation: move training images at random by up to this many pixels in each direction, repeating the edge pixels."""
    in_memory: bool | None = None
    """Read and resize all images once, and keep them in memory."""
    check_files: bool | None = None
    """Decode every file before training, to find damaged ones early. --no-check-files saves this time; a damaged file then stops
    the run when it is first used."""
    max_bad_files: BadFiles | None = None
    """Skip up to this many damaged files, and list them. Abort if there are more."""
    scenes: tuple[Scenes, Scenes, Scenes] | None = None
    """For a built-in data set: number of images for training, validation and test, such as --scenes 2000 400 400."""
    batch_size: TrainBatchSize | None = None
    """Images in one optimiser step, over all processes."""
    precision: Literal["no", "bf16", "fp16"] | None = None
    """Mixed precision: bf16 or fp16. no: float32."""
    accumulation: BatchSize | None = None
    """Compute each batch in this many parts, if it does not fit into memory as a whole (gradient accumulation)."""
    workers: Workers | None = None
    """Number of processes that read files."""
    processes: Processes = 1
    """Number of training processes on this machine. For several machines use: torchrun ... -m glancefocus train ..."""
    resume: Flag = False
    """Continue the latest run on this data, or the run in --output, without repeating the options that it was started with."""
    seed: Seed | None = None
    """Seed of all random numbers. On the same machine the same seed gives the same run."""
    rivals: Literal["none", "as-is", "tuned"] | None = None
    """The simpler alternatives (rivals) that the network is compared with at the end of the run, at equal cost. as-is: the run's
    backbone on validation images resized to several sizes, without further training; the network's own encoders, each alone; and
    cascades of these. tuned: also the backbone trained further at each smaller size, which takes about as long as the stage glance
    for each. none: no comparison. Default: as-is."""
    setting: Annotated[list[str] | None, Parameter(name=["--set"])] = None
    """Any other setting, as name=value, such as glance.epochs=10 or recognise.encoder_lr=0.005. The prefixes are backbone, glance,
    recognise (stage 1), point, aim (stage 2), finetune (stage 3), network and data; settings.json in the folder of a run lists all
    names. May be repeated."""
    track: Annotated[list[str] | None, Several] = None
    """Experiment trackers that get the figures of every epoch: tensorboard, wandb (Weights & Biases), mlflow, or none. Default:
    tensorboard if it is installed. The file metrics.jsonl in the folder of the run is always written."""
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
    """Train a network on your images or clips. Prints a plan first. To continue a stopped run, give the same command again.

    Sizes, batch size, learning rates and epochs are fitted to the data, unless you name a preset of the paper or set them.

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
    from glancefocus.training.run_folder import BUNDLE_FOLDER, run_stop_message

    keep_freed_memory()
    first_process = os.environ.get("RANK", "0") == "0"
    with run_stop_message(folder), _memory_errors(settings):
        bundle = run.finished_bundle(settings, folder)
        if bundle is None:
            bundle = run.train(settings, folder, asked=asked, quiet=as_json, planned=True, reported=True, track=track)
        elif first_process:
            notice(f"the run in {folder} is finished; this is its result. For another run use other options, or -o.")
    if first_process:
        with _damaged_notes(folder / BUNDLE_FOLDER):
            _print_result(bundle, folder, as_json=as_json)


def _print_result(bundle: "Bundle", folder: Path, *, as_json: bool) -> None:
    from glancefocus.evaluation.verdict import read_verdict
    from glancefocus.outcome import MOST_LOOKS
    from glancefocus.training.run_folder import BUNDLE_FOLDER, REPORT_FOLDER
    from glancefocus.values import Fields, number_of

    notes = Fields(bundle.notes, "notes")
    accuracy = notes.listed(
        "validation_accuracy_per_look", MOST_LOOKS, lambda value, name: number_of(value, name, 0, 1)
    )
    report = folder / REPORT_FOLDER / "report.html"
    if as_json:
        result: dict[str, Any] = {
            "run": str(folder),
            "bundle": str(folder / BUNDLE_FOLDER),
            "validation_accuracy_per_look": accuracy,
            "report": str(report),
            **{name: bundle.notes[name] for name in ("aims", "verdict") if name in bundle.notes},
        }
        print(json.dumps(result, indent=1, allow_nan=False))
        return
    if "aims" in bundle.notes:
        print_line(notes.table("aims").text("sentence", _LONGEST_SENTENCE))
    if "verdict" in bundle.notes:
        print_verdict(read_verdict(bundle.notes["verdict"]))
    shares = " / ".join(f"{100 * a:.1f}" for a in accuracy)
    print_line(
        f"validation accuracy after each look: {shares} %\nbundle: {folder / BUNDLE_FOLDER}\nreport: {report}\n"
        f"try it: gf predict {folder / BUNDLE_FOLDER} PICTURES"
    )


@contextlib.contextmanager
def _damaged_notes(folder: Path) -> Iterator[None]:
    """Report notes that were changed after the run had finished; only what is read here can fail in these ways."""
    try:
        yield
    except BadSetting as error:
        raise BadBundle(f"the bundle {folder} is damaged: {error} Train it again in another folder.") from None
    except (LookupError, TypeError, ValueError, AttributeError):
        raise BadBundle(f"the bundle {folder} is damaged: notes.verdict. Train it again in another folder.") from None


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
