"""Where the randomness of built-in worlds comes from: each scene has its own, whichever others are drawn before or beside it."""

import zlib

import numpy as np

_LABEL_STREAM, _SCENE_STREAM = 0, 1


def scene_stream(split: str, seed: int, index: int) -> np.random.SeedSequence:
    """What scene `index` of a split is drawn from."""
    return _stream(split, seed, _SCENE_STREAM, index)


def balanced_label(classes: int, split: str, seed: int, index: int) -> int:
    """The class of scene `index`: scenes come in groups with each class once, so that any number of them is balanced."""
    group, place = divmod(index, classes)
    rng = np.random.default_rng(_stream(split, seed, _LABEL_STREAM, group))
    return int(rng.permutation(classes)[place])


def _stream(split: str, seed: int, stream: int, index: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(zlib.crc32(split.encode()), stream, index))
