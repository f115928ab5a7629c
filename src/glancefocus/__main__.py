"""The command `gf`, also `python -m glancefocus`: signals are handled before anything that takes a while is imported."""

import sys

from glancefocus.interrupts import farewell, first_farewell, take_over


def main() -> None:
    """Run the command of this process and exit."""
    take_over()
    with farewell(first_farewell(sys.argv[1:])):
        from glancefocus.cli.main import main as run

        run()


if __name__ == "__main__":
    main()
