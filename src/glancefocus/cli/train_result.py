"""What `gf train` prints when a run is finished."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glancefocus.cli.printing import print_line, print_verdict
from glancefocus.errors import BadBundle, BadSetting

if TYPE_CHECKING:
    from glancefocus.bundle.bundle import Bundle

_LONGEST_SENTENCE = 10_000


def print_result(bundle: "Bundle", folder: Path, *, as_json: bool) -> None:
    """Print the accuracy, the verdict and the folders of a finished run."""
    from glancefocus.training.run_folder import BUNDLE_FOLDER

    with _damaged_notes(folder / BUNDLE_FOLDER):
        _print(bundle, folder, as_json=as_json)


def _print(bundle: "Bundle", folder: Path, *, as_json: bool) -> None:
    from glancefocus.evaluation.verdict import read_verdict
    from glancefocus.training.run_folder import BUNDLE_FOLDER, REPORT_FOLDER
    from glancefocus.values import MOST_LOOKS, Fields, number_of

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
