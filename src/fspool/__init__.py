"""Learning on sets by featurewise sort pooling (FSPool, ICLR 2020)."""

from importlib.util import find_spec

from . import compat, functional, losses, models, nn, sets
from .functional import Order
from .nn import FSPool, FSUnpool
from .sets import check_values

if find_spec(f"{__name__}.kernels"):  # without that folder everything runs by its definition
    from . import kernels  # noqa: F401 - importing it registers the fast operators

__version__ = "0.1.0"
__all__ = [
    "FSPool",
    "FSUnpool",
    "Order",
    "check_values",
    "compat",
    "functional",
    "losses",
    "models",
    "nn",
    "sets",
]
