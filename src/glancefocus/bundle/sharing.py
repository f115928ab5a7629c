"""Sharing bundles: the model card that describes one, and the Hugging Face hub, from which only limited files are downloaded."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from glancefocus.bundle.files import MAX_SETTINGS_BYTES, PREFIX, SETTINGS_FILE, WEIGHTS_FILE, is_hub_name
from glancefocus.data.split_record import FILE as SPLIT_FILE
from glancefocus.data.split_record import MAX_PACKED_BYTES
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.exits.curve import Point
from glancefocus.exits.record import view_words
from glancefocus.files import cache_folder, replace_folder, write_text
from glancefocus.network.backbones import hub_id
from glancefocus.outcome import Costs
from glancefocus.settings import NetworkSettings
from glancefocus.values import markdown, one_line

if TYPE_CHECKING:
    from glancefocus.bundle.bundle import Bundle

ANSWER_SECONDS = 5  # how long the hub may take to answer
MAX_WEIGHTS_BYTES = 16 * 2**30
_LIMITS = {SETTINGS_FILE: MAX_SETTINGS_BYTES, WEIGHTS_FILE: MAX_WEIGHTS_BYTES, SPLIT_FILE: MAX_PACKED_BYTES}
_OPTIONAL = (SPLIT_FILE,)


@dataclass(frozen=True)
class HubName:
    """A repository `user/name`, and a branch, tag or commit of it; None: the main branch."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return PREFIX + self.repository + (f"@{self.revision}" if self.revision else "")


def local_folder(path: str | Path) -> Path:
    """The folder of a bundle on this machine; a bundle on the hub is downloaded first."""
    return fetch(hub_name(str(path))) if is_hub_name(path) else Path(path)


def refuse_writing(path: str | Path) -> None:
    """Refuse to change a bundle that is on the hub."""
    if is_hub_name(path):
        name = hub_name(str(path))
        raise BadBundle(
            f"{name} is on the hub and cannot be changed from here. Copy it to a folder first: "
            f"hf download {name.repository} --local-dir FOLDER, and name that folder."
        )


def hub_name(text: str) -> HubName:
    """Parse `hf://user/name` or `hf://user/name@revision`; a plain `user/name` is accepted, too."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    repository, at, revision = text.removeprefix("hf:").lstrip("/").partition("@")
    try:
        if repository.count("/") != 1 or (at and not revision):
            raise HFValidationError
        validate_repo_id(repository)
    except HFValidationError:
        raise BadSetting(
            f"{text!r} does not name a bundle on the hub. Write {PREFIX}user/name, or {PREFIX}user/name@revision."
        ) from None
    return HubName(repository, revision or None)


def fetch(name: HubName) -> Path:
    """A folder with the files of a bundle, which are downloaded into the hub's cache unless they are there already.

    Without a network the newest downloaded copy is used.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    with _sentences(name, "fetched"):
        commit = _checked_commit(name)
        if commit is not None:
            _remember(name, commit)
        kept = commit or _remembered(name) or name.revision
        files = []
        for file in _LIMITS:
            try:
                found = hf_hub_download(name.repository, file, revision=kept, local_files_only=commit is None)
            except EntryNotFoundError:
                if file not in _OPTIONAL:
                    raise
            else:
                files.append(Path(found))
    return _own_folder(name, files)


def _place(name: HubName) -> Path:
    """Our cache folder for a repository."""
    return cache_folder() / "hub" / name.repository.replace("/", "--")


def _remember(name: HubName, commit: str) -> None:
    """Store the current commit of a branch, for use without a network."""
    place = _place(name)
    place.mkdir(parents=True, exist_ok=True)
    write_text(place / f"at-{quote(name.revision or 'main', safe='')}", commit)


def _remembered(name: HubName) -> str | None:
    try:
        commit = (_place(name) / f"at-{quote(name.revision or 'main', safe='')}").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return commit if re.fullmatch("[0-9a-f]{40}", commit) else None


def _own_folder(name: HubName, files: Sequence[Path]) -> Path:
    """A folder in our cache with links to the files, so that files that are written beside the bundle stay in our cache."""
    folder = _place(name) / files[0].parent.name
    if not all((folder / file.name).is_file() for file in files):
        with replace_folder(folder) as aside:
            for file in files:
                _link(file.resolve(), aside / file.name)
    return folder


def _link(file: Path, link: Path) -> None:
    """A hard link to the file; a copy if links are not supported, or the link would be on another disk."""
    try:
        os.link(file, link)
    except OSError:
        shutil.copyfile(file, link)


def _checked_commit(name: HubName) -> str | None:
    """The commit of this name, after a check that its files are not too large; None if the hub does not answer."""
    import httpx2
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled

    commit = None
    for file, most in _LIMITS.items():
        url = hf_hub_url(name.repository, file, revision=commit or name.revision)
        try:
            found = get_hf_file_metadata(url, timeout=ANSWER_SECONDS)
        except (OfflineModeIsEnabled, httpx2.TransportError):
            return None
        except EntryNotFoundError:
            if file in _OPTIONAL:
                continue
            raise
        except HfHubHTTPError as error:
            if error.response.status_code >= 500:
                return None
            raise
        if found.size is None or found.size > most:
            size = "unknown size" if found.size is None else f"{found.size:,} bytes"
            raise BadBundle(f"{file} of {name} has {size}; at most {most:,} bytes are fetched.")
        commit = found.commit_hash
    return commit


def publish(
    bundle: "Bundle", name: HubName, *, private: bool | None = None, token: str | None = None, split: bool = True
) -> str:
    """Publish the bundle on the hub as one commit, and create the repository if needed; returns its address.

    private  for a new repository; None: the default of the account
    token    None: the one of `hf auth login` or HF_TOKEN
    split    also publish names and hashes of the training files, so that other users do not measure on them by mistake
    """
    from huggingface_hub import HfApi

    if name.revision is not None:
        raise BadSetting(f"a bundle is published to a repository's main branch. Leave @{name.revision} out.")
    api = HfApi(token=token, library_name="glancefocus")
    with _sentences(name, "published"), tempfile.TemporaryDirectory(prefix="publish-", dir=cache_folder()) as aside:
        folder = bundle.save(Path(aside) / "bundle")
        if not split:
            (folder / SPLIT_FILE).unlink(missing_ok=True)
        address = api.create_repo(name.repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=name.repository, folder_path=folder, commit_message="A bundle of glancefocus")
    return str(address)


@contextmanager
def _sentences(name: HubName, done: str) -> Iterator[None]:
    """Report errors of the hub and of the connection in a sentence."""
    import httpx2
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT.removeprefix("https://")
    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError:
        raise BadBundle(
            f"access to {name} is restricted. Ask for it at {constants.ENDPOINT}/{name.repository}, then {log_in}."
        ) from None
    except errors.RepositoryNotFoundError:
        raise BadBundle(
            f"there is no {name.repository} on {hub}, or it is private. Check the name; if it is private, {log_in}."
        ) from None
    except errors.RevisionNotFoundError:
        raise BadBundle(
            f"{name.repository} on {hub} has no branch, tag or commit named {name.revision or 'main'!r}."
        ) from None
    except errors.LocalEntryNotFoundError:
        raise BadBundle(
            f"{name} cannot be {done}: {hub} does not answer, and there is no copy on this machine. Check the network, or give the "
            "folder of a bundle."
        ) from None
    except errors.EntryNotFoundError:
        raise BadBundle(
            f"{name} is not a bundle of glancefocus: {SETTINGS_FILE} or {WEIGHTS_FILE} is missing there. Name a repository that "
            "bundle.push_to_hub has written."
        ) from None
    except errors.HfHubHTTPError as error:
        raise BadBundle(f"{name} cannot be {done}: {_refusal(error, hub, log_in)}") from None
    except (httpx2.HTTPError, OSError, ValueError, RuntimeError) as error:
        raise BadBundle(f"{name} cannot be {done}: {str(error).strip() or type(error).__name__}") from None


def _refusal(error: Any, hub: str, log_in: str) -> str:
    code = error.response.status_code
    if code in (401, 403):
        return f"{hub} does not allow it (status {code}). You may need another token: {log_in}."
    return f"{hub} answers with status {code} ({str(error.server_message or error).strip().splitlines()[0]})."


# For the model card: longest texts, and notes that are numbers for the program or have a section of their own.
_LONGEST, _LONGEST_NAME, _LONGEST_NOTE = 200, 100, 1000
_MOST = 1e18
_TAGS = ("glancefocus", "adaptive-inference", "early-exit")
_NO_NOTES = ("data_settings", "thresholds_data", "images", "verdict")


def card_header(settings: NetworkSettings, notes: dict[str, Any]) -> list[str]:
    """The lines of the YAML header of the model card."""
    task = "image-classification" if settings.frames == 1 else "video-classification"
    fields: dict[str, Any] = {
        "library_name": "glancefocus",
        "pipeline_tag": task,
        "tags": list(_TAGS),
        "license": _text(notes.get("license")),
        "base_model": hub_id(settings.backbone) if notes.get("weights") == "pretrained" else None,
        "metrics": ["accuracy"],
        "model-index": _results(settings, notes, task),
    }
    return ["---", *(f"{name}: {_json(value)}" for name, value in fields.items() if value), "---"]


def _number(value: Any) -> float | None:
    """The value if it is a finite number of at least 0; otherwise None."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < _MOST else None


def _share(value: Any) -> float | None:
    """The value if it is a number from 0 to 1; otherwise None."""
    found = _number(value)
    return found if found is not None and found <= 1 else None


def _points(notes: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that the verdict compared, see evaluation/verdict.py: the network and its rivals, with their accuracies."""
    verdict = notes.get("verdict")
    found = verdict.get("points") if isinstance(verdict, dict) else None
    rows = found if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, dict) and _share(row.get("accuracy")) is not None]


def _results(settings: NetworkSettings, notes: dict[str, Any], task: str) -> list[dict[str, Any]]:
    """The accuracies in the format of the hub's model-index; empty if none is known."""
    accuracies = notes.get("validation_accuracy_per_look")
    last = _share(accuracies[-1]) if isinstance(accuracies, list) and accuracies else None
    sure = next((_share(row["accuracy"]) for row in _points(notes) if row.get("kind") == "glancefocus"), None)
    found = {
        f"accuracy after {settings.looks} looks": last,
        "accuracy, stopping above the thresholds": sure,
    }
    metrics = [{"type": "accuracy", "name": name, "value": value} for name, value in found.items() if value is not None]
    data = _text(notes.get("data"))
    if not metrics or data is None:
        return []
    name = Path(data).name or data  # without the folders above it, which are private
    result = {
        "task": {"type": task},
        "dataset": {"type": "custom", "name": name, "split": "validation"},
        "metrics": metrics,
    }
    return [{"name": f"{one_line(settings.backbone, _LONGEST)}, up to {settings.looks} looks", "results": [result]}]


def _text(value: Any) -> str | None:
    return one_line(value, _LONGEST) if isinstance(value, str) and value else None


def _json(value: Any) -> str:
    """JSON, which YAML can read. Characters that YAML does not allow were escaped by one_line."""
    return json.dumps(value, ensure_ascii=False)


def model_card(
    settings: NetworkSettings, classes: Sequence[str], costs: Costs, notes: dict[str, Any], curve: list[Point]
) -> str:
    """Markdown: what this network is, what it costs, how to use it. Names and notes are not trusted, and are escaped."""
    named = ", ".join(markdown(name, _LONGEST_NAME) for name in classes[:20])
    named += f", ... ({len(classes)} in all)" if len(classes) > 20 else ""
    lines = [
        *card_header(settings, notes),
        "",
        f"# {one_line(settings.backbone)}, up to {settings.looks} looks",
        "",
        f"A glance-and-focus classifier: {settings.first_words}, then up to {settings.looks - 1} looks at "
        f"{view_words(settings.focus)}, stopping once the score is above the threshold of a look.",
        "",
        "    gf predict THIS_FOLDER picture.jpg",
        "",
        f"**Classes**: {named}",
        "",
        *_images(notes),
        "| looks | multiply-adds |",
        "|---|---|",
        *(f"| {look} | {macs / 1e6:,.1f}M |" for look, macs in enumerate(costs.macs_after_look, start=1)),
        f"| plain backbone, {settings.view.height_px}x{settings.view.width_px} px | {costs.backbone_macs / 1e6:,.1f}M |",
        "",
        *_verdict(notes),
    ]
    shown = {name: value for name, value in notes.items() if name not in _NO_NOTES}
    shown |= {name: shown[name].get("sentence") for name in ("aims",) if isinstance(shown.get(name), dict)}
    if shown:
        lines += ["## Notes", "", *map(_note, shown.items()), ""]
    if curve:
        lines += [f"{len(curve)} operating points are stored; `--budget-macs` chooses among them.", ""]
    return "\n".join(lines)


def _images(notes: dict[str, Any]) -> list[str]:
    """How many images there were in each split."""
    counts = notes.get("images")
    if not isinstance(counts, dict):
        return []
    known = {name: _number(count) for name, count in counts.items()}
    counted = ", ".join(f"{count:,.0f} {markdown(name, _LONGEST_NAME)}" for name, count in known.items() if count)
    return [f"**Images**: {counted}", ""] if counted else []


def _verdict(notes: dict[str, Any]) -> list[str]:
    """The network beside the same backbone on resized images, and the conclusion."""
    verdict = notes.get("verdict")
    if not isinstance(verdict, dict):
        return []
    lines = ["## Verdict", "", markdown(str(verdict.get("sentence")), _LONGEST_NOTE), ""]
    rows = _points(notes)
    if rows:
        lines += ["| | accuracy | 95 % interval | multiply-adds |", "|---|---|---|---|", *map(_point, rows), ""]
    return lines


def _point(row: dict[str, Any]) -> str:
    low, high = _share(row.get("accuracy_low")), _share(row.get("accuracy_high"))
    interval = "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f} %"
    macs = _number(row.get("mean_macs"))
    cost = "" if macs is None else f"{macs / 1e6:,.1f}M"
    name = markdown(str(row.get("name")), _LONGEST_NAME)
    return f"| {name} | {100 * row['accuracy']:.1f} % | {interval} | {cost} |"


def _note(note: tuple[str, Any]) -> str:
    name, value = note
    return f"- {markdown(name.replace('_', ' '), _LONGEST_NAME)}: {markdown(str(value), _LONGEST_NOTE)}"
