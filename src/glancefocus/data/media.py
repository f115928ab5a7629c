"""What a data set is made of, pictures or clips: how they are found in a folder, checked, and made into a split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from glancefocus.data.clip_views import ClipFileSplit
from glancefocus.data.clips import clips_inside, holds_frames, read_clip
from glancefocus.data.images import SUFFIXES, read_picture, walk_visible
from glancefocus.data.lists import read_video_set
from glancefocus.data.splits import AugmentSettings, FileSplit, Row
from glancefocus.errors import BadData
from glancefocus.settings import ViewSettings


class Medium(Protocol):
    """Pictures or clips."""

    noun: str

    def find(self, folder: Path) -> list[Path]:
        """Everything in the folder of one class, sorted."""
        ...

    def published(self, folder: Path) -> tuple[list[Row], tuple[str, ...]] | None:
        """Rows and classes of a data set in its publisher's layout; None where the folder is none."""
        ...

    def check(self, file: Path) -> tuple[str, ...]:
        """Read a file as training will; raises what is wrong with it, returns what is odd."""
        ...

    def split(self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings) -> FileSplit: ...


class Pictures:
    """Image files."""

    noun = "images"

    def find(self, folder: Path) -> list[Path]:
        found = [Path(where, name) for where, names in walk_visible(folder) for name in names]
        return sorted(
            file
            for file in found
            if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
        )

    def published(self, folder: Path) -> tuple[list[Row], tuple[str, ...]] | None:
        return None

    def check(self, file: Path) -> tuple[str, ...]:
        read_picture(file)
        return ()

    def split(self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings) -> FileSplit:
        return FileSplit(files, labels, view, augment)


@dataclass(frozen=True)
class Clips:
    """Video files, and folders that hold the frames of a clip."""

    frames: int
    noun = "clips"

    def find(self, folder: Path) -> list[Path]:
        if holds_frames(folder):
            raise BadData(
                f"the class folder {folder} holds pictures and no clips. Put the frames of each clip into a folder of its own, "
                "or train a network for images (without --frames)."
            )
        return clips_inside(folder)

    def published(self, folder: Path) -> tuple[list[Row], tuple[str, ...]] | None:
        return read_video_set(folder)

    def check(self, file: Path) -> tuple[str, ...]:
        return read_clip(file, self.frames, lambda picture: None).notes

    def split(self, files: list[Path], labels: Tensor, view: ViewSettings, augment: AugmentSettings) -> FileSplit:
        return ClipFileSplit(files, labels, view, augment, frames=self.frames)


def medium_of(frames: int) -> Medium:
    """What a network of so many frames looks at."""
    return Pictures() if frames == 1 else Clips(frames)
