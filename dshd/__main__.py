"""What the `dshd` command and `python -m dshd` run."""

from dshd.app.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
