"""The command ``radixd``, also as ``python -m radixd``."""

from radixd.cli import app


def main() -> None:
    """Run the command line and exit with its code."""
    app(prog_name="radixd")


if __name__ == "__main__":
    main()
