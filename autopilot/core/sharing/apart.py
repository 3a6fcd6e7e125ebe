"""Whether the shares of one pod land on different GPUs of its node."""

from __future__ import annotations

from collections.abc import Sequence


def lands_apart(given: Sequence[int], replicas: int, count: int) -> bool:
    """Whether NVIDIA's device plugin gives a pod `count` shares of as many GPUs, whatever it chooses among equals.

    `given`: shares of each GPU of the node that pods hold now. It takes each share from the GPU with the fewest shares
    given out (policy `distributed`, its default: `greedyAlloc` in k8s-device-plugin, internal/rm/allocate.go, August
    2026). So it takes two of one GPU where the others have more. False also where too few are free. A kubelet that
    aligns devices with NUMA nodes narrows the choice first: then nothing is known, and this is not to be asked.
    """
    held, chosen = list(given), set[int]()
    for _ in range(count):
        free = [gpu for gpu, shares in enumerate(held) if shares < replicas]
        if not free:
            return False
        gpu = min(free, key=lambda each: (held[each], each not in chosen))
        if gpu in chosen:
            return False
        chosen.add(gpu)
        held[gpu] += 1
    return True
