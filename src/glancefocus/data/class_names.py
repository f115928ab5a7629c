"""Other names of a network's classes, under which a data set may know them: WordNet ids and synonyms of ImageNet's classes."""

import functools
from collections.abc import Iterable, Sequence

from glancefocus.torchvision_whole import ensure_torchvision

IMAGENET_CLASSES = 1000


def class_numbers(classes: Sequence[str], wanted: Iterable[str]) -> dict[str, int]:
    """{name: number} of the wanted names that the network knows, by its own names, or as ImageNet's classes by any of theirs."""
    own = {name: number for number, name in enumerate(classes)}
    wanted = set(wanted)
    if wanted <= own.keys() or not are_imagenet(classes):
        return {name: own[name] for name in wanted & own.keys()}
    known = {**_imagenet_numbers(), **own}
    return {name: known[name] for name in wanted & known.keys()}


def are_imagenet(classes: Sequence[str]) -> bool:
    """Whether these are ImageNet's 1,000 classes in their usual order, under names of ours or WordNet's."""
    if len(classes) != IMAGENET_CLASSES:
        return False
    return all(name in known for name, known in zip(classes, _imagenet_names(), strict=True))


def imagenet_classes(count: int) -> tuple[str, ...]:
    """Names of ImageNet's classes in their usual order where there are 1,000; their numbers otherwise.

    A name is the first synonym; where two classes share it, the WordNet id is added.
    """
    if count != IMAGENET_CLASSES:
        return tuple(str(number) for number in range(count))
    return tuple(names[0] for names in _imagenet_names())


@functools.cache
def _imagenet_names() -> list[list[str]]:
    """Names of every class: ours, the WordNet id, all synonyms in one, each synonym."""
    ensure_torchvision()
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    ids = [info.index_to_label_name(number) for number in range(IMAGENET_CLASSES)]
    synonyms = [info.index_to_description(number) for number in range(IMAGENET_CLASSES)]
    firsts = [words.split(",")[0] for words in synonyms]
    ours = [f"{name} ({ids[n]})" if firsts.count(name) > 1 else name for n, name in enumerate(firsts)]
    return [[ours[n], ids[n], synonyms[n], *synonyms[n].split(", ")] for n in range(IMAGENET_CLASSES)]


@functools.cache
def _imagenet_numbers() -> dict[str, int]:
    """{name: number} of all names that mean one class only; also with underscores for spaces, as folders are often called."""
    numbers: dict[str, int] = {}
    twice: set[str] = set()
    for number, names in enumerate(_imagenet_names()):
        for name in {*names, *(name.replace(" ", "_") for name in names)}:
            if numbers.setdefault(name, number) != number:
                twice.add(name)
    ours = {names[0]: number for number, names in enumerate(_imagenet_names())}
    return {name: number for name, number in numbers.items() if name not in twice} | ours
