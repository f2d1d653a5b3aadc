"""How a batch of sets is described, checked and converted.

Three layouts, all with features last:

========  ==============================  =========================================
layout    x                               which rows are elements
========  ==============================  =========================================
padded    ``(B, N, D)``                   all, or ``mask (B, N)``, or ``sizes (B,)``
packed    ``(T, D)``                      set b is rows ``offsets[b]:offsets[b + 1]``
jagged    nested ``(B, j, D)``            carried by the nested tensor itself
========  ==============================  =========================================

Padded and packed tensors may carry one more leading axis G, the replica axis: G independent runs.
Inside the package every batch has it (``G = 1`` where the user gave none). Mask, sizes and offsets
may carry it too; then every replica has its own. Offsets ``(G, B + 1)`` may end before T, since not
all replicas have as many elements: the rows after them belong to no set, whatever they hold.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from .checks import (
    check_bool,
    check_count,
    check_device,
    check_floating,
    check_integer,
    check_tensor,
)
from .layouts import Packed, Padded, Sets, is_traced

__all__ = [
    "check_values",
    "from_nested",
    "mask_to_sizes",
    "offsets_to_sizes",
    "sizes_to_mask",
    "sizes_to_offsets",
    "to_nested",
    "to_packed",
    "to_padded",
]

_check_on_every_device = os.environ.get("FSPOOL_CHECK", "0") not in ("", "0")


def check_values(enabled: bool = True) -> None:
    """Check the values of sizes, offsets and temperatures on CUDA too, at the price of a sync.

    They are always checked on the CPU, where it is free. ``FSPOOL_CHECK=1`` does the same.
    """
    global _check_on_every_device
    _check_on_every_device = bool(enabled)


# --------------------------------------------------------------------------------------------------
# Conversions


def sizes_to_mask(sizes: Tensor, length: int) -> Tensor:
    """``sizes (..., B)`` to a mask ``(..., B, length)``, elements first."""
    check_integer("sizes", sizes)
    length = check_count("length", length, 0, "the padded length")
    check_size_values(sizes, length)
    return torch.arange(length, device=sizes.device) < sizes.unsqueeze(-1)


def mask_to_sizes(mask: Tensor) -> Tensor:
    """``mask (..., B, N)`` to the number of elements of each set, ``(..., B)``."""
    check_bool("mask", mask)
    return mask.sum(-1)


def sizes_to_offsets(sizes: Tensor) -> Tensor:
    """``sizes (B,)`` to ``offsets (B + 1,)``: 0, then the running total."""
    check_integer("sizes", sizes)
    if sizes.ndim != 1:
        raise ValueError(f"sizes has shape {tuple(sizes.shape)}; expected (B,), one for each set.")
    check_size_values(sizes, None)
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))


def offsets_to_sizes(offsets: Tensor) -> Tensor:
    """``offsets (B + 1,)`` to ``sizes (B,)``."""
    check_offsets(offsets, None)
    return offsets.diff()


def to_packed(
    x: Tensor, *, mask: Tensor | None = None, sizes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Padded ``(B, N, D)`` to packed ``(T, D)`` and ``offsets (B + 1,)``.

    On CUDA this waits for the device once when there is a mask or sizes: T depends on them.
    """
    if isinstance(x, Tensor) and x.is_nested:
        raise ValueError("x is nested; expected padded (B, N, D), so use from_nested(x) instead.")
    sets, x = read(x, mask=mask, sizes=sizes, replicas=False)
    if sets.full:
        lengths = sets.sizes[0].contiguous()
        return x.flatten(0, 2), sizes_to_offsets(lengths)
    return x[0][sets.inside[0, :, :, 0]], sizes_to_offsets(sets.sizes[0])


def to_padded(x: Tensor, offsets: Tensor, *, length: int | None = None) -> tuple[Tensor, Tensor]:
    """Packed ``(T, D)`` to padded ``(B, length, D)``, zeros after the elements, and ``sizes (B,)``.

    Without ``length`` the largest set decides, which on CUDA waits for the device once.
    """
    sets, x = read(x, offsets=offsets, replicas=False)
    if length is not None:
        length = check_count("length", length, 0, "the padded length")
        if readable(offsets) and bool((sets.sizes > length).any()):
            largest = int(sets.sizes.max())
            raise ValueError(
                f"length={length} is shorter than the largest set ({largest} elements); "
                f"pass length={largest} or more."
            )
    return sets.pad(x, length)[0], sets.sizes[0]


def to_nested(x: Tensor, offsets: Tensor) -> Tensor:
    """Packed ``(T, D)`` to a jagged nested tensor ``(B, j, D)``; shares memory with x."""
    read(x, offsets=offsets, replicas=False)
    return torch.nested.nested_tensor_from_jagged(x, offsets)


def from_nested(x: Tensor) -> tuple[Tensor, Tensor]:
    """Jagged nested tensor ``(B, j, D)`` to packed ``(T, D)`` and ``offsets (B + 1,)``."""
    check_tensor("x", x)
    if not x.is_nested:
        raise ValueError(f"x is dense, of shape {tuple(x.shape)}; expected a nested tensor.")
    sets, x = read(x, replicas=False)
    return x[0], sets.offsets


# --------------------------------------------------------------------------------------------------
# Reading: the user's arguments to a checked description


def read(
    x: Tensor,
    *,
    mask: Tensor | None = None,
    sizes: Tensor | None = None,
    offsets: Tensor | None = None,
    replicas: bool | None = None,
) -> tuple[Sets, Tensor]:
    """Check the arguments that every public function shares; return the layout and the inner x.

    ``replicas`` says whether x carries the replica axis; None lets the number of axes decide.
    """
    given = [
        name
        for name, value in (("mask", mask), ("sizes", sizes), ("offsets", offsets))
        if value is not None
    ]
    if len(given) > 1:
        raise ValueError(f"got {' and '.join(given)} together; pass at most one of them.")
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; expected a torch.Tensor of features.")
    check_floating("x", x)
    if x.layout not in (torch.strided, torch.jagged):
        raise ValueError(f"x has layout {x.layout}; expected a dense tensor, so pass x.to_dense().")
    if x.is_nested:
        if given:
            raise ValueError(f"x is nested and carries its sizes; leave out {given[0]}.")
        return _read_nested(x)
    if offsets is not None:
        return _read_packed(x, offsets, replicas)
    return _read_padded(x, mask, sizes, replicas)


def _read_nested(x: Tensor) -> tuple[Packed, Tensor]:
    jagged = x.layout == torch.jagged
    if not jagged or x.ndim != 3 or x._ragged_idx != 1 or x.lengths() is not None:
        holes = jagged and x.lengths() is not None
        came = "with holes" if holes else f"of layout {x.layout} with {x.ndim} axes"
        raise ValueError(
            f"x is a nested tensor {came}; expected a contiguous jagged one of shape (B, j, D), "
            "as torch.nested.nested_tensor(..., layout=torch.jagged) makes."
        )
    values, offsets = x.values(), x.offsets()
    if readable(offsets):
        _check_offset_values(offsets.long(), values, "offsets of x")
    shape = (1, offsets.shape[0] - 1, values.shape[0])
    return Packed(shape, values.device, offsets.long(), ragged=offsets), values.unsqueeze(0)


def _read_packed(x: Tensor, offsets: Tensor, replicas: bool | None) -> tuple[Packed, Tensor]:
    _check_axes(x, "packed", 2, "(T, D)", replicas)
    check_offsets(offsets, x, own=x.ndim == 3)
    replicas, x = x.ndim == 3, (x if x.ndim == 3 else x.unsqueeze(0))
    groups, rows, _ = x.shape
    shape = (groups, offsets.shape[-1] - 1, rows)
    return Packed(shape, x.device, offsets.long(), replicas), x


def check_offsets(
    offsets: Tensor, x: Tensor | None, name: str = "offsets", own: bool = False
) -> None:
    """For packed sets, ``name`` being what the user calls them; ``own`` if replicas may differ."""
    check_integer(name, offsets)
    if x is not None:
        check_device(name, offsets, "x", x.device)
    may, own = own, own and offsets.ndim == 2 and offsets.shape[0] == x.shape[0]
    if not (own or offsets.ndim == 1) or offsets.shape[-1] < 1:
        raise ValueError(
            f"{name} has shape {tuple(offsets.shape)}; expected (B + 1,)"
            f"{f' or ({x.shape[0]}, B + 1)' if may else ''}: "
            "where each set starts, and the end of the last."
        )
    if not readable(offsets):
        return
    if not own:
        return _check_offset_values(offsets.long(), x, name)
    offsets = offsets.long()
    wrong = (offsets[:, 0] != 0) | (offsets.diff() < 0).any(1) | (offsets[:, -1] > x.shape[1])
    for g in wrong.nonzero().flatten()[:1].tolist():
        _check_offset_values(offsets[g], x, f"{name}[{g}]", "at most ")


def check_longest(longest: int, offsets: Tensor, name: str = "longest") -> int:
    """How many elements a packed set has at most, ``name`` being what the user calls it."""
    if torch.compiler.is_compiling():  # it may change from call to call, and has no value here
        return int(longest)
    longest = check_count(name, longest, 0, "the elements of the largest set at most")
    if not readable(offsets) or not offsets.diff().numel():
        return longest
    largest = int(offsets.diff().max())
    if largest > longest:
        raise ValueError(
            f"{name} is {longest}, and a set has {largest} elements; expected at least that."
        )
    return longest


def _check_offset_values(offsets: Tensor, x: Tensor | None, name: str, most: str = "") -> None:
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0:
        raise ValueError(f"{name} starts at {first}; expected 0, the first row of x.")
    drops = (offsets.diff() < 0).nonzero()
    if len(drops):
        i = int(drops[0])
        raise ValueError(
            f"{name} decreases from {int(offsets[i])} to {int(offsets[i + 1])} at position "
            f"{i + 1}; expected values that never decrease."
        )
    if x is not None and last != x.shape[-2]:
        raise ValueError(
            f"{name} ends at {last}; expected {most}{x.shape[-2]}, the number of rows of x."
        )


def _read_padded(
    x: Tensor, mask: Tensor | None, sizes: Tensor | None, replicas: bool | None
) -> tuple[Padded, Tensor]:
    _check_axes(x, "padded", 3, "(B, N, D)", replicas)
    replicas, x = x.ndim == 4, (x if x.ndim == 4 else x.unsqueeze(0))
    shape = tuple(x.shape[:3])
    if mask is not None:
        mask = _check_mask(mask, shape, x.device, replicas)
    if sizes is not None:
        sizes = _check_sizes(sizes, shape, x.device, replicas)
    return Padded(shape, x.device, mask, sizes, replicas), x


def _check_axes(x: Tensor, layout: str, rank: int, form: str, replicas: bool | None) -> None:
    allowed = {None: (rank, rank + 1), False: (rank,), True: (rank + 1,)}[replicas]
    if x.ndim in allowed:
        return
    hint = ""
    if layout == "padded" and x.ndim == 2:
        hint = "; pass x[None] for one set, or offsets= for packed sets"
    axes = " (or one more leading axis for replicas)" if replicas is None else ""
    raise ValueError(
        f"x has shape {tuple(x.shape)}; expected {form} for {layout} sets{axes}{hint}."
    )


def _check_mask(mask: Tensor, shape: tuple, device: torch.device, replicas: bool) -> Tensor:
    check_bool("mask", mask)
    check_device("mask", mask, "x", device)
    return _check_shape("mask", mask, shape, replicas)


def _check_sizes(sizes: Tensor, shape: tuple, device: torch.device, replicas: bool) -> Tensor:
    check_integer("sizes", sizes)
    check_device("sizes", sizes, "x", device)
    fitted = _check_shape("sizes", sizes, shape[:2], replicas)
    check_size_values(sizes, shape[2])
    return fitted.long()


def check_size_values(sizes: Tensor, length: int | None) -> None:
    if not readable(sizes) or not sizes.numel():
        return
    low, high = int(sizes.min()), int(sizes.max())
    if low < 0 or (length is not None and high > length):
        limit = "at least 0" if length is None else f"0 to {length}, the padded length"
        raise ValueError(f"sizes has values from {low} to {high}; expected {limit}.")


def _check_shape(name: str, value: Tensor, shape: tuple, replicas: bool) -> Tensor:
    """(B, ...) is shared by all replicas, (G, B, ...) is one for each."""
    if tuple(value.shape) == tuple(shape[1:]):
        return value.expand(shape)
    if replicas and tuple(value.shape) == tuple(shape):
        return value
    expected = f"{tuple(shape[1:])}" + (f" or {tuple(shape)}" if replicas else "")
    raise ValueError(f"{name} has shape {tuple(value.shape)}; expected {expected} to fit x.")


def readable(value: Tensor) -> bool:
    """May the values be looked at here? Free on the CPU; a sync on CUDA; never while tracing."""
    if is_traced(value):
        return False
    if value.device.type == "cpu":
        return True
    if value.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    return _check_on_every_device
