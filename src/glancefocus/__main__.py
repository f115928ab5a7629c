"""The command `gf`, also `python -m glancefocus`: signals are handled before anything that takes a while is imported."""

from glancefocus.interrupts import take_over


def main() -> None:
    """Run the command of this process and exit."""
    take_over()
    from glancefocus.cli import main as run

    run()


if __name__ == "__main__":
    main()
