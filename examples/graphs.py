"""Tell random graphs apart: GIN layers, and FSPool to read the graph out of its nodes.

Both kinds of graph have about as many edges, but one spreads them evenly over the nodes
(Erdős-Rényi), the other gives most of them to a few (Barabási-Albert). The nodes have no features.

    pip install '.[pyg]'
    python examples/graphs.py
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MLP, GINConv
from torch_geometric.utils import barabasi_albert_graph, erdos_renyi_graph

from fspool.integrations.pyg import FSPoolAggregation

EDGES, DEGREE = 3, 4.7  # three edges for each new node come to a mean degree of 4.7


def random_graph(label: int) -> Data:
    nodes = int(torch.randint(20, 40, ()))
    if label:
        edges = barabasi_albert_graph(nodes, EDGES)
    else:
        edges = erdos_renyi_graph(nodes, DEGREE / (nodes - 1))
    return Data(x=torch.ones(nodes, 1), edge_index=edges, y=torch.tensor([label]))


class GIN(nn.Module):
    def __init__(self, hidden: int = 32, layers: int = 3, classes: int = 2) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            GINConv(MLP([1 if layer == 0 else hidden, hidden, hidden])) for layer in range(layers)
        )
        self.readout = FSPoolAggregation(hidden, knots=5)
        self.classify = MLP([hidden, hidden, classes], norm=None)

    def forward(self, data: Data) -> torch.Tensor:
        x = data.x
        for conv in self.convs:
            x = conv(x, data.edge_index).relu()
        # With ptr nothing has to be sorted by graph, and nothing waits for the device.
        return self.classify(self.readout(x, ptr=data.ptr))


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


def main() -> float:
    seed_everything(0)
    graphs = [random_graph(label=i % 2) for i in range(400)]
    train_loader = DataLoader(graphs[:300], batch_size=50, shuffle=True)
    test_loader = DataLoader(graphs[300:], batch_size=100)
    model = GIN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, 11):
        loss = train(model, train_loader, optimizer)
        print(
            f"epoch {epoch:2}  loss {loss:.3f}  train {accuracy(model, train_loader):.1%}"
            f"  test {accuracy(model, test_loader):.1%}"
        )
    return accuracy(model, test_loader)


if __name__ == "__main__":
    main()
