"""`gf study`: one table or figure of the paper, from training to the finished page."""

import json
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from glancefocus.cli.main import Flag, Json, OutputName, command_options, output
from glancefocus.cli.printing import cell, notice, print_line
from glancefocus.errors import BadSetting
from glancefocus.progress import duration
from glancefocus.values import Count, Range

if TYPE_CHECKING:
    from glancefocus.studies.networks import Run
    from glancefocus.studies.order import Order, StudyPlan
    from glancefocus.studies.rivals import ExitsRun


@command_options
@dataclass(frozen=True)
class StudyOptions:
    """Options of `gf study`."""

    name: str | None = None
    """Name of the study. Without a name, all studies are listed."""
    data: str | None = None
    """The data set, as for `gf train`. Default: the built-in one of the study (signs or gestures). With --scale paper there is no
    default; only --plan works without data there."""
    _: KW_ONLY
    scale: Literal["tiny", "paper"] | None = None
    """tiny: small networks on a built-in data set, minutes on two cores. paper: the networks and settings of the paper, which need
    its data and GPUs. Default: tiny for built-in data, otherwise paper."""
    output: Annotated[Path, OutputName] = Path("studies")
    """Folder of all studies. Trained networks are in its subfolder runs, and are shared by all studies."""
    seeds: Count | None = None
    """Number of seeds. Tables show the mean and the standard deviation over them. Default: 1 to 3, depending on the study."""
    plan: Flag = False
    """Train nothing; print what would be trained, with multiply-adds, disk space and an estimate of the hours on this machine."""
    speed: Annotated[float, Range(0, 1_000_000, above=True)] | None = None
    """With --plan: estimate the hours on other devices, which compute this many trillion multiply-adds per second in training.
    Default: the speed of this machine, which is measured."""
    weights: str = "pretrained"
    """With --scale paper: initial weights of the backbones: a file, "pretrained" (timm downloads them), or "none" (the backbones
    are first trained from random initialisation). With --scale tiny they are always trained from
    random initialisation."""
    latency_file: Path | None = None
    """For the study named phone: milliseconds that were measured elsewhere, in a JSON file as for `gf budget --latency-file`; if
    the study has several networks, a folder with one file for each, such as resnet50-96.json. Default: they are measured here, on
    one thread."""
    setting: Annotated[list[str] | None, Parameter(name=["--set"])] = None
    """A setting of all runs as name=value, as for `gf train`; may be repeated. A setting of a stage applies to the runs that have
    this stage."""
    json: Json = False


def study(options: StudyOptions = StudyOptions()) -> None:  # noqa: B008, cyclopts needs a default if no option is required
    """Reproduce a table or a figure of the paper: train its networks, measure, and write tables, figures and a page.

    Networks that are trained already are found by their settings and used again. A study that was stopped continues where it
    stopped.

    Example: gf study rewards

    Example: gf study main --scale paper --plan
    """
    from glancefocus.studies.catalogue import STUDIES, study_named

    _check_unused(options)
    if options.name is None:
        _print_list([(each.name, each.title, each.shows) for each in STUDIES.values()], as_json=options.json)
        return
    named = study_named(options.name)
    # Imported only now, because it takes seconds: a misspelt name is reported immediately.
    from glancefocus.studies.order import Order, page_of_study, plan_study, run_study
    from glancefocus.studies.results import plain, remarks_of, terminal_tables

    order = Order(
        named,
        options.data,
        options.scale,
        options.seeds,
        options.weights,
        tuple(options.setting or ()),
    )
    if options.plan:
        _print_plan(order, plan_study(order, options.output, options.speed), as_json=options.json)
        return
    about, result = run_study(
        order,
        options.output,
        quiet=True,
        on_run=None if options.json else _print_run,
        latency=options.latency_file,
    )
    if options.json:
        print(json.dumps(plain(about, result), indent=1, allow_nan=False))
        return
    console = output()
    for table in terminal_tables(result):
        console.print(table)
    for remark in remarks_of(result):
        print_line(remark)
    notice(f"Open {page_of_study(options.output, order.study)} in a browser.")


def _check_unused(options: StudyOptions) -> None:
    """Refuse options that would have no effect."""
    if options.speed is not None and not options.plan:
        raise BadSetting("--speed only changes the estimate of --plan. Add --plan, or leave --speed out.")
    if options.latency_file is not None and options.name != "phone":
        raise BadSetting("--latency-file is only for the study named phone. Leave it out.")


def _print_run(run: "Run | ExitsRun", folder: Path, what: str) -> None:
    notice(f"{run.name}, seed {run.seed} ({', '.join(run.stages)}): {what} in {folder}")


def _print_list(rows: list[tuple[str, str, str]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([{"name": name, "title": title, "paper": shows} for name, title, shows in rows], indent=1))
        return
    table = Table(title="studies")
    for column in ("name", "what", "of the paper"):
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    output().print(table)


def _print_plan(order: "Order", plan: "StudyPlan", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(plan.to_plain(), indent=1))
        return
    table = Table(title=f"{order.study.name}: {len(plan.runs)} runs, {len(plan.left)} of them to train")
    for column in ("run", "stages", "seed", "state", "multiply-adds", "disk", "time"):
        table.add_column(column, justify="left" if column in ("run", "stages", "state") else "right")
    for run in plan.runs:
        spent = "" if run.state == "finished" else duration(3600 * run.hours)
        row = (_many(run.macs), f"{run.disk_bytes / 1e6:,.0f} MB", spent)
        table.add_row(cell(run.name), ", ".join(run.stages), str(run.seed), run.state, *row)
    output().print(table)
    train, val = plan.images
    sums = f"{_many(plan.macs)} multiply-adds (T: trillion, P: quadrillion), {plan.disk_bytes / 1e9:,.2f} GB"
    left = f"To train what is left: {sums}, about {duration(3600 * plan.hours)} {plan.where}. Nothing was trained."
    print_line(
        f"{train:,} training and {val:,} validation images. {left if plan.left else 'All runs are trained already.'}"
    )


def _many(macs: float) -> str:
    """Multiply-adds of a whole training: 615 trillion (T), 932 quadrillion (P)."""
    if macs >= 1e15:
        return f"{macs / 1e15:,.1f}P" if macs < 1e16 else f"{macs / 1e15:,.0f}P"
    return f"{macs / 1e12:,.3g}T"
