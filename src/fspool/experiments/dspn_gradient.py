"""How far the gradient that iDSPN is trained with is from the exact one."""

from __future__ import annotations

import torch
from torch import Tensor

from ..lab.replicas import select
from ..losses import assignment
from ..models import ImplicitDSPN, SetPredictor
from .dspn_data import Batch

DAMPING = 1e-3  # of the exact gradient


def agreement(model: SetPredictor, batch: Batch) -> list[float]:
    """The cosine between the two, run by run.

    Of the loss of some pictures, to the set encoder and the vectors together.
    """
    cosines = []
    for run in range(len(batch.images)):
        one = select(model, slice(run, run + 1))
        own = Batch(*(tensor[run : run + 1] for tensor in batch))
        z = one.images(own.images)
        made = [_flat_gradient(one.sets, z, own, exact) for exact in (False, True)]
        cosines.append(float(torch.cosine_similarity(*made, 0)))
    return cosines


def _flat_gradient(sets: ImplicitDSPN, z: Tensor, batch: Batch, exact: bool) -> Tensor:
    sets.exact, sets.damping = exact, DAMPING
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        found = sets(z, batch.noise)
        loss = assignment(found, batch.sets, cost="huber").mean()
        inputs = [z, *sets.encoder.parameters()]
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    return torch.cat([g.flatten().double() for g in gradients if g is not None])
