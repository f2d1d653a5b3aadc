"""Which class is a molecule of? PyG's own example of GIN on a TU data set, read out by FSPool.

    pip install '.[pyg]'
    python examples/graph_classification.py                 # PyG downloads MUTAG to data/TU
    python examples/graph_classification.py --root DIR      # where DIR/MUTAG/raw is there already

In the end the readout is compared with the dense module: the same nodes, padded to the largest
graph of a batch.
"""

import argparse
from zipfile import BadZipFile

import torch
import torch.nn.functional as F
from aiohttp import ClientError
from torch import Tensor, nn
from torch_geometric import seed_everything
from torch_geometric.data import Batch
from torch_geometric.datasets import TUDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MLP, GINConv
from torch_geometric.utils import to_dense_batch

from fspool import FSPool
from fspool.integrations.pyg import FSPoolAggregation


def load(root: str, name: str) -> TUDataset:
    """From the files that are there, or from the internet; if there is neither, in a sentence."""
    try:
        return TUDataset(root, name)
    except (OSError, ClientError, BadZipFile) as error:
        raise SystemExit(
            f"{name} could not be loaded ({str(error) or type(error).__name__}); connect to the "
            f"internet, or unzip {name}.zip into DIR/{name}/raw, so that {name}_A.txt lies there, "
            "and pass --root DIR."
        ) from None


class GIN(nn.Module):
    def __init__(self, inputs: int, hidden: int, classes: int, layers: int = 5) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            GINConv(MLP([hidden if layer else inputs, hidden, hidden])) for layer in range(layers)
        )
        self.readout = FSPoolAggregation(hidden, knots=5, init="ones")
        self.classify = MLP([hidden, hidden, classes], norm=None, dropout=0.5)

    def nodes(self, data: Batch) -> Tensor:
        x = data.x
        for conv in self.convs:
            x = conv(x, data.edge_index).relu()
        return x

    def forward(self, data: Batch) -> Tensor:
        return self.classify(self.readout(self.nodes(data), ptr=data.ptr))


def train(model: GIN, loader: DataLoader, optimizer: torch.optim.Optimizer) -> float:
    model.train()
    total = 0.0
    for data in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), data.y)
        loss.backward()
        optimizer.step()
        total += float(loss.detach()) * data.num_graphs
    return total / len(loader.dataset)


@torch.no_grad()
def accuracy(model: GIN, loader: DataLoader) -> float:
    model.eval()
    right = sum(int((model(data).argmax(-1) == data.y).sum()) for data in loader)
    return right / len(loader.dataset)


def disagreement(model: GIN, data: Batch) -> float:
    """Between the readout and FSPool of padded graphs: of values and gradients, relative."""
    x = model.eval().nodes(data).detach().requires_grad_()
    dense: FSPool = model.readout.pool
    padded, mask = to_dense_batch(x, data.batch)
    results = []
    for y in (model.readout(x, data.batch), dense(padded, mask=mask)):
        gradients = torch.autograd.grad(y.square().sum(), (x, dense.weight))
        results.append([y.detach(), *gradients])
    pairs = zip(*results, strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """The accuracy on graphs that it was not trained on, and how far the two forms differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="data/TU")
    parser.add_argument("--dataset", default="MUTAG")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args(arguments)
    seed_everything(0)
    dataset = load(options.root, options.dataset).shuffle()
    tenth = len(dataset) // 10
    train_loader = DataLoader(dataset[tenth:], batch_size=128, shuffle=True)
    test_loader = DataLoader(dataset[:tenth], batch_size=128)
    model = GIN(dataset.num_features, options.hidden, dataset.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, options.epochs + 1):
        loss = train(model, train_loader, optimizer)
        if epoch % 10 == 0 or epoch == options.epochs:
            print(
                f"epoch {epoch:3}  loss {loss:.3f}  train {accuracy(model, train_loader):.1%}"
                f"  test {accuracy(model, test_loader):.1%}"
            )
    off = disagreement(model, next(iter(train_loader)))
    print(f"packed and padded readout differ by {off:.1e} at most")
    return accuracy(model, test_loader), off


if __name__ == "__main__":
    main()
