"""Raw specs with something changed, and the mistakes that are found in them."""

import copy

import pytest

from dpsweep.foundation.errors import SpecError

#: As a value of ``changed``: the key is removed.
LEFT_OUT = object()


def changed(spec, changes):
    """Return a deep copy of a nested mapping with other values at ``section/key`` paths."""
    raw = copy.deepcopy(spec)
    for path, value in changes.items():
        *above, last = path.split("/")
        here = raw
        for key in above:
            here = here.setdefault(key, {})
        if value is LEFT_OUT:
            del here[last]
        else:
            here[last] = value
    return raw


def mistakes(call, *arguments, **named):
    """Return every mistake of the SpecError that a call raises, a line each."""
    with pytest.raises(SpecError) as caught:
        call(*arguments, **named)
    return [str(mistake) for mistake in caught.value.mistakes]
