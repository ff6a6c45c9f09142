"""``python -m dpsweep.tracking.apart``: the process of a tracker."""

from dpsweep.foundation.process.garbage import search_seldom
from dpsweep.foundation.process.packages import scan_once
from dpsweep.foundation.process.streams import open_standard_streams

if __name__ == "__main__":
    open_standard_streams()
    search_seldom()
    scan_once()
    from dpsweep.tracking.apart.serving import main

    main()
