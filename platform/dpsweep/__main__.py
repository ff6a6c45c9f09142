"""The command ``dpsweep``, which is ``python -m dpsweep`` too."""

import sys

try:
    from dpsweep.foundation.interrupts import note_interrupts

    note_interrupts()
    # Most of a second, in which Ctrl-C would find nobody.
    from dpsweep.cli.app import command
except KeyboardInterrupt:
    sys.stderr.write("interrupted; nothing has begun\n")
    sys.exit(130)

if __name__ == "__main__":
    command()
