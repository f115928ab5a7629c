"""Bundles on Hugging Face's hub: fetched by name, only the files of a bundle and within limits; and published."""

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

from glancefocus.bundle.files import MAX_SETTINGS_BYTES, SETTINGS_FILE, WEIGHTS_FILE
from glancefocus.data.split_record import FILE as SPLIT_FILE
from glancefocus.data.split_record import MAX_PACKED_BYTES
from glancefocus.errors import BadBundle, BadSetting
from glancefocus.files import cache_folder, replace_folder, write_text

if TYPE_CHECKING:
    from glancefocus.bundle.bundle import Bundle

PREFIX = "hf://"
ANSWER_SECONDS = 5  # how long the hub may take to say what a file is
MAX_WEIGHTS_BYTES = 16 * 2**30
_LIMITS = {SETTINGS_FILE: MAX_SETTINGS_BYTES, WEIGHTS_FILE: MAX_WEIGHTS_BYTES, SPLIT_FILE: MAX_PACKED_BYTES}
_OPTIONAL = (SPLIT_FILE,)


@dataclass(frozen=True)
class HubName:
    """`user/name`, and the branch, tag or commit of it; None: the main branch."""

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return PREFIX + self.repository + (f"@{self.revision}" if self.revision else "")


def is_hub_name(path: str | Path) -> bool:
    """Whether this names a bundle on the hub, and not a file or folder."""
    return str(path).startswith((PREFIX, str(Path(PREFIX))))  # a Path has one slash of two


def local_folder(path: str | Path) -> Path:
    """The folder of a bundle on this machine: fetched where the path names one on the hub, else the path itself."""
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
    """`hf://user/name` or `hf://user/name@revision`, taken apart; a plain `user/name` is understood, too."""
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
    """A folder with the bundle's files, which are downloaded into the hub's cache unless they are there already.

    Without a network the newest copy that is there is taken.
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
    """Where we keep what belongs to a repository."""
    return cache_folder() / "hub" / name.repository.replace("/", "--")


def _remember(name: HubName, commit: str) -> None:
    """Keep which commit a branch was at, for times without a network."""
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
    """The files under names of ours, so that what is written beside a bundle lies in our cache."""
    folder = _place(name) / files[0].parent.name
    if not all((folder / file.name).is_file() for file in files):
        with replace_folder(folder) as aside:
            for file in files:
                _link(file.resolve(), aside / file.name)
    return folder


def _link(file: Path, link: Path) -> None:
    """The same content under another name; a copy where there are no links, or the other name is on another disk."""
    try:
        os.link(file, link)
    except OSError:
        shutil.copyfile(file, link)


def _checked_commit(name: HubName) -> str | None:
    """The commit that is meant, whose files are of a size that a bundle's can have; None where the hub does not answer."""
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
    """Write the bundle to the hub as one commit, and make its repository where there is none; returns its address.

    private  only for a repository that is made; None: as the account's default
    token    None: that of `hf auth login` or HF_TOKEN
    split    publish names and hashes of the files that it was trained on, too, so that they are left out when others measure
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
    """What can go wrong between here and the hub, as a sentence."""
    import httpx2
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT.removeprefix("https://")
    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError:
        raise BadBundle(
            f"{name} is only for those who were given access. Ask for it at {constants.ENDPOINT}/{name.repository}, then {log_in}."
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
