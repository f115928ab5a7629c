"""The command `gf`, also `python -m glancefocus`: handles signals before anything slow is imported."""

import sys

from glancefocus.interrupts import first_stop_message, stop_message, take_over


def main() -> None:
    """Run the command of this process and exit."""
    take_over()
    with stop_message(first_stop_message(sys.argv[1:])):
        from glancefocus.cli.main import main as run

        run()


if __name__ == "__main__":
    main()
