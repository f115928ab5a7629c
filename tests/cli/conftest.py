"""What the tests of the command share."""

from collections.abc import Callable

import pytest

from glancefocus.cli.main import main


@pytest.fixture
def gf_in_full(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command: its exit code, standard output and standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out, err

    return run
