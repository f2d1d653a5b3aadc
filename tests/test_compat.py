"""Weights of the released code, renamed and turned, give what they gave there."""

import pytest
import torch
from torch.nn.functional import batch_norm, conv1d, linear

import fspool
from fspool import models
from fspool.compat import from_reference

from . import reference

HIDDEN, LATENT, KNOTS = 6, 3, 5


def loaded(**shapes):
    """Weights by name, dots for double underscores, random and positive."""
    return {name.replace("__", "."): torch.rand(shape) + 0.5 for name, shape in shapes.items()}


def layers(name, *shapes):
    """Those of an nn.Sequential with a ReLU between every two layers."""
    named = {}
    for i, shape in enumerate(shapes):
        named |= {f"{name}__{2 * i}__weight": shape, f"{name}__{2 * i}__bias": shape[:1]}
    return named


def encoder():
    return {
        **layers("encoder__conv", (HIDDEN, 2, 1), (HIDDEN, HIDDEN, 1)),
        **layers("encoder__lin", (HIDDEN, HIDDEN), (LATENT, HIDDEN)),
        "encoder__pool__weight": (HIDDEN, KNOTS),
    }


def decoder():
    return {
        **layers("decoder__lin", (HIDDEN, LATENT), (HIDDEN, HIDDEN)),
        "decoder__unpool__weight": (HIDDEN, KNOTS),
        **layers("decoder__conv", (HIDDEN, HIDDEN, 1), (2, HIDDEN, 1)),
    }


def perceptron(state, name, x, layer=linear):
    x = layer(x, state[f"{name}.0.weight"], state[f"{name}.0.bias"]).relu()
    return layer(x, state[f"{name}.2.weight"], state[f"{name}.2.bias"])


def test_the_weight_of_one_layer_is_taken_as_it_is():
    given = {"weight": torch.randn(4, 21)}
    state = from_reference(given)
    for kind in (fspool.FSPool, fspool.FSUnpool):
        layer = kind(4, 21)
        layer.load_state_dict(state)
        assert torch.equal(layer.weight, given["weight"])


def test_what_sorted_ascending_is_turned():
    weight, x = torch.randn(3, 4), torch.randn(1, 7, 3)
    ratios = torch.arange(7) / 6
    curve = torch.tensor([[reference.weight_function(w, float(r)) for r in ratios] for w in weight])
    expected = (x.sort(1).values[0] * curve.T).sum(0)

    pool = fspool.FSPool(3, 4)
    pool.load_state_dict(from_reference({"weight": weight}, ascending=True))
    torch.testing.assert_close(pool(x)[0], expected)
    same = from_reference({"pool.weight": weight})["pool.weight"]  # a layer of the graph code
    assert torch.equal(same, pool.weight)
    assert torch.equal(
        from_reference({"pool.weight": weight}, ascending=False)["pool.weight"], weight
    )


def test_the_state_of_a_graph_pool_fits_the_aggregation():
    pyg = pytest.importorskip("fspool.integrations.pyg")
    aggregation = pyg.FSPoolAggregation(3, 4)
    aggregation.load_state_dict(from_reference({"pool.weight": torch.randn(3, 4)}))


def test_an_autoencoder_puts_out_what_it_did():
    torch.manual_seed(0)
    state = loaded(**encoder(), **decoder())
    model = models.set_autoencoder(2, HIDDEN, LATENT, knots=KNOTS)
    model.load_state_dict(from_reference(state))

    x = torch.randn(1, 2, 5)  # channels first, as there
    features = perceptron(state, "encoder.conv", x, conv1d)[0].T.double()
    pooled = reference.pool_set(features, state["encoder.pool.weight"].double(), 1.0).float()
    z = perceptron(state, "decoder.lin", perceptron(state, "encoder.lin", pooled))
    spread = reference.unpool_set(
        z.double(), state["decoder.unpool.weight"].double(), features, 1.0
    )
    expected = perceptron(state, "decoder.conv", spread.float().T[None], conv1d)
    torch.testing.assert_close(model(x.mT), expected.mT)


def test_a_classifier_puts_out_what_it_did():
    torch.manual_seed(1)
    state = loaded(**encoder(), **decoder(), **layers("classifier", (LATENT, LATENT), (10, LATENT)))
    model = models.SetClassifier(
        models.SetEncoder(2, HIDDEN, LATENT, knots=KNOTS, temperature=None), LATENT, LATENT, 10
    )
    model.load_state_dict(from_reference(state))  # without the decoder, which was not used

    x = torch.randn(1, 2, 5)
    features = perceptron(state, "encoder.conv", x, conv1d)[0].T.double()
    pooled = reference.pool_set(features, state["encoder.pool.weight"].double()).float()
    scores = perceptron(state, "classifier", perceptron(state, "encoder.lin", pooled))
    torch.testing.assert_close(model(x.mT)[0], scores)


def graph_network(columns=2, width=4, blocks=2, classes=3):
    norm = lambda name, n: {  # noqa: E731
        f"{name}__{part}": (n,) for part in ("weight", "bias", "running_mean", "running_var")
    }
    shapes = {}
    for i in range(blocks):
        inside = f"convs__{i}__conv__nn"
        for place, inputs in ((0, width if i else columns), (3, width)):
            shapes |= {
                f"{inside}__{place}__weight": (width, inputs),
                f"{inside}__{place}__bias": (width,),
            }
            shapes |= norm(f"{inside}__{place + 2}", width)
        shapes[f"pools__{i}__pool__weight"] = (width, KNOTS)
    shapes |= norm("classifier__0", blocks * width)
    shapes |= {"classifier__1__weight": (width, blocks * width), "classifier__1__bias": (width,)}
    shapes |= {"classifier__4__weight": (classes, width), "classifier__4__bias": (classes,)}
    state = loaded(**shapes)
    state |= {f"convs.{i}.conv.eps": torch.tensor([float(width)]) for i in range(blocks)}
    return state | {"classifier.0.num_batches_tracked": torch.tensor(7)}


def test_a_graph_network_puts_out_what_it_did():
    torch.manual_seed(2)
    state = graph_network()
    model = models.GIN(2, 4, 3, knots=KNOTS, blocks=2, wide_eps=True).eval()
    model.load_state_dict(from_reference(state))

    def normal(name, x):
        about = ("running_mean", "running_var", "weight", "bias")
        return batch_norm(x, *(state[f"{name}.{part}"] for part in about))

    def layer(name, x):
        return linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    x = nodes = torch.randn(3, 2)  # one graph of three nodes in a ring
    vectors = []
    for i, width in enumerate((2, 4)):
        inside = f"convs.{i}.conv.nn"
        x = (1 + width) * x + x.roll(1, 0) + x.roll(-1, 0)
        x = normal(f"{inside}.2", layer(f"{inside}.0", x).relu())
        x = normal(f"{inside}.5", layer(f"{inside}.3", x).relu())
        rising = state[f"pools.{i}.pool.weight"].flip(1).double()
        vectors.append(reference.pool_set(x.double(), rising).float())
    hidden = layer("classifier.1", normal("classifier.0", torch.cat(vectors)[None])).relu()

    starts, sources = torch.tensor([[0, 2, 4, 6]]), torch.tensor([[1, 2, 0, 2, 0, 1]])
    scores = model(nodes[None], starts, sources, torch.tensor([[0, 3]]))
    torch.testing.assert_close(scores[0], layer("classifier.4", hidden))


@pytest.mark.parametrize(
    "given, sentence",
    [
        ({"weight": torch.ones(3, 4), "bias": torch.ones(3)}, "has the key 'bias'; expected those"),
        ({"encoder.pool.weight": torch.ones(3, 4), "encoder.rnn": 0}, "has the key 'encoder.rnn'"),
        (
            {"encoder.pool.weight": torch.ones(3, 4), "decoder.model.0.weight": torch.ones(2, 2)},
            "has the key 'decoder.model.0.weight'",
        ),
        ({"weight": torch.ones(3)}, r"\['weight'\] has shape \(3,\); expected \(channels, 2 or"),
        ({"weight": torch.ones(3, 1)}, r"has shape \(3, 1\); expected"),
        (
            {"encoder.conv.0.weight": torch.ones(3, 2, 5)},
            r"\['encoder.conv.0.weight'\] has shape \(3, 2, 5\); expected \(out, in, 1\)",
        ),
        ({"weights": {"weight": torch.ones(3, 4)}, "args": {}}, "pass its entry 'weights'"),
        ({}, "is a dict without tensors"),
        ({"module.weight": torch.ones(3, 4)}, "of nn.DataParallel; remove 'module.'"),
        ({"a.num_batches_tracked": torch.ones(())}, "no weights, only 'a.num_batches_tracked'"),
        (torch.ones(3, 4), "is a Tensor without tensors; expected a state dict"),
    ],
)
def test_what_is_foreign_is_named(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_reference(given)


@pytest.mark.parametrize("value", [torch.ones(3, 4).long(), [[1.0, 2.0]]])
def test_weights_are_floating_tensors(value):
    with pytest.raises(TypeError, match=r"state_dict\['weight'\]"):
        from_reference({"weight": value})


def test_ascending_is_a_choice():
    with pytest.raises(ValueError, match="ascending is 'no'; expected True, False or None"):
        from_reference({"weight": torch.ones(3, 4)}, ascending="no")


def test_the_users_dict_is_left_alone():
    weight = torch.randn(2, 3, requires_grad=True)
    before = weight.detach().clone()
    state = from_reference({"weight": weight}, ascending=True)
    assert torch.equal(weight, before) and not state["weight"].requires_grad
