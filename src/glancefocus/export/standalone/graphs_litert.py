"""Graphs by LiteRT."""

from pathlib import Path

from glancefocus.export.standalone.views import Array


class Graphs:
    """Graphs by LiteRT, for a batch of one."""

    def __init__(self, files: dict[str, Path], threads: int) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.graphs = {
            name: Interpreter(model_path=str(file), num_threads=threads).get_signature_runner()
            for name, file in files.items()
        }

    def __call__(self, graph: str, *inputs: Array) -> list[Array]:
        outputs = self.graphs[graph](**{f"args_{index}": given for index, given in enumerate(inputs)})
        return [outputs[f"output_{index}"] for index in range(len(outputs))]
