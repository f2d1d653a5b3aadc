"""FSPool for graphs: an aggregation of PyTorch Geometric."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..checks import check_count, check_device, check_floating, check_integer, nearest
from ..nn import FSPool
from ..sets import check_longest, check_offsets, readable

try:
    from torch_geometric import Index
    from torch_geometric.nn.aggr import Aggregation
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "torch_geometric":  # it is there, but broken
        raise
    raise ModuleNotFoundError(
        "FSPoolAggregation needs torch_geometric; pip install '.[pyg]' in a clone.", name=error.name
    ) from None

__all__ = ["FSPoolAggregation", "make_aggregation"]


class FSPoolAggregation(Aggregation):
    """Featurewise sort pooling, from `FSPool: Learning Set Representations with Featurewise Sort
    Pooling <https://arxiv.org/abs/1906.02795>`_ (ICLR 2020), as an aggregation of PyTorch
    Geometric: a readout, or the ``aggr`` of any ``MessagePassing`` layer.

    .. math:: y_i = \\sum_{j=1}^{n} f\\!\\left(\\frac{j - 1}{n - 1}, \\bar w_i\\right) S_{ij}

    where S is the n elements of a group sorted in descending order, each feature on its own, and f
    is the piecewise-linear function through the knots :math:`\\bar w_i`. A group without elements
    gives zeros; one element alone takes the first knot.

    Args:
        in_channels: Number of features F, of input and output.
        knots: Points k of the weight function, at least 2.
        init: ``"normal"`` (standard normal) or ``"ones"`` (starts as sum aggregation).
        temperature: None for the ordinary sort, or a positive number for the relaxed sort.
        hard_eval: Sort hard in ``eval()`` mode, for weights trained under a relaxed sort.

    Shapes:
        - **input:** x :math:`(*, N, F)`; index :math:`(N)`, in any order, or ptr :math:`(G + 1)`
        - **output:** :math:`(*, G, F)`

    Example:
        >>> from fspool.integrations.pyg import FSPoolAggregation
        >>> aggr = FSPoolAggregation(64, knots=10)
        >>> aggr(torch.randn(5, 64), index=torch.tensor([0, 2, 0, 1, 2])).shape
        torch.Size([3, 64])

    Nothing waits for the device when ``ptr`` is given, or ``index`` with ``dim_size``, but second
    derivatives of a relaxed sort. An ``index`` alone waits once: PyG reads its largest value, to
    know the number of groups.
    """

    def __init__(
        self,
        in_channels: int,
        knots: int = 20,
        *,
        init: str = "normal",
        temperature: float | Tensor | None = None,
        hard_eval: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        # Checked here too, under the name that it has here.
        self.in_channels = check_count("in_channels", in_channels, 1, "the number of features")
        self.pool = FSPool(
            self.in_channels,
            knots,
            init=init,
            temperature=temperature,
            hard_eval=hard_eval,
            device=device,
            dtype=dtype,
        )

    def reset_parameters(self) -> None:
        """Initial weights, and the temperature that the pool was made with."""
        self.pool.reset_parameters()

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
        max_num_elements: int | None = None,
    ) -> Tensor:
        """Pool every group of elements to one.

        Args:
            x: Elements along ``dim``; their features are the last of the other axes.
            index: The group of every element, in any order.
            ptr: Where each group starts, and the end of the last, for elements that lie group by
                group. Goes before ``index``, and saves a sort.
            dim_size: Number of groups G, where ``index`` may not name the last of them.
            dim: The axis of the elements.
            max_num_elements: Elements of the largest group at most, where somebody knows: see
                ``longest`` of :func:`~fspool.functional.fspool`. Nothing is padded without it.
        """
        x = self._features_last(x, dim)
        if ptr is None:
            x, ptr = sort_by_group(x, index, dim_size)
        else:
            check_offsets(ptr, x, "ptr")
        if max_num_elements is not None:
            max_num_elements = check_longest(max_num_elements, ptr, "max_num_elements")
        lead, rows, groups = x.shape[:-2], x.shape[-2], ptr.shape[0] - 1
        offsets = repeat_offsets(ptr, math.prod(lead), rows)
        y = self.pool(x.flatten(0, -2), offsets=offsets, longest=max_num_elements)
        y = y.reshape(*lead, groups, self.in_channels).movedim(-2, dim)
        return y.contiguous()  # layers of several heads take views of it

    def _features_last(self, x: Tensor, dim: int) -> Tensor:
        """Checked, and with its axes in the order (*, N, F)."""
        check_floating("x", x)
        form = f"a dense tensor (*, N, F) with F = in_channels = {self.in_channels}"
        if x.is_nested or x.layout != torch.strided:
            kind = "nested" if x.is_nested else f"of layout {x.layout}"
            raise ValueError(f"x is {kind}; expected {form}, and the groups in index or ptr.")
        if x.ndim >= 2:
            moved = x.movedim(dim, -2)
            if moved.shape[-1] == self.in_channels:
                return moved
        raise ValueError(f"x has shape {tuple(x.shape)}; expected {form} and N at dim={dim}.")

    def __repr__(self) -> str:
        rest = self.pool.extra_repr().partition(", ")[2]  # what follows dim=
        return f"{type(self).__name__}({self.in_channels}, {rest})"


def sort_by_group(x: Tensor, index: Tensor | None, groups: int | None) -> tuple[Tensor, Tensor]:
    """The rows of x (..., N, F) group by group, each in its old order, and where groups start."""
    if index is None:
        raise ValueError("got neither index nor ptr; expected one of them, to tell the groups.")
    if isinstance(index, Index):  # PyG's tensor that remembers whether it is sorted
        index = index.as_tensor()
    groups = _check_index(index, x, groups)
    index, order = index.long().sort(stable=True)
    # A search stays in bounds whatever the index holds, and does not wait; bincount would.
    starts = torch.searchsorted(index, torch.arange(groups + 1, device=index.device))
    return x.index_select(-2, order), starts


def _check_index(index: Tensor, x: Tensor, groups: int | None) -> int:
    """The number of groups."""
    check_integer("index", index)
    check_device("index", index, "x", x.device)
    if tuple(index.shape) != (x.shape[-2],):
        raise ValueError(
            f"index has shape {tuple(index.shape)}; expected ({x.shape[-2]},), "
            "the group of every element of x."
        )
    if groups is None:
        groups = int(index.max()) + 1 if index.numel() else 0
    elif not torch.compiler.is_compiling():
        groups = check_count("dim_size", groups, 0, "the number of groups")
    if readable(index) and index.numel():
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= groups:
            raise ValueError(
                f"index has values from {low} to {high}; "
                f"expected them from 0 and below dim_size={groups}, the number of groups."
            )
    return groups


def repeat_offsets(offsets: Tensor, times: int, rows: int) -> Tensor:
    """The same sets once more for every stretch of ``rows`` rows: leading axes hold more sets."""
    if times == 1:
        return offsets
    first = torch.arange(times, device=offsets.device).unsqueeze(-1) * rows
    starts = (offsets[:-1].long() + first).flatten()
    return torch.nn.functional.pad(starts, (0, 1), value=times * rows)


# --------------------------------------------------------------------------------------------------
# What FSPool is compared with


def make_aggregation(name: str, channels: int) -> Aggregation:
    """One of PyG's own, for nodes of so many features; its output may have more."""
    from torch_geometric.nn import aggr

    def mlp() -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels)
        )

    known = {
        "max": aggr.MaxAggregation,
        "median": aggr.MedianAggregation,
        "quantile": lambda: aggr.QuantileAggregation([0.25, 0.5, 0.75]),
        "sort": lambda: aggr.SortAggregation(k=10),
        "softmax": lambda: aggr.SoftmaxAggregation(learn=True, channels=channels),
        "attention": lambda: aggr.AttentionalAggregation(nn.Linear(channels, 1)),
        "deep-sets": lambda: aggr.DeepSetsAggregation(mlp(), mlp()),
        "set-transformer": lambda: aggr.SetTransformerAggregation(channels),
    }
    return known[nearest("aggregation", name, known)]()
