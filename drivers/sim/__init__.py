"""A device in virtual time whose tokens show every mistake in memory management."""

from tokenix.drivers.sim.costs import CostModel
from tokenix.drivers.sim.device import SimDevice
from tokenix.drivers.sim.faults import Fault, FaultPlan
from tokenix.drivers.sim.model import expected_tokens

__all__ = ["CostModel", "Fault", "FaultPlan", "SimDevice", "expected_tokens"]
