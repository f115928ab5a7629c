"""Nothing that we do, or that a library we import does, reaches for the network or writes outside the cache and the output."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

# Runs commands one after the other, and prints every network access and every write of Python's that it should not make.
GUARDED = """
    import os, sys

    allowed = tuple(os.path.realpath(path) + os.sep for path in os.environ["MAY_WRITE"].split(os.pathsep))
    devices = ("/dev/null", "/dev/tty", "/dev/shm/")

    def may_write(path):
        if isinstance(path, int) or path is None:
            return True
        path = os.path.realpath(os.fsdecode(path))
        return (path + os.sep).startswith(allowed) or path.startswith(devices)

    def guard(event, arguments):
        if event in ("socket.getaddrinfo", "socket.gethostbyname"):
            found(event, arguments[0])
        elif event in ("socket.connect", "socket.sendto"):
            found(event, arguments[1])
        elif event == "open":
            path, mode, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) and not may_write(path):
                found(event, path)
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.rename") and not may_write(arguments[0]):
            path = os.path.realpath(arguments[0])
            if event != "os.mkdir" or not (os.path.isdir(path) or allowed[0].startswith(path + os.sep)):
                found(event, arguments[0])

    def found(event, what):
        if not (isinstance(what, (str, bytes)) and event == "socket.connect"):  # sockets of this machine have paths
            print("GUARD", event, what, file=sys.stderr, flush=True)

    sys.addaudithook(guard)
    from glancefocus.cli.main import main

    for line in sys.stdin.read().splitlines():
        try:
            main(line.split("\\t"))
        except SystemExit as ended:
            assert ended.code == 0, line
        print("DONE", line, file=sys.stderr, flush=True)
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2), ("test", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


def traced(log: Path) -> list[str]:
    """The words that let strace note every connection of compiled code, too; none where there is no strace."""
    words = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", str(log)]
    if shutil.which("strace") is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        return []
    return words


def test_no_command_reaches_for_the_network_or_writes_elsewhere(tmp_path: Path, photos: Path) -> None:
    home, output, temporary = (tmp_path / name for name in ("home", "output", "temporary"))
    for folder in (home, output, temporary):
        folder.mkdir()
    cache, bundle, picture = (
        home / ".cache" / "glancefocus",
        output / "run" / "bundle",
        photos / "val" / "cat" / "0.png",
    )
    network = "--backbone test_resnet --glance-px 32 --patch-px 32 --looks 2 --height-px 64 --width-px 64"
    quick = "--weights none --rivals none --stages 1 --set recognise.epochs=1 --batch-size 4 --workers 0"
    commands = [
        ["models"],
        ["train", str(photos), "-o", str(output / "run"), *network.split(), *quick.split()],
        *(["predict", str(bundle), str(picture), "--runtime", name] for name in ("eager", "onnx", "openvino")),
        ["predict", str(bundle), str(picture), "--runtime", "onnx", "--light-weights"],
        ["export", str(bundle), "--to", "openvino", "-o", str(output / "openvino")],
    ]
    own = (
        "ORT_DISABLE_TELEMETRY",
        "HF_HUB_DISABLE_TELEMETRY",
        "GLANCEFOCUS_CACHE",
        "MPLCONFIGDIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
    )
    may_write = os.pathsep.join(str(folder) for folder in (cache, output, temporary))
    environment = {name: value for name, value in os.environ.items() if name not in own} | {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "MAY_WRITE": may_write,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    connections = tmp_path / "connections"
    done = subprocess.run(
        [*traced(connections), sys.executable, "-W", "ignore", "-c", textwrap.dedent(GUARDED)],
        input="\n".join("\t".join(words) for words in commands),
        env=environment,
        cwd=output,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("DONE") == len(commands)
    assert [line for line in done.stderr.splitlines() if line.startswith("GUARD")] == []
    if connections.exists():
        assert [line for line in connections.read_text().splitlines() if "AF_INET" in line] == []
    assert sorted(home.iterdir()) == [home / ".cache"]
    assert list((home / ".cache").iterdir()) == [cache]
    assert list(temporary.iterdir()) == []
