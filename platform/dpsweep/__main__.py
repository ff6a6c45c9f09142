"""The command ``dpsweep``, which is ``python -m dpsweep`` too."""

import sys

try:
    from dpsweep.foundation.process.garbage import search_seldom
    from dpsweep.foundation.process.interrupts import note_interrupts
    from dpsweep.foundation.process.packages import scan_once
    from dpsweep.foundation.process.streams import open_standard_streams

    open_standard_streams()
    search_seldom()
    scan_once()
    note_interrupts()
    # Most of a second, in which Ctrl-C would find nobody.
    from dpsweep.cli.app import command
except KeyboardInterrupt:
    sys.stderr.write("interrupted; nothing has begun\n")
    sys.exit(130)

if __name__ == "__main__":
    command()
