"""Pretrained weights that timm names for its backbones: where they are, how to get them, and their last layer.

They are taken from the local cache of downloads. Where they are not there and cannot be downloaded, an error says so within
seconds, with the file to fetch.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from torch import nn

from glancefocus.errors import BadSetting
from glancefocus.machine import ensure_torchvision

ensure_torchvision()
import timm  # noqa: E402  (torchvision must be whole before timm imports it)

SECONDS_TO_ANSWER = 4.0
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # in the order in which timm looks for them


@dataclass(frozen=True)
class WeightsSource:
    """One file of weights that timm names.

    name   what it is called: a model of the Hugging Face hub, or an address
    page   where people find it
    file   its name there
    url    the address from which a download starts
    """

    name: str
    page: str
    file: str
    url: str
    repository: str | None = None
    revision: str | None = None

    def kept_file(self) -> Path | None:
        """The file in the local cache of downloads; None where it is not there."""
        if self.repository is None:
            file = Path(torch.hub.get_dir()) / "checkpoints" / self.file
            return file if file.is_file() else None
        for name in dict.fromkeys((self.file, *_HUB_FILES)):
            kept = huggingface_hub.try_to_load_from_cache(self.repository, name, revision=self.revision)
            if isinstance(kept, str):
                return Path(kept)
        return None


def weights_source(backbone: str) -> WeightsSource:
    """What timm would download for a backbone; raises BadSetting where it names no weights."""
    known = timm.models.get_pretrained_cfg(backbone, allow_unregistered=True) if timm.is_model(backbone) else None
    if known is None or not (known.hf_hub_id or known.url):
        raise BadSetting(
            f"there are no public weights of {backbone}. Give a file with --weights FILE, or train from random initialisation with "
            "--weights none."
        )
    if not known.hf_hub_id:
        return WeightsSource(known.url, known.url, known.url.rpartition("/")[2], known.url)
    repository, _, revision = known.hf_hub_id.partition("@")
    page = f"{huggingface_hub.constants.ENDPOINT}/{repository}"
    file = known.hf_hub_filename or _HUB_FILES[0]
    url = f"{page}/resolve/{revision or 'main'}/{file}"
    return WeightsSource(repository, page, file, url, repository, revision or None)


def check_pretrained(backbone: str) -> None:
    """Refuse weights that are neither kept on this machine nor can be downloaded now."""
    source = weights_source(backbone)
    if source.kept_file() is None:
        trouble = _trouble(source)
        if trouble is not None:
            raise cannot_be_had(backbone, trouble)


def create_options(backbone: str) -> dict[str, Any]:
    """Arguments of timm.create_model beside pretrained=True: weights in the local cache are read without asking the network."""
    check_pretrained(backbone)
    kept = weights_source(backbone).kept_file()
    return {} if kept is None else {"pretrained_cfg_overlay": {"file": str(kept)}}


def cannot_be_had(backbone: str, trouble: str) -> BadSetting:
    """The sentence for weights that were not downloaded."""
    source = weights_source(backbone)
    return BadSetting(
        f"the pretrained weights of {backbone} cannot be downloaded: {trouble}. They are {source.name}: download {source.file} "
        f"from {source.page} on a machine with a network and pass --weights {source.file}; or train from random initialisation "
        "with --weights none."
    )


def _trouble(source: WeightsSource) -> str | None:
    """Why a download would fail, found with one request of a few seconds; None where there is an answer.

    The client is the hub's own, so that its proxies, certificates and endpoint count.
    """
    if source.repository is not None and huggingface_hub.constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    answers: list[str | None] = []

    def ask() -> None:
        try:
            status = huggingface_hub.get_session().request("HEAD", source.url, timeout=SECONDS_TO_ANSWER).status_code
        except Exception as error:  # every client and every network fails in its own way
            answers.append(" ".join(str(error).split()) or type(error).__name__)
        else:
            answers.append(f"{source.url} answers with status {status}" if status >= 400 else None)

    # A thread, because looking up a host's name has no timeout of its own.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS_TO_ANSWER)
    host = source.url.split("/")[2]
    if not answers:
        return f"{host} did not answer within {SECONDS_TO_ANSWER:g} s"
    return None if answers[0] is None else f"{host} cannot be asked ({answers[0][:200]})"


def hub_id(backbone: str) -> str | None:
    """Where the weights that timm names for a backbone are on Hugging Face's hub; None where they are not there."""
    config = timm.models.get_pretrained_cfg(backbone, allow_unregistered=True) if timm.is_model(backbone) else None
    found = None if config is None else config.hf_hub_id
    return found if isinstance(found, str) and found else None


def has_pretrained_weights(backbone: str) -> bool:
    """Whether timm names weights for a backbone."""
    return bool(timm.is_model_pretrained(backbone))


def forget_answers(backbone: nn.Module) -> None:
    """Set the last layer to zeros, for classes that are new to a pretrained backbone.

    A random last layer with few classes answers at random with high confidence (timm draws from a range of 1 / sqrt(classes)), and
    the first updates then ruin the layers below.
    """
    head = head_names(backbone)
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if name in head:
                parameter.zero_()


def head_names(backbone: Any) -> set[str]:
    heads = backbone.get_classifier()
    heads = heads if isinstance(heads, tuple) else (heads,)
    own = {id(p) for h in heads for p in h.parameters()}
    return {n for n, p in backbone.named_parameters() if id(p) in own}
