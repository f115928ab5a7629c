"""The data of a run belongs to it: written into its folder when it starts, and compared when it is resumed."""

from collections.abc import Iterator
from pathlib import Path

from glancefocus.data.split_record import FILE, MAX_PACKED_BYTES, RecordedFile, SplitRecord
from glancefocus.errors import BadData, BadRun
from glancefocus.files import write_file

_NAMES_SHOWN = 3


def keep_data(folder: Path, record: SplitRecord | None, *, begun: bool) -> None:
    """Write the record of the data into the run's folder; where the run has learnt from other data, refuse with the difference.

    record  None: a built-in world, which its settings describe
    begun   whether the run has learnt anything; otherwise the data may still change
    """
    if record is None:
        return
    found = _found(folder)
    if found is not None and found == record:
        return
    if found is not None and begun:
        different = list(data_differences(found, record))
        if different:
            raise BadRun(
                f"the data of the run in {folder} has changed: {'; '.join(different)}. "
                "Put it back as it was to go on, or train in another folder (--output)."
            )
    write_file(folder / FILE, lambda stream: stream.write(record.packed))


def classes_of_run(folder: Path) -> tuple[str, ...]:
    """The classes of the data that the run in a folder began with; none where that is not known."""
    found = _found(folder)
    return () if found is None else found.classes


def data_differences(found: SplitRecord, now: SplitRecord) -> Iterator[str]:
    """What differs between the data of a run and the data as it is now, in words: classes, then files by their names."""
    yield from class_differences(found.classes, now.classes)
    before, after = ({file.name: file for file in record.files()} for record in (found, now))
    both = [name for name in after if name in before]
    labels_move = found.classes != now.classes

    def label(record: SplitRecord, file: RecordedFile) -> str:
        return record.classes[file.label]

    yield from _listed("changed", [name for name in both if before[name].content != after[name].content])
    if not labels_move:
        moved = [name for name in both if label(found, before[name]) != label(now, after[name])]
        yield from _listed("got another label", moved)
    new, gone = [name for name in after if name not in before], [name for name in before if name not in after]
    contents_gone = {before[name].content for name in gone}
    renamed = [name for name in new if after[name].content in contents_gone]
    contents_renamed = {after[name].content for name in renamed}
    yield from _listed("have another name", renamed)
    yield from _listed("are new", [name for name in new if after[name].content not in contents_gone])
    yield from _listed("are gone", [name for name in gone if before[name].content not in contents_renamed])
    if before.keys() == after.keys():
        moved = [name for name in both if before[name].split != after[name].split]
        yield from _listed("went to another split", moved)


def class_differences(found: tuple[str, ...], now: tuple[str, ...]) -> Iterator[str]:
    """Which classes came, went or changed their place; nothing where those of before are not known."""
    if not found:
        return
    gone, new = [n for n in found if n not in now], [n for n in now if n not in found]
    if gone and len(gone) == len(new) and len(found) == len(now):
        pairs = [f"{one!r} is now {two!r}" for one, two in zip(gone, new, strict=True)]
        yield f"the class {', '.join(pairs[:_NAMES_SHOWN])}{', ...' if len(pairs) > _NAMES_SHOWN else ''}"
        return
    if new:
        yield f"the class {_some([repr(name) for name in new])} is new"
    if gone:
        yield f"the class {_some([repr(name) for name in gone])} is gone"
    if not gone and not new and found != now:
        place = next(number for number, (one, two) in enumerate(zip(found, now, strict=True)) if one != two)
        yield f"the classes have another order: class {place} was {found[place]!r} and is {now[place]!r}"


def _listed(what: str, names: list[str]) -> Iterator[str]:
    if names:
        yield f"{len(names)} {'file' if len(names) == 1 else 'files'} {_verb(what, len(names))} ({_some(names)})"


def _verb(what: str, count: int) -> str:
    return what.replace("are ", "is ").replace("have ", "has ") if count == 1 else what


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")


def _found(folder: Path) -> SplitRecord | None:
    """What the folder says; None where it says nothing that can be used, so that there is nothing to compare with."""
    file = folder / FILE
    if not file.is_file() or file.stat().st_size > MAX_PACKED_BYTES:
        return None
    record = SplitRecord(file.read_bytes(), str(file))
    try:
        for _ in record.files():
            pass
    except BadData as error:
        raise BadRun(f"{error} Or remove the file; the data of this run is then not compared any more.") from None
    return record
