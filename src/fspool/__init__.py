"""Learning on sets by featurewise sort pooling (FSPool, ICLR 2020)."""

from . import functional, nn, sets
from .functional import Order
from .nn import FSPool, FSUnpool
from .sets import check_values

try:
    from . import kernels  # noqa: F401 - importing it registers the fast operators
except ModuleNotFoundError as missing:  # works without that folder, by the definitions
    if missing.name != f"{__name__}.kernels":
        raise

__version__ = "0.1.0"
__all__ = ["FSPool", "FSUnpool", "Order", "check_values", "functional", "nn", "sets"]
