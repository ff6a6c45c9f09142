"""``python -m dpsweep.results.page DIRECTORY``: the process that draws a study."""

from dpsweep.foundation.process.garbage import search_seldom

if __name__ == "__main__":
    search_seldom()
    from dpsweep.results.page.drawing import main

    main()
