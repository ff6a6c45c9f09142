"""Strategies: honest ways to search one range, each made of the same base spec."""

from dpsweep.planning.strategies.base import Strategy, searched_range
from dpsweep.planning.strategies.oracle import oracle
from dpsweep.planning.strategies.table import STRATEGIES, default_value

__all__ = ["STRATEGIES", "Strategy", "default_value", "oracle", "searched_range"]
