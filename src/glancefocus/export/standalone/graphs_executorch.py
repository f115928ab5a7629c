"""Graphs by ExecuTorch."""

from pathlib import Path

from glancefocus.export.standalone.views import Array


class Graphs:
    """Graphs by ExecuTorch, for a batch of one; it takes its threads from the system."""

    def __init__(self, files: dict[str, Path], threads: int) -> None:
        from executorch.runtime import Runtime

        runtime = Runtime.get()
        self.programs = {name: runtime.load_program(file) for name, file in files.items()}
        self.graphs = {name: program.load_method("forward") for name, program in self.programs.items()}

    def __call__(self, graph: str, *inputs: Array) -> list[Array]:
        import torch  # a package that executorch needs itself

        outputs = self.graphs[graph].execute([torch.from_numpy(given) for given in inputs])
        return [output.numpy().copy() for output in outputs]
