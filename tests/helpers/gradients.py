"""What the tests of gradient engines compare with."""

import torch


def relative_error(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Return the distance of all tensors together over the norm of the expected ones."""
    difference = torch.cat([(a.double() - e).flatten() for a, e in zip(actual, expected)])
    return float(difference.norm() / torch.cat([e.flatten() for e in expected]).norm())
