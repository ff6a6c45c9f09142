"""``python -m dpsweep`` is the command ``dpsweep``."""

from dpsweep.cli.app import command

if __name__ == "__main__":
    command()
