"""``python -m dpsweep.results.page DIRECTORY``: the process that draws a study."""

from dpsweep.foundation.process.garbage import search_seldom
from dpsweep.foundation.process.packages import scan_once

if __name__ == "__main__":
    search_seldom()
    scan_once()
    from dpsweep.results.page.drawing import main

    main()
