"""How software shares the GPUs of a node, as its labels and the offer of its device plugin prove it together.

Feature discovery states the strategy and the number of replicas (GKE: of clients), and ends the product with `-SHARED`
where replicas keep the name of the GPU. While a plugin restarts with another configuration, labels and offer differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopilot.contract.annotations import SHARING_CONFIG
from autopilot.contract.notes import shown
from autopilot.contract.sharing_engines import PLUGIN_CONFIG
from autopilot.contract.words_to_stay import stays
from autopilot.core.model.objects import Sharing, SharingConfig
from collectors.kubernetes import quantity
from collectors.kubernetes.asks import GPU, SHARED
from collectors.kubernetes.sharing import COUNT, GKE, PRODUCT, REPLICAS, Layer
from collectors.kubernetes.wire import Node

STRATEGY = "nvidia.com/gpu.sharing-strategy"
STRATEGIES: Mapping[str, Sharing] = {
    "time-slicing": Sharing.TIME_SLICING,
    "time-sharing": Sharing.TIME_SLICING,
    "mps": Sharing.MPS,
}
"""Words of feature discovery and GKE. Other words, and none, state no mechanism."""


def sharing_of(
    node: Node, offered: Mapping[str, tuple[int, int]], layer: Layer, replicas: int
) -> tuple[Sharing, tuple[tuple[str, str], ...]]:
    """The mechanism of a node without MIG instances, and the contradiction, as (signal, reason), that closes it.

    `replicas`: shares of each of its GPUs by labels and offer; `WHOLE` with more than one: by an unknown mechanism.
    """
    meta = node.metadata
    word = meta.label(STRATEGY) or meta.label(f"{GKE}gpu-sharing-strategy")
    labelled = max(quantity.whole(meta.label(REPLICAS)), layer.clients, 1)
    gpus = layer.gpus or quantity.whole(meta.label(COUNT))
    whole = sum(offered.get(name, (0, 0))[0] for name in (GPU, SHARED))
    found = STRATEGIES.get(word, Sharing.WHOLE)
    why = ""
    if found != Sharing.WHOLE and replicas == 1:
        why = f"its label states {shown(word)}, and each of its GPUs is offered once"
    elif replicas == 1 and meta.label(PRODUCT).endswith("-SHARED"):
        why = f"its product is {shown(meta.label(PRODUCT))}, and each of its GPUs is offered once"
    elif word == "none" and replicas > 1:
        why = f"its label states no sharing, and {replicas} pods share each of its GPUs"
    elif labelled > 1 and 0 < whole <= gpus:
        why = f"its label states {labelled} pods for each GPU, and its plugin offers {whole} of {gpus} GPUs"
    if not why:
        return found, ()
    return Sharing.WHOLE, (("sharing", f"{why}; until they agree it gets no new work"),)


def turns(node: Node, layer: Layer, cut: int) -> bool:
    """True if the device plugin of a node can be turned to another configuration of sharing.

    False without NVIDIA's feature discovery, under a layer of somebody else, with `cut` GPUs in MIG mode, and where the
    owner of the node keeps it as it is or has chosen its configuration.
    """
    meta = node.metadata
    if meta.label(PLUGIN_CONFIG) not in {"", meta.note(SHARING_CONFIG)}:
        return False
    offered = node.status.capacity or {}
    known = quantity.whole(meta.label(COUNT)) and {GPU, SHARED} & offered.keys()
    return bool(known) and not layer.name and not cut and not stays(meta.annotations)


def offers_of(node: Node, configs: Sequence[SharingConfig]) -> int:
    """The configurations of a node that turns, as a bit set. The plugin refuses MPS beside the MIG strategy `mixed`."""
    mixed = node.metadata.label("nvidia.com/mig.strategy") == "mixed"
    return sum(1 << at for at, each in enumerate(configs) if not (mixed and each.sharing == Sharing.MPS))
