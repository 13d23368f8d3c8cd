"""What a rank really sends and holds, counted tensor by tensor."""

import gc
import weakref
from collections import Counter

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_KINDS = {
    "all-gather": ("allgather", "all_gather"),
    "reduce-scatter": ("reduce_scatter",),
    "all-reduce": ("allreduce", "all_reduce"),
    "broadcast": ("broadcast",),
    "send": ("send",),
}


class SentBytes(TorchDispatchMode):
    """Bytes by collective, as a ring sends them, in groups of ``ranks``."""

    def __init__(self, ranks=None):
        super().__init__()
        self.ranks, self.sent = ranks or dist.get_world_size(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition("::")[2]
        if func.namespace in ("c10d", "_c10d_functional") and not name.startswith(
            ("wait", "_wrap")
        ):
            kind = next((k for k, names in _KINDS.items() if any(n in name for n in names)), None)
            if kind is not None:
                given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
                size = max(x.numel() * x.element_size() for x in given)
                if func.namespace == "_c10d_functional" and kind == "all-gather":
                    size *= self.ranks  # only the part of a rank goes in
                self.sent[kind] += self._share(kind) * size
        return func(*args, **(kwargs or {}))

    def _share(self, kind):
        share = (self.ranks - 1) / self.ranks
        return {"all-reduce": 2 * share, "broadcast": 1, "send": 1}.get(kind, share)


class HeldBytes(TorchDispatchMode):
    """Bytes of all tensors of this process, also of those that are made larger or smaller."""

    def __init__(self):
        super().__init__()
        self._alive, self._sizes, self.now = {}, {}, 0
        self._changing = set()  # those that had another size before
        for found in gc.get_objects():
            if issubclass(type(found), torch.Tensor):
                self._note(found)
        self.peak, self._until_all = self.now, 0

    def begin(self):
        self._look()
        self.peak = self.now

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf)
        self._until_all -= 1
        self._look(self._changing if self._until_all > 0 else None)
        self.peak = max(self.peak, self.now)
        return made

    def _look(self, places=None):
        """Sizes as they are now: of all sometimes, of those that are known to change always."""
        if places is None:
            self._until_all = 20
        for place in list(self._alive if places is None else places):
            memory = self._alive[place]() if place in self._alive else None
            if memory is not None and memory.nbytes() != self._sizes[place]:
                self.now += memory.nbytes() - self._sizes[place]
                self._sizes[place] = memory.nbytes()
                self._changing.add(place)

    def _note(self, tensor):
        tensor = tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            return
        memory = tensor.untyped_storage()
        place = memory._cdata
        if place not in self._alive:
            self._alive[place] = weakref.ref(memory, lambda _: self._forget(place))
            self._sizes[place] = memory.nbytes()
            self.now += self._sizes[place]

    def _forget(self, place):
        self.now -= self._sizes.pop(place, 0)
        self._alive.pop(place, None)
        self._changing.discard(place)
