"""Classify pictures with an exported glance-and-focus network.

    python predict.py photo.jpg folder/ --budget-macs 9e6

Each picture is looked at quickly first, at low resolution, then more closely, usually at patches of it, until the score of its
answer is above a threshold. One line of JSON is printed for each picture as soon as it is answered; --json prints one JSON array,
--csv prints CSV. The fields are the same as those of `gf predict`. For a network of video clips, give folders that hold the
frames of one clip each.

This file needs numpy, Pillow and the runtime that glancefocus.json beside it names:

    onnx  onnxruntime      openvino  openvino      executorch  executorch      litert  ai-edge-litert

`gf export` copies it as it is. Change your copy as you like.
"""

import argparse
import csv
import json
import math
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO, TypedDict, TypeVar

import numpy as np
from PIL import Image, ImageOps

Array = np.ndarray[Any, Any]
Key = TypeVar("Key", int, str)

# glancefocus.json: the fields that this program reads.


class View(TypedDict):
    """How a picture becomes the image that is looked at.

    fit  crop: resize the shorter side, then cut out the centre; stretch: resize to height x width; whole: keep the picture's size
    mean, std  of the RGB channels in [0, 1]
    """

    fit: str
    height_px: int
    width_px: int
    crop_pct: float
    interpolation: str
    mean: list[float]
    std: list[float]


class StoredPoint(TypedDict):
    """Thresholds, and the mean multiply-adds of an answer with them."""

    mean_macs: float
    thresholds: list[Any]


class PartCosts(TypedDict):
    """Multiply-adds of each part of the network, for one image; keys of the dictionaries are names of candidates."""

    encoder_macs: int
    focus_encoder_macs: dict[str, int]
    policy_macs: int
    focus_policy_macs: dict[str, int]
    classifier_macs: list[int]


class Tensor(TypedDict):
    """An input or output of a graph; the sides "batch" and "any" are free."""

    name: str
    shape: list[int | str]


class Graph(TypedDict):
    """One part of the network as a file of the runtime."""

    name: str
    file: str
    inputs: list[Tensor]
    outputs: list[Tensor]


class Candidate(TypedDict):
    """One of the views that a look after the glance may have.

    name    such as 96 (a patch of 96 px), 0.5@112 (half of the shorter side, resized to 112 px), 200px@96 or whole@160
    px      side of what the graph gets
    extent  side of the square that it covers: in pixels, or up to 1 as a share of the image's shorter side. None: the whole image
    share   the same as a share of the shorter side of an image of the view's size; 1: the whole image
    graph   name of the graph that looks at it
    """

    name: str
    px: int
    extent: int | float | None
    share: float
    graph: str


class Manifest(TypedDict):
    """What the loop needs of the network.

    runtime     onnx, openvino, executorch or litert
    batch       the only batch size that the graphs take; None: any
    candidates  the views of looks after the glance, the smallest first
    first_view  glance: the first look sees the whole image (also in older exports, without this field); centre, random: a patch
    frames      frames of a clip; 1: pictures
    classifier  recurrent, summed: a memory of one size; cascaded: the features of all looks, joined
    policy      learnt: graphs aim; centre_corner, random: places by a rule
    place       whether the policy also gets where the last look was, and how much it covered
    classifier_place  the same for the classifier, of each look
    score       what is compared with the thresholds: confidence, entropy or value (of the policy's critic)
    thresholds  one for each look; with several candidates one row for each look; None: take every look
    temperatures  what the logits of each look are divided by; None: nothing
    cheapest, dearest  the points where every image stops at the glance, and where every image takes every look
    curve       operating points in between, sorted by cost, each at least as accurate as all cheaper ones
    """

    runtime: str
    batch: int | None
    first_view: str
    glance_px: int
    candidates: list[Candidate]
    looks: int
    frames: int
    glance_resize: str
    classifier: str
    policy: str
    policy_units: int
    place: bool
    classifier_place: bool
    view: View
    classes: list[str]
    score: str
    thresholds: list[Any] | None
    temperatures: list[float] | None
    cheapest: StoredPoint
    dearest: StoredPoint
    curve: list[StoredPoint]
    costs: PartCosts
    graphs: list[Graph]


# Pictures: find the files, read them, and bring them to the size that the network looks at.

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".ppm"}
RIBBON_ASPECT = 16  # pictures longer than this are not enlarged along their longer side


@dataclass(frozen=True)
class Scene:
    """The image that is looked at, or the frames of a clip.

    frames  each (H, W, 3) uint8
    to_box  (top, left, height, width) of a region -> [left, top, right, bottom] in pixels of the original picture
    notes   remarks for the user
    """

    frames: list[Array]
    to_box: Callable[[int, int, int, int], list[int]]
    notes: list[str]


def find_pictures(names: Sequence[str], frames: int) -> Iterator[Path]:
    """Files as given, and all pictures inside folders; for clips, the folders that hold their frames."""
    for path in map(Path, names):
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES) if path.is_dir() else []
        if frames > 1:
            yield from dict.fromkeys(file.parent for file in inside) if inside else [path]
        else:
            yield from inside or [path]


def read_scene(path: Path, manifest: Manifest) -> Scene:
    """A picture file; or evenly spaced frames out of the folder of a clip."""
    frames, files = manifest["frames"], [path]
    if frames > 1:
        own = sorted((file for file in path.iterdir() if file.suffix.lower() in SUFFIXES), key=_natural_order)
        if not own:
            raise ValueError("the folder holds no frames")
        last = len(own) - 1
        middles = [(2 * part + 1) * len(own) // (2 * frames) for part in range(frames)]
        files = [own[i] for i in (middles if len(own) >= frames else [min(i, last) for i in range(frames)])]
    pictures = []
    for file in files:
        with Image.open(file) as picture:
            picture.load()
            pictures.append(as_rgb(picture))
    return scene_of(pictures, manifest)


def scene_of(pictures: Sequence[Image.Image], manifest: Manifest) -> Scene:
    """The same for a picture, or the frames of a clip, in RGB."""
    extents = [extent for each in manifest["candidates"] if isinstance(extent := each["extent"], int)]
    least_px = max(extents, default=1) if manifest["looks"] > 1 else 1
    least_px = max(least_px, 1 if manifest.get("first_view", "glance") == "glance" else manifest["glance_px"])
    least_px = max(
        least_px,
        SAMPLE_PX if "random" in (manifest.get("first_view", "glance"), manifest.get("policy", "learnt")) else 1,
    )
    views = [_view(picture, manifest["view"], least_px) for picture in pictures]
    width, height = pictures[0].size
    notes = [f"upscaled from {width}x{height} px"] if min(width, height) < least_px else []
    return Scene([image for image, _ in views], views[0][1], notes)


def as_rgb(picture: Image.Image) -> Image.Image:
    """RGB and upright; transparent pixels become white, and of 16 bits the upper 8 are kept."""
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    over = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB")


def shrink(image: Array, px: int, resize: str = "antialias") -> Array:
    """The whole image (H, W, 3) at (px, px, 3), as floats. Resizing is a matrix product along each side."""
    down, across = (resize_weights(side, px, resize) for side in image.shape[:2])
    rows = down @ image.astype(np.float32).reshape(image.shape[0], -1)
    small: Array = across @ rows.reshape(px, image.shape[1], 3)
    return small


def resize_weights(side: int, px: int, resize: str) -> Array:
    """(px, side): the weight of every old pixel of a line in every new one.

    antialias: bilinear over all old pixels that a new one covers. bilinear, bicubic: corners aligned, as in the paper's models.
    """
    if resize == "antialias":
        scale = side / px
        centres, old = (np.arange(px) + 0.5) * scale, np.arange(side) + 0.5
        weights = np.maximum(0, 1 - np.abs(old - centres[:, None]) / max(1.0, scale))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)
    places, weights = np.arange(px) * (side - 1) / (px - 1), np.zeros((px, side))
    for tap in range(-1, 3):
        old = np.floor(places) + tap
        away = np.abs(places - old)
        near, far = (1.25 * away - 2.25) * away**2 + 1, ((-0.75 * away + 3.75) * away - 6) * away + 3
        share = np.maximum(0, 1 - away) if resize == "bilinear" else np.where(away <= 1, near, far)
        np.add.at(weights, (np.arange(px), old.astype(int).clip(0, side - 1)), share)
    return weights.astype(np.float32)


def _upscaled(height: int, width: int, least_px: int) -> tuple[int, int]:
    """The size at which the largest patch fits in; the longer side of a very long picture grows to 16 patches at most."""
    scale, most = least_px / min(height, width), RIBBON_ASPECT * least_px
    if scale <= 1:
        return height, width
    new_h, new_w = (max(least_px, side, min(round(side * scale), most)) for side in (height, width))
    return new_h, new_w


def _view(picture: Image.Image, view: View, least_px: int) -> tuple[Array, Callable[[int, int, int, int], list[int]]]:
    """The image that is looked at, and the way back to boxes in the picture."""
    width, height = picture.size
    view_h, view_w = view["height_px"], view["width_px"]
    cut_top = cut_left = top = left = 0
    new_h, new_w = _upscaled(height, width, least_px)
    if view["fit"] == "stretch":
        new_h, new_w = view_h, view_w
    elif view["fit"] == "crop":
        # The crop lies in the middle, so only the middle of a very long picture is resized.
        longest = int(RIBBON_ASPECT * max(view_h / view_w, view_w / view_h) * min(height, width))
        kept_h, kept_w = min(height, longest), min(width, longest)
        cut_top, cut_left, height, width = (height - kept_h) // 2, (width - kept_w) // 2, kept_h, kept_w
        picture = picture.crop((cut_left, cut_top, cut_left + width, cut_top + height))
        short_h, short_w = int(view_h / view["crop_pct"]), int(view_w / view["crop_pct"])
        if short_h / height >= short_w / width:
            new_h, new_w = short_h, max(short_w, int(short_h * width / height))
        else:
            new_h, new_w = max(short_h, int(short_w * height / width)), short_w
        top, left = round((new_h - view_h) / 2), round((new_w - view_w) / 2)
    if (new_h, new_w) != (height, width):
        how = Image.Resampling.BICUBIC if view["interpolation"] == "bicubic" else Image.Resampling.BILINEAR
        picture = picture.resize((new_w, new_h), how)
    if view["fit"] == "crop":
        picture = picture.crop((left, top, left + view_w, top + view_h))
    scale_y, scale_x = new_h / height, new_w / width
    start_y, start_x = top + cut_top * scale_y, left + cut_left * scale_x

    def to_box(top_px: int, left_px: int, height_px: int, width_px: int) -> list[int]:
        first = (left_px + start_x) / scale_x, (top_px + start_y) / scale_y
        last = (left_px + width_px + start_x) / scale_x, (top_px + height_px + start_y) / scale_y
        return [round(v) for v in (*first, *last)]

    return np.asarray(picture), to_box


def _natural_order(file: Path) -> tuple[list[tuple[int, str]], str]:
    """A sort key: frame2 before frame10, with digits of any script; names with the same numbers by their spelling."""
    parts = enumerate(re.split(r"(\d+)", unicodedata.normalize("NFKC", file.name).lower()))
    return [(int(part), "") if place % 2 else (-1, part) for place, part in parts], file.name


# Runtimes: each class opens the graphs of one format and runs them by name.


class RunGraph(Protocol):
    """Runs a graph; returns its outputs in order."""

    def __call__(self, graph: str, *inputs: Array) -> list[Array]: ...


class OnnxGraphs:
    """Graphs run by ONNX Runtime."""

    def __init__(self, files: dict[str, Path], threads: int) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # otherwise it reports its use over the network
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.sessions = {
            name: onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
            for name, file in files.items()
        }

    def __call__(self, graph: str, *inputs: Array) -> list[Array]:
        session = self.sessions[graph]
        names = [given.name for given in session.get_inputs()]
        outputs: list[Array] = session.run(None, dict(zip(names, inputs, strict=True)))
        return outputs


class OpenvinoGraphs:
    """Graphs run by OpenVINO, in full precision."""

    def __init__(self, files: dict[str, Path], threads: int) -> None:
        modules: Any = sys.modules
        modules.setdefault("openvino_telemetry", None)  # otherwise it reports its use over the network
        import openvino

        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        core = openvino.Core()
        self.graphs = {name: core.compile_model(str(file), "CPU", settings) for name, file in files.items()}

    def __call__(self, graph: str, *inputs: Array) -> list[Array]:
        request = self.graphs[graph].create_infer_request()  # one for each call: calls may come from several threads
        outputs = request.infer(list(inputs))
        return [np.array(outputs[index]) for index in range(len(outputs))]


class ExecutorchGraphs:
    """Graphs run by ExecuTorch, for a batch of one; the system decides on its threads."""

    def __init__(self, files: dict[str, Path], threads: int) -> None:
        from executorch.runtime import Runtime

        runtime = Runtime.get()
        self.programs = {name: runtime.load_program(file) for name, file in files.items()}
        self.graphs = {name: program.load_method("forward") for name, program in self.programs.items()}

    def __call__(self, graph: str, *inputs: Array) -> list[Array]:
        import torch  # executorch needs this package itself

        outputs = self.graphs[graph].execute([torch.from_numpy(given) for given in inputs])
        return [output.numpy().copy() for output in outputs]


class LitertGraphs:
    """Graphs run by LiteRT, for a batch of one."""

    def __init__(self, files: dict[str, Path], threads: int) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.graphs = {
            name: Interpreter(model_path=str(file), num_threads=threads).get_signature_runner()
            for name, file in files.items()
        }

    def __call__(self, graph: str, *inputs: Array) -> list[Array]:
        outputs = self.graphs[graph](**{f"args_{index}": given for index, given in enumerate(inputs)})
        return [outputs[f"output_{index}"] for index in range(len(outputs))]


RUNTIMES: dict[str, Callable[[dict[str, Path], int], RunGraph]] = {
    "onnx": OnnxGraphs,
    "openvino": OpenvinoGraphs,
    "executorch": ExecutorchGraphs,
    "litert": LitertGraphs,
}


def open_network(manifest: Manifest, folder: Path, threads: int = 1) -> "Looker":
    """The network whose graphs are in a folder."""
    files = {graph["name"]: folder / graph["file"] for graph in manifest["graphs"]}
    return Looker(manifest, RUNTIMES[manifest["runtime"]](files, threads))


# The loop: a glance, then one closer look after another, until the score is above the threshold.


WHOLE_PLACE = np.array([0.5, 0.5, 1], dtype=np.float32)
CENTRE_AND_CORNERS = np.array([[0.5, 0.5], [0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.float32)
MIDDLE = CENTRE_AND_CORNERS[0]
SAMPLE_PX, PRIME = 16, 2**31 - 1


@dataclass
class Row:
    """One picture while it is being looked at.

    last       name of the view that the last look had; of the glance its side in pixels
    following  number of the candidate that the next look has
    where      (y, x) in [0, 1] of the next look, as the policy aimed it; a view of the whole image does not use it
    place      (y, x, share of the shorter side) that the last look covered
    places     `where` of every look after the glance
    views      candidate of every look after the glance
    regions    (top, left, height, width) that each of them covered, in the image that is looked at
    scores     score after every look
    answers    logits after every look
    sure       whether the last score was above its threshold
    threshold  what the last score was compared with
    """

    scene: Scene
    last: str
    memory: Array
    map: Array
    logits: Array
    policy_memory: Array
    following: int
    where: Array | None = None
    place: Array = field(default_factory=lambda: WHOLE_PLACE)
    value: float = 0.0
    sure: bool = False
    threshold: float = math.inf
    places: list[Array] = field(default_factory=list)
    views: list[Candidate] = field(default_factory=list)
    regions: list[tuple[int, int, int, int]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    answers: list[Array] = field(default_factory=list)

    @property
    def looks(self) -> int:
        return len(self.scores)


class Looker:
    """An exported network: what glancefocus.json says, and the graphs."""

    def __init__(self, manifest: Manifest, graphs: RunGraph) -> None:
        self.manifest = manifest
        self.graphs = graphs
        self.candidates = manifest["candidates"]
        self.by_value = manifest["score"] == "value"

    def look(self, scenes: Sequence[Scene], thresholds: Sequence[Any] | None = None) -> list[Row]:
        """Look at every scene until its score is above a threshold.

        Without thresholds every look is taken, with the last candidate, which is the largest.
        """
        looks = self.manifest["looks"] if thresholds is None else len(thresholds)
        rows = undecided = self._glance(scenes)
        for number in range(1, looks + 1):
            self._judge(undecided, math.inf if thresholds is None else thresholds[number - 1], last=number == looks)
            undecided = [row for row in undecided if not row.sure]
            if number == looks or not undecided:
                break
            if not self.by_value:
                self._aim(undecided)
            self._focus(undecided, number + 1)
        return rows

    def _glance(self, scenes: Sequence[Scene]) -> list[Row]:
        px, nothing = self.manifest["glance_px"], np.zeros(self.manifest["policy_units"], dtype=np.float32)
        seen = [self._first_seen(scene) for scene in scenes]
        placed = self.manifest.get("classifier_place", False) and self.manifest.get("first_view", "glance") != "glance"
        inputs = [(self._normalised(frames), *([place] if placed else [])) for frames, place in seen]
        outputs = self._run("glance", inputs)
        rows = []
        for scene, (_, place), (logits, memory, map_) in zip(scenes, seen, outputs, strict=True):
            rows.append(Row(scene, str(px), memory, map_, logits, nothing, len(self.candidates) - 1, place=place))
        return rows

    def _first_seen(self, scene: Scene) -> tuple[list[Array], Array]:
        """What the first look sees: the whole image resized, or a patch; and its place, see Row.place."""
        px, first = self.manifest["glance_px"], self.manifest.get("first_view", "glance")
        if first == "glance":
            return [shrink(frame, px, self.manifest["glance_resize"]) for frame in scene.frames], WHOLE_PLACE
        where = MIDDLE if first == "centre" else drawn_place(scene, 1)
        height, width = scene.frames[0].shape[:2]
        top, left = _corner(where, height, width, px)
        view = self.manifest["view"]
        place = np.array([*where, px / min(view["height_px"], view["width_px"])], dtype=np.float32)
        return [frame[top : top + px, left : left + px] for frame in scene.frames], place

    def _judge(self, rows: list[Row], threshold: Any, last: bool) -> None:
        """Set the score of every row, whether it stops, and otherwise the candidate of its next look.

        threshold  a number; with several candidates a list, one for each
        """
        if self.by_value and not last:
            self._aim(rows)  # the critic's value, which is the score here, comes with the aim
        limits = np.array(threshold if isinstance(threshold, list) else [threshold], dtype=np.float32)
        for row in rows:
            if self.manifest["temperatures"] is not None:
                row.logits = row.logits / np.float32(self.manifest["temperatures"][row.looks])
            score = np.float32(1 / (1 + math.exp(row.value))) if self.by_value else self.score(row.logits)
            row.scores.append(float(score))
            row.answers.append(row.logits)
            row.threshold = max(threshold) if isinstance(threshold, list) else threshold
            # The last look always stops: a threshold of 0 or less there does not make an answer sure.
            row.sure = bool(score > limits.max()) and not (last and (limits.max() <= 0 or self.by_value))
            if len(limits) > 1 and not row.sure and not last:
                # The candidate of the smallest threshold that the score is not above; the first of equal ones.
                row.following = min((limit, i) for i, limit in enumerate(limits) if score <= limit)[1]

    def score(self, logits: Array) -> np.float32:
        """In [0, 1]: the largest probability; or 1 minus the entropy as a share of the largest possible entropy."""
        probabilities = softmax(logits)
        if self.manifest["score"] == "entropy":
            logs = np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))
            return np.float32(1 + (probabilities * logs).sum() / math.log(len(probabilities)))
        return np.float32(probabilities.max())

    def _aim(self, rows: list[Row]) -> None:
        """Set where each row looks next."""
        if self.manifest.get("policy", "learnt") == "random":
            for row in rows:
                row.where = drawn_place(row.scene, row.looks + 1)
            return
        if self.manifest.get("policy", "learnt") == "centre_corner":
            seen_before = 1 if self.manifest.get("first_view", "glance") == "centre" else 0
            for row in rows:
                row.where = CENTRE_AND_CORNERS[(row.looks - 1 + seen_before) % len(CENTRE_AND_CORNERS)]
            return
        for last, group in _grouped(rows, lambda row: row.last):
            inputs = [(row.map, row.policy_memory, *self._policy_inputs(row)) for row in group]
            for row, (where, memory, value) in zip(group, self._run(f"aim_{last}", inputs), strict=True):
                row.where, row.policy_memory, row.value = where, memory, float(value)

    def _policy_inputs(self, row: Row) -> list[Array]:
        """What the policy gets besides map and memory: the next view one-hot, where there are several; the last place, if used."""
        several, count = len(self.candidates) > 1, len(self.candidates)
        one_hot = [np.eye(count, dtype=np.float32)[row.following]] if several else []
        return [*one_hot, row.place] if self.manifest["place"] else one_hot

    def _focus(self, rows: list[Row], number: int) -> None:
        """The next look of every row, where the policy aimed."""
        for following, group in _grouped(rows, lambda row: row.following):
            view = self.candidates[following]
            seen = [self._seen(row, view) for row in group]
            if self.manifest["classifier"] != "cascaded":
                placed = self.manifest.get("classifier_place", False)
                inputs = [
                    (pixels, row.memory, *([row.place] if placed else []))
                    for pixels, row in zip(seen, group, strict=True)
                ]
                for row, (logits, memory, map_) in zip(group, self._run(view["graph"], inputs), strict=True):
                    row.logits, row.memory, row.map = logits, memory, map_
                continue
            encoded = self._run(view["graph"], [(pixels,) for pixels in seen])
            for row, (vector, map_) in zip(group, encoded, strict=True):
                row.memory, row.map = np.concatenate([row.memory, vector]), map_
            answers = self._run(f"answer_{number}", [(row.memory,) for row in group])
            for row, (logits,) in zip(group, answers, strict=True):
                row.logits = logits

    def _seen(self, row: Row, view: Candidate) -> Array:
        """What a look at this candidate sees. It is also noted in the row."""
        assert row.where is not None
        height, width = row.scene.frames[0].shape[:2]
        region = region_of(view, row.where, height, width)
        row.places.append(row.where)
        row.views.append(view)
        row.regions.append(region)
        row.last, share = view["name"], np.float32(view["share"])
        row.place = np.array([*row.where, share], dtype=np.float32) if share < 1 else WHOLE_PLACE
        top, left, high, wide = region
        covered = [frame[top : top + high, left : left + wide] for frame in row.scene.frames]
        native = view["px"] == high == wide
        return self._normalised(covered if native else [shrink(pixels, view["px"]) for pixels in covered])

    def _normalised(self, frames: list[Array]) -> Array:
        """(3, px, px), or (frames, 3, px, px) for a clip, as the network expects it; frames (px, px, 3) in 0..255."""
        view = self.manifest["view"]
        mean, std = (np.array(values, dtype=np.float32) for values in (view["mean"], view["std"]))
        done = [((frame.astype(np.float32) / 255 - mean) / std).transpose(2, 0, 1) for frame in frames]
        return np.ascontiguousarray(done[0] if self.manifest["frames"] == 1 else np.stack(done))

    def _run(self, graph: str, inputs: Sequence[tuple[Array, ...]]) -> list[list[Array]]:
        """The outputs for each row; all rows together, or as many as the graphs take."""
        size = self.manifest["batch"] or len(inputs)
        done: list[list[Array]] = []
        for start in range(0, len(inputs), size):
            columns = zip(*inputs[start : start + size], strict=True)
            outputs = self.graphs(graph, *(np.stack(column) for column in columns))
            done += [list(row) for row in zip(*outputs, strict=True)]
        return done

    def answer(self, file: str, row: Row, topk: int = 1) -> dict[str, Any]:
        """The answer for a picture, in the form that is printed."""
        probabilities, classes = softmax(row.logits), self.manifest["classes"]
        best = np.argsort(-probabilities, kind="stable")[:topk].tolist()
        names = [view["name"] for view in row.views]
        finite = row.sure and row.threshold is not None and math.isfinite(row.threshold)  # JSON has no infinity
        return {
            "file": file,
            "label": classes[best[0]],
            "confidence": float(probabilities[best[0]]),
            "looks": row.looks,
            "sure": row.sure,
            "threshold": row.threshold if finite else None,
            "where": [[float(share) for share in place] for place in row.places],
            "boxes": [row.scene.to_box(*region) for region in row.regions],
            "patch_px": [view["px"] for view in row.views],
            "views": names,
            "cost_macs": cost_macs(self.manifest, names),
            "top": [{"label": classes[index], "confidence": float(probabilities[index])} for index in best],
            "notes": list(row.scene.notes),
        }


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max())
    probabilities: Array = powers / powers.sum()
    return probabilities


def region_of(view: Candidate, where: Array, height: int, width: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) that a view covers of an image of this size.

    where = 0 is the top or left edge, 1 the bottom or right, so that a square never leaves the image.
    """
    extent = view["extent"]
    if extent is None:
        return 0, 0, height, width
    side = int(extent) if extent > 1 else max(1, round(extent * min(height, width)))
    top, left = _corner(where, height, width, side)
    return top, left, side, side


def drawn_place(scene: Scene, number: int) -> Array:
    """(y, x) in [0, 1) of look `number`, where places are drawn: it follows from the pixels in the middle of the image."""
    height, width = scene.frames[0].shape[:2]
    top, left = _corner(MIDDLE, height, width, SAMPLE_PX)
    levels = scene.frames[0][top : top + SAMPLE_PX, left : left + SAMPLE_PX].transpose(2, 0, 1).reshape(-1)
    weights = np.random.RandomState(number).randint(0, PRIME, size=(2, levels.size), dtype=np.int64)
    place: Array = ((weights * levels.astype(np.int64)).sum(axis=1) % PRIME / PRIME).astype(np.float32)
    return place


def _corner(where: Array, height: int, width: int, px: int) -> tuple[int, int]:
    """(top, left) of a patch of this side in an image of this size."""
    room = np.array([height - px, width - px], dtype=np.float32)
    top, left = np.floor(where.clip(0, 1) * room).astype(int).tolist()
    return top, left


def _grouped(rows: list[Row], key: Callable[[Row], Key]) -> list[tuple[Key, list[Row]]]:
    return [(value, [row for row in rows if key(row) == value]) for value in sorted({key(row) for row in rows})]


# Budgets and costs.


def thresholds_for(manifest: Manifest, budget_macs: float | None = None, looks: int | None = None) -> Any:
    """Thresholds for an average budget, for a fixed number of looks, or those chosen before the export.

    One for each look, with several candidates one row for each look; None: every look is taken.
    """
    if budget_macs is not None and looks is not None:
        raise ValueError("give a budget or a number of looks, not both.")
    if looks is not None:
        if not 1 <= looks <= manifest["looks"]:
            raise ValueError(f"this network takes 1 to {manifest['looks']} looks, not {looks}.")
        return _fixed_looks(looks, [each["extent"] is None for each in manifest["candidates"]])
    if budget_macs is None:
        return manifest["thresholds"]
    return _within(manifest, budget_macs)


def _fixed_looks(looks: int, whole: list[bool]) -> Any:
    """Thresholds with which every image takes exactly this many looks; `whole` says which candidates are the whole image.

    If one is, the views grow up to the last candidate, since a second look at the whole image would show nothing new. Otherwise
    all focus looks have the last candidate.
    """
    last = len(whole) - 1
    if last == 0:
        return [math.inf] * looks
    left = [
        looks - number if any(whole) else 1 for number in range(1, looks + 1)
    ]  # focus looks to come, the next one included
    following = [min(max(0, last + 1 - count), last) for count in left]
    return [[math.inf if each == wanted else -1.0 for each in range(last + 1)] for wanted in following]


def _within(manifest: Manifest, budget_macs: float) -> Any:
    """Thresholds between those of the two stored points around the budget."""
    glance, everything, points = manifest["cheapest"], manifest["dearest"], manifest["curve"]
    if not budget_macs >= glance["mean_macs"]:
        raise ValueError(
            f"a budget of {budget_macs:.3g} multiply-adds is less than one glance ({glance['mean_macs']:.3g})."
        )
    if budget_macs >= everything["mean_macs"]:
        return everything["thresholds"]
    if not points:
        raise ValueError(
            "there are no operating points to choose from. Solve them with `gf budget`, then export again."
        )
    count = sum(point["mean_macs"] <= budget_macs for point in points)
    if count == 0:
        return glance["thresholds"]
    below = points[count - 1]
    if count == len(points) or isinstance(below["thresholds"][0], list):
        return below["thresholds"]  # thresholds of several candidates cannot be mixed: they also choose the view
    above = points[count]
    share = (budget_macs - below["mean_macs"]) / (above["mean_macs"] - below["mean_macs"])
    return [(1 - share) * a + share * b for a, b in zip(below["thresholds"], above["thresholds"], strict=True)]


def cost_macs(manifest: Manifest, views: list[str]) -> int:
    """Multiply-adds of an answer after a glance and looks at these candidates."""
    costs = manifest["costs"]
    aims = [costs["policy_macs"], *(costs["focus_policy_macs"].get(name, costs["policy_macs"]) for name in views)]
    spent = costs["encoder_macs"] + costs["classifier_macs"][0]
    for number, name in enumerate(views, start=1):
        spent += aims[number - 1] + costs["focus_encoder_macs"][name] + costs["classifier_macs"][number]
    if manifest["score"] == "value" and len(views) < manifest["looks"] - 1:
        spent += aims[-1]  # this score needs the next aim before a row can stop
    return int(spent)


# Answers: the form that `gf predict` prints, too.

FIELDS = (
    *("file", "label", "confidence", "looks", "sure", "threshold"),
    *("where", "boxes", "patch_px", "views", "cost_macs", "top", "notes"),
)
"""Fields of an answer, in this order. A file that cannot be read has the fields file and error instead."""
FRAME_FIELDS = ("frame", "seconds")
"""Fields that follow them in answers for frames of a camera or a stream."""


class AnswerWriter:
    """Writes answers one by one, and flushes each, so that it can be used before the last picture is answered.

    form    json: one array; jsonl: one object per line; csv: one row per answer, lists as JSON
    fields  columns of CSV; a column for errors follows
    """

    def __init__(self, stream: TextIO, form: str, fields: Sequence[str] = FIELDS) -> None:
        self.stream = stream
        self.form = form
        self.columns = (*fields, "error")
        self.count = 0
        self._rows = csv.writer(stream, lineterminator="\n")

    def write(self, answered: Mapping[str, Any]) -> None:
        if self.form == "csv":
            if self.count == 0:
                self._rows.writerow(self.columns)
            self._rows.writerow([_cell(answered.get(name)) for name in self.columns])
        elif self.form == "jsonl":
            self.stream.write(json.dumps(answered, allow_nan=False) + "\n")
        else:
            inner = "\n".join(f" {line}" for line in json.dumps(answered, indent=1, allow_nan=False).splitlines())
            self.stream.write(("[\n" if self.count == 0 else ",\n") + inner)
        self.count += 1
        self.stream.flush()

    def close(self) -> None:
        """Finish: close the array. Without any answer, write an empty array, or the header of CSV."""
        if self.form == "json":
            self.stream.write("[]\n" if self.count == 0 else "\n]\n")
        elif self.form == "csv" and self.count == 0:
            self._rows.writerow(self.columns)
        self.stream.flush()


def _cell(value: Any) -> Any:
    """A cell of CSV: text as it is, nothing for None, all else as JSON.

    Text that a spreadsheet would run as a formula gets an apostrophe in front; numbers such as -1 do not.
    """
    if value is None or isinstance(value, str):
        return f"'{value}" if value and re.match(r"[=@\t\r]|[+-](?![0-9.]+$)", value) else value or ""
    return json.dumps(value, allow_nan=False)


# The command.

MOST_BATCH_BYTES = 512 << 20  # of pixels that are held at the same time


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 when all files were answered, 2 when some could not be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="pictures, or folders of pictures")
    parser.add_argument("--budget-macs", type=float, help="average multiply-adds that an answer may cost")
    parser.add_argument("--looks", type=int, help="take exactly this many looks instead of stopping above a threshold")
    parser.add_argument("--topk", type=int, default=1, help="number of most likely classes to print")
    parser.add_argument("--batch-size", "--batch", type=int, default=32, help="pictures in a batch")
    parser.add_argument("--threads", type=int, default=1, help="threads of the runtime")
    parser.add_argument(
        "--folder", type=Path, default=Path(__file__).parent, help="folder of glancefocus.json and graphs"
    )
    forms = parser.add_mutually_exclusive_group()
    for form, words in {
        "jsonl": "print one line of JSON for each picture (default)",
        "json": "print one JSON array",
        "csv": "print CSV",
    }.items():
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, default="jsonl", help=words)
    options = parser.parse_args(arguments)
    manifest: Manifest = json.loads((options.folder / "glancefocus.json").read_text(encoding="utf-8"))
    try:
        thresholds = thresholds_for(manifest, options.budget_macs, options.looks)
    except ValueError as error:
        parser.error(str(error))
    looker = open_network(manifest, options.folder, options.threads)
    writer, failed = AnswerWriter(sys.stdout, options.form), 0
    for batch in _batches(find_pictures(options.files, manifest["frames"]), manifest, max(1, options.batch_size)):
        for answered in _answers(looker, batch, thresholds, max(1, options.topk)):
            writer.write(answered)
            failed += "error" in answered
    writer.close()
    return 2 if failed else 0


def _batches(paths: Iterator[Path], manifest: Manifest, size: int) -> Iterator[list[tuple[Path, Scene | str]]]:
    """Files with their scenes, or with the reason why they cannot be read; limited by number and by memory."""
    batch: list[tuple[Path, Scene | str]] = []
    held = 0
    for path in paths:
        scene = _read(path, manifest)
        held += 0 if isinstance(scene, str) else sum(frame.nbytes for frame in scene.frames)
        batch.append((path, scene))
        if len(batch) == size or held >= MOST_BATCH_BYTES:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _read(path: Path, manifest: Manifest) -> Scene | str:
    try:
        return read_scene(path, manifest)
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError) as error:
        return f"{path} cannot be read: {error}"


def _answers(
    looker: Looker, batch: Sequence[tuple[Path, Scene | str]], thresholds: Any, topk: int
) -> Iterator[dict[str, Any]]:
    """The answer for each file, in order."""
    scenes = [scene for _, scene in batch if not isinstance(scene, str)]
    rows = iter(looker.look(scenes, thresholds) if scenes else [])
    for path, scene in batch:
        if isinstance(scene, str):
            yield {"file": str(path), "error": scene}
            continue
        row = next(rows)
        if np.isfinite(row.logits).all():
            yield looker.answer(str(path), row, topk)
        else:
            yield {"file": str(path), "error": f"{path}: the network's answer is not a number"}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.stderr.close()  # the program that reads our output has ended, such as `head`
        sys.exit(1)
