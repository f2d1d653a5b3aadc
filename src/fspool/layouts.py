"""The two descriptions of a batch of sets inside the package: :class:`Padded`, :class:`Packed`.

Both answer the same questions, so that the maths is written once: how large is the set of every
row, what are the ranks, sum over a set, spread a pooled vector over the rows of its set, move rows
to their ranks and back. x is ``(G, B, N, D)`` in one and ``(G, T, D)`` in the other; G, the replica
axis, is 1 where the user gave none. Nothing here waits for the device, except ``Packed.pad``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import check_device, check_floating, check_tensor


@dataclass(frozen=True, eq=False)
class Padded:
    """G x B sets in slots of N rows; ``mask`` (G, B, N) or ``lengths`` (G, B), or neither: full."""

    shape: tuple[int, int, int]  # G, B, N
    device: torch.device
    mask: Tensor | None = None
    lengths: Tensor | None = None
    replicas: bool = False  # did the user's tensors carry the replica axis?

    layout = "padded"
    offsets = None

    @property
    def full(self) -> bool:
        return self.mask is None and self.lengths is None

    @property
    def sizes(self) -> Tensor:
        """Elements of each set, (G, B)."""
        if self.mask is not None:
            return self.mask.sum(-1)
        if self.lengths is not None:
            return self.lengths
        groups, batch, length = self.shape
        return torch.full((), length, device=self.device).expand(groups, batch)

    @property
    def element_sizes(self) -> Tensor:
        """The size of its own set, for every row; broadcasts against x."""
        if self.full:  # one number for all keeps the weights of all sets one small table
            return torch.full((1, 1, 1, 1), self.shape[2], device=self.device)
        return self.sizes[..., None, None]

    @property
    def iota(self) -> Tensor:
        """The rank of every row of a tensor that is indexed by rank."""
        return torch.arange(self.shape[2], device=self.device)[None, None, :, None]

    @property
    def inside(self) -> Tensor | None:
        """Which rows are elements, (G, B, N, 1); None when all are."""
        if self.mask is not None:
            return self.mask.unsqueeze(-1)
        return self.ranks_inside

    @property
    def ranks_inside(self) -> Tensor | None:
        """The same for tensors indexed by rank, where elements always come first."""
        return None if self.full else self._first(self.sizes)

    def _first(self, count: Tensor) -> Tensor:
        rows = torch.arange(self.shape[2], device=self.device)
        return (rows < count.unsqueeze(-1)).unsqueeze(-1)

    def ranks(self, x: Tensor) -> Tensor:
        """Rank of every element in its set, feature by feature: 0 is the largest, ties by position.

        Padding gets the ranks after the elements, so the ranks of a slot are a permutation.
        """
        if torch.onnx.is_in_onnx_export():  # ONNX has no stable sort; values stay right
            order = self.clear(x, float("-inf")).sort(dim=-2, descending=True).indices
            return invert(order)
        order = self.clear(x).sort(dim=-2, descending=True, stable=True).indices
        if not self.full:  # a second, stable sort puts padding last, also behind elements of -inf
            outside = (~self.inside).expand_as(x).gather(-2, order)
            order = order.gather(-2, outside.byte().sort(dim=-2, stable=True).indices)
        return invert(order)

    def clear(self, x: Tensor, value: float = 0.0) -> Tensor:
        """x with ``value`` in its padding, whatever that held."""
        return x if self.full else x.masked_fill(~self.inside, value)

    def clear_ranks(self, v: Tensor) -> Tensor:
        return v if self.full else v.masked_fill(~self.ranks_inside, 0.0)

    def sum(self, x: Tensor) -> Tensor:
        return x.sum(-2)

    def spread(self, z: Tensor) -> Tensor:
        """(G, B, D) to one row for every element; broadcasts against x."""
        return z.unsqueeze(-2)

    def to_ranks(self, x: Tensor, ranks: Tensor) -> Tensor:
        """Row of position p to row of rank ranks[p]."""
        x = self.clear(x).expand(ranks.shape)
        return torch.zeros_like(x).scatter(-2, ranks.long(), x)

    def from_ranks(self, v: Tensor, ranks: Tensor) -> Tensor:
        """The way back."""
        return self.clear(v.expand(ranks.shape).gather(-2, ranks.long()))

    def indices(self, ranks: Tensor) -> Tensor:
        order = invert(ranks.long())
        return order if self.full else order.masked_fill(~self.ranks_inside, -1)

    def pad(self, x: Tensor, length: int | None = None) -> Tensor:
        return x

    def unpad(self, x: Tensor) -> Tensor:
        return x

    def padded(self, length: int) -> Padded:
        return self

    def enter(self, x: Tensor, name: str = "x") -> Tensor:
        """The user's tensor to the inner form, checked against this layout."""
        shape = self.shape if self.replicas else self.shape[1:]
        return _enter(x, name, shape, self.device, self.replicas)

    def leave(self, x: Tensor) -> Tensor:
        """The way back."""
        return x if self.replicas else x.squeeze(0)


@dataclass(frozen=True, eq=False)
class Packed:
    """G x B sets behind one another: set b is rows ``offsets[b]:offsets[b + 1]`` of T.

    Offsets (B + 1,) are those of all replicas. With (G, B + 1) every replica has its own, which may
    end before T: the rows after them are no elements. They make up one more set, number B, that
    nobody asks for.
    """

    shape: tuple[int, int, int]  # G, B, T
    device: torch.device
    offsets: Tensor
    replicas: bool = False
    ragged: Tensor | None = None  # the offsets of the nested tensor that this was, as they came

    full = False
    mask = None
    lengths = None

    @property
    def layout(self) -> str:
        return "packed" if self.ragged is None else "jagged"

    @property
    def own(self) -> bool:
        """Has every replica offsets of its own?"""
        return self.offsets.ndim == 2

    @property
    def sizes(self) -> Tensor:
        return self.offsets.diff().expand(self.shape[0], -1)

    @property
    def inside(self) -> Tensor | None:
        """Which rows are elements, (G, T, 1); None when all are."""
        return (self._rows < self.offsets[:, -1:]).unsqueeze(-1) if self.own else None

    @property
    def bins(self) -> int:
        """How many sets there are with the one of no elements."""
        return self.shape[1] + int(self.own)  # exported, it is added to a symbol

    @property
    def set_ids(self) -> Tensor:
        """The set of every row, (T,) or (G, T)."""
        groups, batch, length = self.shape
        if not self.own:
            ids = torch.bucketize(self._rows, self.offsets[1:], right=True)
            return ids.clamp(max=max(batch - 1, 0))  # stay in bounds on unchecked offsets
        first = torch.arange(groups, device=self.device).unsqueeze(-1)
        ends = (self.offsets + first * length).flatten()  # all replicas behind one another
        rows = torch.arange(groups * length, device=self.device)
        ids = torch.bucketize(rows, ends, right=True).reshape(groups, length)
        return (ids - first * (batch + 1) - 1).clamp(0, batch)

    @property
    def element_sizes(self) -> Tensor:
        ids = self.set_ids
        sizes = self._at((ids + 1).clamp(max=self.shape[1])) - self._at(ids)
        return sizes if self.own else sizes.unsqueeze(0)

    @property
    def iota(self) -> Tensor:
        iota = self._rows.unsqueeze(-1) - self._first_rows()
        return iota if self.own else iota.unsqueeze(0)

    @property
    def _rows(self) -> Tensor:
        return torch.arange(self.shape[2], device=self.device)

    def _at(self, ids: Tensor) -> Tensor:
        """The offsets of some sets, (T, 1) or (G, T, 1)."""
        return self.offsets.gather(-1, ids).unsqueeze(-1)

    def _first_rows(self) -> Tensor:
        return self._at(self.set_ids)

    def ranks(self, x: Tensor) -> Tensor:
        """Rank of every element in its set; 0 for what is none."""
        if torch.onnx.is_in_onnx_export():  # no stable sort there to go by set after going by value
            rows = self.shape[2]
            return self.unpad(self.padded(rows).ranks(self.pad(x, rows)))
        order = x.sort(dim=-2, descending=True, stable=True).indices
        ids = self.set_ids.unsqueeze(-1).expand_as(x).gather(-2, order)
        order = order.gather(-2, ids.sort(dim=-2, stable=True).indices)
        return self.clear(invert(order) - self._first_rows(), 0)

    def clear(self, x: Tensor, value: float = 0.0) -> Tensor:
        return x.masked_fill(~self.inside, value) if self.own else x

    def clear_ranks(self, v: Tensor) -> Tensor:
        return self.clear(v)

    def sum(self, x: Tensor) -> Tensor:
        groups, batch, _ = self.shape
        total = x.new_zeros(groups, self.bins, x.shape[-1])
        if not self.own:
            return total.index_add(1, self.set_ids, x)
        return total.scatter_add(1, self.set_ids.unsqueeze(-1).expand_as(x), x)[:, :batch]

    def spread(self, z: Tensor) -> Tensor:
        if not self.own:
            return z[:, self.set_ids]
        ids = self.set_ids.unsqueeze(-1).expand(-1, -1, z.shape[-1])
        return torch.nn.functional.pad(z, (0, 0, 0, 1)).gather(1, ids)

    def to_ranks(self, x: Tensor, ranks: Tensor) -> Tensor:
        x = self.clear(x.expand(ranks.shape))
        return torch.zeros_like(x).scatter(-2, self._places(ranks), x)

    def from_ranks(self, v: Tensor, ranks: Tensor) -> Tensor:
        return self.clear(v.expand(ranks.shape).gather(-2, self._places(ranks)))

    def _places(self, ranks: Tensor) -> Tensor:
        return ranks + self._first_rows()

    def indices(self, ranks: Tensor) -> Tensor:
        return self.clear(invert(self._places(ranks)), -1)

    def pad(self, x: Tensor, length: int | None = None) -> Tensor:
        """(G, T, D) to (G, B, N, D); N is the largest size: on CUDA this waits for the device.

        While tracing, when nobody knows the largest size, N is T: no set can be larger.
        """
        groups, batch, rows = self.shape
        if length is None:
            unknown = is_traced(self.offsets) or self.offsets.is_meta
            length = rows if unknown else self._largest()
        out = x.new_zeros(groups, batch * length + int(self.own), x.shape[-1])
        slots = self._slots(length)
        if self.own:  # one slot more, for what is no element
            out = out.scatter(1, slots.unsqueeze(-1).expand_as(x), self.clear(x))[:, :-1]
        else:
            out = out.index_copy(1, slots, x)
        return out.unflatten(1, (batch, length))

    def _largest(self) -> int:
        sizes = self.offsets.diff()
        return int(sizes.max()) if sizes.numel() else 0

    def unpad(self, x: Tensor) -> Tensor:
        """The way back from :meth:`pad`."""
        slots, x = self._slots(x.shape[-2]), x.flatten(1, 2)
        if not self.own:
            return x[:, slots]
        slots = slots.unsqueeze(-1).expand(-1, -1, x.shape[-1])
        return torch.nn.functional.pad(x, (0, 0, 0, 1)).gather(1, slots)

    def _slots(self, length: int) -> Tensor:
        ids = self.set_ids
        slots = ids * length + self._rows - self.offsets.gather(-1, ids)
        return slots.clamp(max=self.shape[1] * length) if self.own else slots

    def padded(self, length: int) -> Padded:
        """The description of what :meth:`pad` returns."""
        groups, batch, _ = self.shape
        return Padded((groups, batch, length), self.device, lengths=self.sizes, replicas=True)

    def enter(self, x: Tensor, name: str = "x") -> Tensor:
        check_tensor(name, x)
        if self.ragged is not None:
            x = self._enter_jagged(x, name)
        shape = (self.shape[0], self.shape[2]) if self.replicas else (self.shape[2],)
        return _enter(x, name, shape, self.device, self.replicas)

    def _enter_jagged(self, x: Tensor, name: str) -> Tensor:
        if not x.is_nested or x.layout != torch.jagged:
            kind = "strided" if x.is_nested else "dense"
            raise ValueError(
                f"{name} is {kind}, but this order belongs to jagged sets; "
                "pass a jagged nested tensor with the same offsets."
            )
        own, other = self.ragged, x.offsets()
        if other is not own and not is_traced(own) and own.device.type == "cpu":
            if not torch.equal(own.long(), other.long()):
                raise ValueError(
                    f"{name} has other offsets than the sets of this order; "
                    "pass a jagged nested tensor with the same offsets."
                )
        return x.values()

    def leave(self, x: Tensor) -> Tensor:
        x = x if self.replicas else x.squeeze(0)
        if self.ragged is not None:
            return torch.nested.nested_tensor_from_jagged(x, self.ragged)
        return x


Sets = Padded | Packed


def _enter(x: Tensor, name: str, shape: tuple, device: torch.device, replicas: bool) -> Tensor:
    check_tensor(name, x)
    if x.is_nested or tuple(x.shape[:-1]) != tuple(shape):
        came = "nested" if x.is_nested else f"of shape {tuple(x.shape)}"
        expected = ", ".join(map(str, shape))
        raise ValueError(
            f"{name} is {came}, but this order belongs to sets of shape ({expected}, D); "
            "pass a tensor of that layout."
        )
    check_device(name, x, "the order", device)
    return x if replicas else x.unsqueeze(0)


def enter_pooled(sets: Sets, z: Tensor, dim: int, name: str = "z") -> Tensor:
    """The user's pooled tensor (B, D) to the inner form (G, B, D), checked."""
    check_floating(name, z)
    expected = (*sets.shape[:2], dim) if sets.replicas else (sets.shape[1], dim)
    if tuple(z.shape) != expected:
        raise ValueError(
            f"{name} has shape {tuple(z.shape)}; expected {expected}: "
            "one row for each set of the order, one column for each of its features."
        )
    return z if sets.replicas else z.unsqueeze(0)


def leave_pooled(sets: Sets, y: Tensor) -> Tensor:
    """The way back."""
    return y if sets.replicas else y.squeeze(0)


def is_traced(tensor: Tensor) -> bool:
    """Has it no values to look at, because somebody is compiling or exporting?"""
    if torch.compiler.is_compiling() or not isinstance(tensor, Tensor):
        return True
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return True
    while torch._C._functorch.is_gradtrackingtensor(tensor):  # a wrapper with values inside
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def transforms() -> list[str]:
    """The torch.func transforms (grad, vmap, ...) that are active, from the outermost inwards."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return [level.key().name for level in stack]


# What torch.compiler.assume_constant_result does, without its import of the whole compiler: the
# transforms are those at the time of tracing, which the compiler guards itself.
transforms._dynamo_marked_constant = True


def invert(order: Tensor) -> Tensor:
    """The inverse of permutations along the second last axis."""
    iota = torch.arange(order.shape[-2], device=order.device).unsqueeze(-1)
    return torch.zeros_like(order).scatter(-2, order, iota.expand_as(order))
