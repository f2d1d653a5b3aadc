"""What a sort remembers: the object that links a pool with the unpool that undoes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..checks import INTEGERS, check_floating
from ..layouts import Packed, Padded, Sets, is_traced
from .by_rank import from_ranks, to_ranks
from .relaxed_sort import apply, apply_transposed, permutation


@dataclass(frozen=True, eq=False, repr=False)
class Order:
    """The featurewise sort of a batch of sets, as returned by ``fspool(..., return_order=True)``.

    A hard order keeps the rank of every element and nothing else. A relaxed one also keeps the
    sorted values, from which the soft permutations P are applied without being stored, or P where
    it is small.
    It moves through ``torch.compile`` and ``torch.utils._pytree`` like a tuple of tensors. It holds
    the mask, sizes or offsets that were given, not copies: do not write over them while it lives.
    """

    sets: Sets
    ranks: Tensor  # like x with the replica axis, smallest integers that fit
    values: Tensor | None = None  # relaxed: x sorted, hard, in descending order
    normaliser: Tensor | None = None  # relaxed: softmax sums of the rows of P, where known
    temperature: Tensor | None = None
    p: Tensor | None = None  # relaxed and small: P itself, (G, B, N, N, D), columns by rank

    @property
    def layout(self) -> str:
        """``"padded"``, ``"packed"`` or ``"jagged"``."""
        return self.sets.layout

    @property
    def sizes(self) -> Tensor:
        """Elements of each set, ``(B,)``, or ``(G, B)`` with replicas."""
        sizes = self.sets.sizes
        return sizes if self.sets.replicas else sizes.squeeze(0)

    @property
    def dim(self) -> int:
        """How many features were sorted."""
        return self.ranks.shape[-1]

    @property
    def indices(self) -> Tensor:
        """Row of x that holds rank j, feature by feature; -1 after the last element.

        Padded: ``(B, N, D)``, rows counted within the set. Packed, jagged: ``(T, D)``, rows of x.
        A relaxed order gives the hard sort that it relaxes.
        """
        indices = self.sets.indices(self.ranks)
        return indices if self.sets.replicas else indices.squeeze(0)

    def sort(self, x: Tensor) -> Tensor:
        """P x: the elements of x, which has the layout of the pooled input, by rank."""
        inner = to_ranks(self._enter(x), self.ranks, self.sets)
        if self.temperature is not None:
            inner = apply(self, inner)
        return self.sets.leave(self.sets.clear_ranks(inner).to(x.dtype))

    def unsort(self, v: Tensor) -> Tensor:
        """P^T v: rows by rank back to the positions of their elements; zeros in the padding."""
        inner = self.sets.clear_ranks(self._enter(v, "v"))
        if self.temperature is not None:
            inner = apply_transposed(self, inner)
        return self.sets.leave(from_ranks(inner, self.ranks, self.sets).to(v.dtype))

    def matrix(self) -> Tensor:
        """The permutation matrices P, for looking at: ``(B, D, N, N)``, O(n^2) memory.

        Row j says which elements make up rank j. Packed sets are padded to the largest, which on
        CUDA waits for the device.
        """
        ranks = self.sets.pad(self.ranks.long())
        length = ranks.shape[-2]
        rows = torch.arange(length, device=ranks.device)[:, None]
        hard = ranks.mT.unsqueeze(-2) == rows  # (G, B, D, N, N)
        inside = self.sets.padded(length).inside
        if inside is not None:
            hard = hard & inside.mT.unsqueeze(-2)
        if self.temperature is None:
            matrix = hard.to(torch.get_default_dtype())
        else:
            p = permutation(self.values, self.temperature, self.sets).movedim(-1, -3)
            matrix = p @ hard.to(p.dtype)
        return matrix if self.sets.replicas else matrix.squeeze(0)

    def select(self, features: Tensor | list[int] | slice) -> Order:
        """The order of some features only, for a decoder that unsorts with just those."""
        if not isinstance(features, slice):
            features = self._read_features(features)

        def pick(t: Tensor | None) -> Tensor | None:
            return None if t is None else t[..., features]

        return replace(
            self,
            ranks=pick(self.ranks),
            values=pick(self.values),
            normaliser=pick(self.normaliser),
            p=pick(self.p),
        )

    def detach(self) -> Order:
        """The same order, through which no gradient flows."""
        return self._map(lambda t: t.detach() if t.is_floating_point() else t)

    def to(self, device: torch.device | str) -> Order:
        """The same order on another device."""
        device = torch.empty(0, device=device).device
        return self._map(lambda t: t.to(device))

    def _read_features(self, features: Tensor | list[int]) -> Tensor:
        if not isinstance(features, (Tensor, list, tuple, range)):
            kind = type(features).__name__
            raise TypeError(f"features is a {kind}; expected a list, a 1-d tensor or a slice.")
        given = features if isinstance(features, Tensor) else list(features)
        index = torch.as_tensor(given, device=self.ranks.device)
        if index.dtype == torch.bool and index.shape == (self.dim,):
            return index
        if index.ndim != 1 or (len(index) and index.dtype not in INTEGERS):
            raise ValueError(
                f"features has shape {tuple(index.shape)} and dtype {index.dtype}; "
                f"expected a list of integers, or a mask of the {self.dim} features."
            )
        index = index.long()
        if len(index) and not is_traced(index) and index.device.type == "cpu":
            low, high = int(index.min()), int(index.max())
            if low < -self.dim or high >= self.dim:
                raise IndexError(
                    f"features has values from {low} to {high}; expected 0 to {self.dim - 1}, "
                    "or negative ones to count from the end."
                )
        return index

    def _map(self, function) -> Order:
        return pytree.tree_map(function, self)

    def _enter(self, x: Tensor, name: str = "x") -> Tensor:
        inner = self.sets.enter(x, name)
        if self.temperature is not None:
            check_floating(name, inner)
        if inner.shape[-1] != self.dim:
            raise ValueError(
                f"{name} has {inner.shape[-1]} features, but this order sorted {self.dim}; "
                "select(features) takes some of an order's features."
            )
        return inner

    def __repr__(self) -> str:
        groups, batch, rows = self.sets.shape
        kind = "hard" if self.temperature is None else "relaxed"
        replicas = f"replicas={groups}, " if self.sets.replicas else ""
        return f"Order({kind}, {self.layout}, {replicas}sets={batch}, rows={rows}, dim={self.dim})"


_OWN = ("ranks", "values", "normaliser", "temperature", "p")
_OF_SETS = ("mask", "lengths", "offsets", "ragged")
_KINDS = {kind.__name__: kind for kind in (Padded, Packed)}


Context = tuple[str, tuple[str, ...], bool]  # kind of sets, names of the leaves, replicas


def _flatten_with_keys(order: Order) -> tuple[list, Context]:
    """Only the tensors that are there are leaves; the rest describes them."""
    tensors = {name: getattr(order, name) for name in _OWN}
    tensors |= {name: getattr(order.sets, name, None) for name in _OF_SETS}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    context = type(order.sets).__name__, tuple(tensors), order.sets.replicas
    return [(pytree.GetAttrKey(name), tensor) for name, tensor in tensors.items()], context


def _flatten(order: Order) -> tuple[list, Context]:
    leaves, context = _flatten_with_keys(order)
    return [tensor for _, tensor in leaves], context


def _unflatten(leaves, context: Context) -> Order:
    kind, names, replicas = context
    tensors = dict(zip(names, leaves, strict=True))
    ranks = tensors["ranks"]
    shape = tuple(getattr(ranks, "shape", (0, 0, 0)))  # a leaf may be anything, such as None
    if kind == "Packed":
        batch = getattr(tensors["offsets"], "shape", (1,))[-1] - 1
        shape = shape[0], batch, shape[1]
    own = {name: tensors.pop(name) for name in _OWN if name in tensors}
    device = getattr(ranks, "device", None)
    return Order(_KINDS[kind](shape[:3], device, replicas=replicas, **tensors), **own)


def _load_context(dumped: list) -> Context:
    kind, names, replicas = dumped
    return kind, tuple(names), replicas


pytree.register_pytree_node(
    Order,
    _flatten,
    _unflatten,
    serialized_type_name="fspool.Order",
    to_dumpable_context=list,
    from_dumpable_context=_load_context,
    flatten_with_keys_fn=_flatten_with_keys,
)
torch.serialization.add_safe_globals([Order, Padded, Packed])  # tensors, numbers and names
