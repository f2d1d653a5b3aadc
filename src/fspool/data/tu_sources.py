"""Where the graph sets of the paper (section 6.4) come from, and what is in them."""

from __future__ import annotations

from typing import NamedTuple

from .download import Wanted

TU = ("https://www.chrsmrrs.com/graphkerneldatasets/",)
GIN = (
    "https://raw.githubusercontent.com/weihua916/powerful-gnns/master/",
    "https://github.com/weihua916/powerful-gnns/raw/master/",
)


class Counts(NamedTuple):
    """How much there is of everything."""

    graphs: int
    nodes: int
    edges: int  # pairs of nodes
    classes: int
    columns: int  # of the features

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in self._asdict().items())


class Source(NamedTuple):
    """A set: its archive as it is downloaded, the features of its nodes, and what is in it.

    ``content`` is what :func:`.tu.fingerprint` returns. It takes the place of a checksum for
    archives that somebody else packed, in which graphs and nodes may come in another order, and
    classes under other names.
    """

    archive: Wanted
    mirrors: tuple[str, ...]
    features: str  # one-hot "label" or "degree", or a "constant" 1
    counts: Counts
    content: str

    @property
    def labelled(self) -> bool:
        return self.features == "label"


# The checksums of TU's archives are those that GraphDatasets.jl publishes. For GIN's nobody has
# published one, so what is in it has to do.
SOURCES = {
    "MUTAG": Source(
        Wanted(
            "MUTAG.zip", None, "c419bdc853c367d2d83da4973c45100954ae15e10f5ae2cddde6ca431f8207f6"
        ),
        TU,
        "label",
        Counts(188, 3371, 3721, 2, 7),
        "a906ba8618b11e2d13b2ad821762353ff0b1fd28617023070b203e7511a40cea",
    ),
    "PROTEINS": Source(
        Wanted(
            "PROTEINS.zip", None, "2da8de15284b88edabca2888ce5444d62f364ed41159260977088c4e53d4d848"
        ),
        TU,
        "label",
        Counts(1113, 43471, 81044, 2, 3),
        "e94bb81da7ff9b021e4ed1fb149efa258da85a897ae2fa3db7abed87d1d40991",
    ),
    "PTC": Source(
        Wanted("dataset.zip", None, None),
        GIN,
        "label",
        Counts(344, 8792, 8931, 2, 19),
        "a6ac08b0e98e45db39e87ea0c0d1799a1593dfc83d944855b93cf89e3b795e6e",
    ),
    "PTC_MR": Source(
        Wanted(
            "PTC_MR.zip", None, "5699a6d9f1bc5b3d71495f09ef50de53fa3e6bb24ead1150da678500229f5237"
        ),
        TU,
        "label",
        Counts(344, 4915, 5054, 2, 18),
        "15cefa8acbda5890e6fdfed131089d3ff903518c42fa20a862b9cc69f245d130",
    ),
    "NCI1": Source(
        Wanted(
            "NCI1.zip", None, "10e1458f3bd9224f14e6d7627e74dcfd13e48d376d73935e7bd2900590ef1d82"
        ),
        TU,
        "label",
        Counts(4110, 122747, 132753, 2, 37),
        "a9da0bff4f52ced05fbf554ef7954413fdda892ee72b038f8149bdff53a0fba2",
    ),
    "IMDB-BINARY": Source(
        Wanted(
            "IMDB-BINARY.zip",
            None,
            "b291ec8b26d85c70faa2ba0a2433e1f407ed2ef5d0fc072d36b9a95e49a1bb27",
        ),
        TU,
        "degree",
        Counts(1000, 19773, 96531, 2, 136),
        "42c2c21978f382aabf95989c7f144d96272956149f61f267f4df23a2b4339dae",
    ),
    "IMDB-MULTI": Source(
        Wanted(
            "IMDB-MULTI.zip",
            None,
            "a4a302149ebf4c76fa1f0fb108baff89fcbf9d35de306b18f27a8419b9a1a690",
        ),
        TU,
        "degree",
        Counts(1500, 19502, 98903, 3, 89),
        "630554a28c549e5398ffb5052d547ae5bfd7ef39ce8af7eb73b8f188024ee11b",
    ),
    "REDDIT-BINARY": Source(
        Wanted(
            "REDDIT-BINARY.zip",
            None,
            "982dc64ddade42a6365ba9c93f5080d0b9d315df0df492b57fd9fbb7e40dbe16",
        ),
        TU,
        "constant",
        Counts(2000, 859254, 995508, 2, 1),
        "16bbebcd334af6e08f54011e8663ce17e6b947069f921bae45d3cd7131ceff3f",
    ),
    "REDDIT-MULTI-5K": Source(
        Wanted(
            "REDDIT-MULTI-5K.zip",
            None,
            "68587783c33d54dd6107a1fc101594fd2b9d1af4e99cafe733636f383ae0c8ee",
        ),
        TU,
        "constant",
        Counts(4999, 2542071, 2973778, 5, 1),
        "a0455d94f0a76696f7ddf244e87966218602e303f894ed2de826ba21d93094db",
    ),
    "COLLAB": Source(
        Wanted(
            "COLLAB.zip", None, "cb5b772bc4f3a4690d0601378a3fc993b092aeafd63e2b0f2330137dda1cdcc6"
        ),
        TU,
        "degree",
        Counts(5000, 372474, 12286079, 3, 492),
        "0e81695cb6504853653f11759775cf7e8bf2a8b063151d4eee7162176793fe11",
    ),
}
