"""What the `dshd` command and `python -m dshd` run: the demonstration of the kernel."""

from dshd.testing.demonstration import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
