"""Splits of clips in files, decoded by worker processes ahead of when they are needed."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from glancefocus.data.clip_views import augmented_clip, view_clip
from glancefocus.data.splits import AugmentSettings, Batch, FileSplit, as_pixels, mix
from glancefocus.errors import BadImage
from glancefocus.settings import ViewSettings


@dataclass
class ClipFileSplit(FileSplit):
    """Clips in video files or in folders of frames; their batches are (B, frames, 3, H, W)."""

    frames: int = 8

    @property
    def fixed(self) -> bool:
        return False  # frames are drawn from random places in time

    def _reader(self) -> "Dataset[Batch | str]":
        return _Clips(self.files, self.labels, self.view, self.augment, self.frames)

    def _viewed(self, index: int) -> Tensor:
        clip, _, _ = view_clip(self.files[index], self.frames, as_pixels(self.view))
        return (clip * 255).round().to(torch.uint8)


class _Clips(Dataset[Batch | str]):
    """One clip of a split, for the loader's workers; or what is wrong with it."""

    def __init__(
        self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings, frames: int
    ) -> None:
        self.files = files
        self.labels = labels
        self.view = view
        self.augment = augment
        self.frames = frames

    def __getitem__(self, asked: tuple[int, int | None]) -> Batch | str:
        index, seed = asked
        file = self.files[index]
        try:
            if seed is None:
                clip, _, _ = view_clip(file, self.frames, self.view)
            else:
                clip = augmented_clip(file, self.frames, self.view, self.augment, mix(seed, index))
        except BadImage as error:
            return f"{error} Remove the clip, or let the check of the files skip it (--check-files)."
        return clip, self.labels[index]
