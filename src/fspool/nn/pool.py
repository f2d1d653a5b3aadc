"""FSPool as a module."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional import Order, fspool
from ..functional.inputs import read_temperature
from ..layouts import is_traced
from .knots import Knots


class FSPool(Knots):
    """Featurewise sort pooling, from `FSPool: Learning Set Representations with Featurewise Sort
    Pooling <https://arxiv.org/abs/1906.02795>`_ (ICLR 2020).

    .. math:: y_i = \\sum_{j=1}^{n} f\\!\\left(\\frac{j - 1}{n - 1}, \\bar w_i\\right) S_{ij}

    where S is the set sorted in descending order, each feature on its own, and f is the
    piecewise-linear function through the knots :math:`\\bar w_i`.

    Args:
        dim: Number of features D.
        knots: Points k of the weight function, at least 2.
        init: ``"normal"`` (standard normal) or ``"ones"`` (starts as sum pooling).
        temperature: None for the ordinary sort, or a positive number for the relaxed sort, which an
            auto-encoder needs to learn through its permutations.
        hard_eval: Sort hard in ``eval()`` mode, for weights trained under a relaxed sort.

    Shapes:
        x ``(B, N, D)``, alone or with ``mask (B, N)`` or ``sizes (B,)``; x ``(T, D)`` with
        ``offsets (B + 1,)``; or a jagged nested x ``(B, j, D)`` -> ``(B, D)``.

    Example:
        >>> pool = fspool.FSPool(dim=64, knots=20)
        >>> pool(torch.randn(8, 10, 64)).shape
        torch.Size([8, 64])
    """

    def __init__(
        self,
        dim: int,
        knots: int = 20,
        *,
        init: str = "normal",
        temperature: float | Tensor | None = None,
        hard_eval: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, knots, init, device, dtype)
        self.hard_eval = hard_eval
        if isinstance(temperature, Tensor) and temperature.is_meta:
            raise ValueError(
                "temperature is on meta, where it has no value; pass a number, or a tensor on cpu."
            )
        value = read_temperature(temperature, self.weight)
        # A tensor, so that a schedule can write it in place: no recompilation, CUDA graphs work.
        # Not in the state dict, so that hard and relaxed pools can load each other's weights.
        self.register_buffer("temperature", value, persistent=False)
        self.first_temperature = _number(value, temperature)

    def reset_parameters(self) -> None:
        """Initial weights, and the temperature that the pool was made with."""
        super().reset_parameters()
        if getattr(self, "first_temperature", None) is not None:
            self.temperature.fill_(self.first_temperature)

    def _apply(self, fn, recurse=True):
        """``to_empty`` leaves the temperature any number, and ``half`` one that may be 0."""
        before = self.temperature
        super()._apply(fn, recurse)
        if before is None or self.temperature.is_meta:
            return self
        if before.is_meta:
            self.temperature.fill_(self.first_temperature)
        elif self.temperature.dtype in (torch.float16, torch.bfloat16):
            self.temperature = before.to(self.temperature.device)
        else:
            self.temperature.detach().copy_(before)
        return self

    def _load_from_state_dict(self, *arguments) -> None:
        """And ``assign=True`` leaves it there, as it is in no state dict."""
        super()._load_from_state_dict(*arguments)
        value = self.temperature
        if value is not None and value.is_meta and not self.weight.is_meta:
            self.temperature = torch.full_like(
                value, self.first_temperature, device=self.weight.device
            )

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        sizes: Tensor | None = None,
        offsets: Tensor | None = None,
        longest: int | None = None,
        return_order: bool = False,
    ) -> Tensor | tuple[Tensor, Order]:
        """Pool every set; ``return_order=True`` also gives what :class:`FSUnpool` needs."""
        hard = self.hard_eval and not self.training
        return fspool(
            x,
            self.weight,
            mask=mask,
            sizes=sizes,
            offsets=offsets,
            longest=longest,
            temperature=None if hard else self.temperature,
            return_order=return_order,
        )

    def extra_repr(self) -> str:
        if self.temperature is None:
            return super().extra_repr()
        known = _number(self.temperature, self.first_temperature)
        return f"{super().extra_repr()}, temperature={known:g}"


def _number(temperature: Tensor | None, otherwise: float | Tensor | None):
    """What a temperature is, where it has a value."""
    blind = temperature is None or temperature.is_meta or is_traced(temperature)
    return otherwise if blind else float(temperature)
