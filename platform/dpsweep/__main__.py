"""``python -m dpsweep`` is the command ``dpsweep``."""

from dpsweep.cli.app import main

if __name__ == "__main__":
    main()
