"""``python -m dpsweep.tracking.apart``: the process of a tracker."""

from dpsweep.foundation.process.garbage import search_seldom

if __name__ == "__main__":
    search_seldom()
    from dpsweep.tracking.apart.serving import main

    main()
