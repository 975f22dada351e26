"""A CUDA device that is none: what the code would do on a GPU, seen on a machine that has none.

Inside `fake_cuda()` torch.device("cuda") works on any build of torch. What lies there is computed by the CPU, so that
figures are real ones; an operation on tensors of two devices raises, and launches, copies and waits are noted.
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from model.data import resident
from model.nn.precision import use_processor_facts

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
CAPABILITY = (9, 0)
NO_KERNEL = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh"}
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "is_nonzero"}
COPYING = {"copy_", "_to_copy"}


class Misplaced(AssertionError):
    """An operation on tensors of two devices."""


@dataclass
class Seen:
    """launches: of kernels by operation, one for each: torch makes a few of them with two or three; copies: between
    host and device, and where; waits: of the host for the device, what for and where. A copy that is not from pinned
    memory waits."""

    launches: Counter[str] = field(default_factory=Counter)
    copies: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all so far."""
        self.launches.clear()
        self.copies.clear()
        self.waits.clear()


def place_in_code() -> str:
    """The innermost line of ours."""
    frame = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename == __file__ or "/torch/" in frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return "?" if frame is None else f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


def tensors_in(*trees: Any) -> list[Tensor]:
    """All tensors in nested lists and the like."""
    found = list[Tensor]()
    for each in trees:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, (tuple, list)):
            found += tensors_in(*each)
        elif isinstance(each, dict) and each:
            found += tensors_in(*each.values())
    return found


@functools.cache
def traits(func: Any) -> tuple[str, bool, bool, bool]:
    """Of an operation: its name, whether it is made of others, gives a view, writes into what it is given."""
    made_of_others = func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    return func._schema.name.partition("::")[2], made_of_others, func.is_view, func._schema.is_mutable


class Mode(TorchDispatchMode):
    """One under which nothing is compiled: to guard each call against a compiler takes as long as the call."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Stream:
    """One of the device's: here all is done at once."""

    def __init__(self, _device: object = None) -> None: ...

    def wait_stream(self, _other: "Stream") -> None: ...


class World:
    """Which storages lie on the device, what is made there now, and on which stream."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.there: dict[int, StorageWeakRef] = {}  # a weak reference keeps an address from being used again
        self.pinned: dict[int, StorageWeakRef] = {}
        self.makes_on: torch.device | None = None
        self.quiet = self.captures = False
        self.stream = Stream()

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def on_device(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.there

    def put(self, tensor: Tensor, device: torch.device) -> Tensor:
        """The same tensor, from now on there."""
        storage = tensor.untyped_storage()
        if device.type == "cuda":
            self.there[storage._cdata] = StorageWeakRef(storage)
        else:
            self.there.pop(storage._cdata, None)
        return tensor

    def wait(self, what: str) -> None:
        if self.captures:
            raise RuntimeError(f"{what} at {place_in_code()}: operation not permitted when stream is capturing")
        self.seen.waits.append(f"{what} at {place_in_code()}")

    def copy(self, way: str, source: Tensor, non_blocking: bool) -> None:
        where = place_in_code()
        self.seen.copies.append(f"{way} at {where}")
        pinned = source.untyped_storage()._cdata in self.pinned
        if way == "to the host" or not (pinned and non_blocking):
            self.wait(f"a copy {way}")

    def launch(self, name: str) -> None:
        if not self.quiet:
            self.seen.launches[name] += 1

    @contextmanager
    def making(self, device: torch.device | None, *, quiet: bool = False) -> Iterator[None]:
        before = self.makes_on, self.quiet
        self.makes_on, self.quiet = device, quiet or self.quiet
        try:
            yield
        finally:
            self.makes_on, self.quiet = before


class Kernels(Mode):
    """Sees each operation, those of autograd too."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        world, (name, made_of_others, view, mutable) = self.world, traits(func)
        if made_of_others:
            with self:  # in inference mode torch leaves it to us to take what is made of others apart
                return func.decompose(*args, **(kwargs or {}))
        given = tensors_in(*args, kwargs)
        there = [world.on_device(each) for each in given]
        strangers = [each for each, on in zip(given, there, strict=True) if not on and each.ndim]
        if any(there) and strangers and name not in COPYING:
            raise Misplaced(f"{name} of tensors on the device and {tuple(strangers[0].shape)} on the host")
        if any(there) and (name in WAITING or self._asks_where(name, args)):
            world.wait(name)
        if name == "copy_" and there[0] != there[1]:
            world.copy("to the device" if there[0] else "to the host", given[1], bool((*args, False)[2]))
        made = func(*args, **(kwargs or {}))
        on = there[0] if name == "copy_" else any(there)
        device = world.makes_on or (CUDA if on else CPU)
        if not mutable:
            for each in [] if view else tensors_in(made):
                world.put(each, device)
        launches = not (view or name in NO_KERNEL or name in WAITING)
        if launches and (device if not mutable else CUDA if on else CPU).type == "cuda":
            world.launch(name)
        return made

    @staticmethod
    def _asks_where(name: str, args: Any) -> bool:
        """Whether it has as many results as a mask has ones."""
        if name not in ("index", "index_put_", "_index_put_impl_"):
            return False
        masks = any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
        return masks and (name == "index" or args[2].numel() > 1)


class Names(TorchFunctionMode):
    """What Python calls and asks for: devices by name, and what torch's own kernels are chosen by."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        tensor = torch.Tensor
        self.ours: dict[Any, Callable[..., Any]] = {
            tensor.device.__get__: lambda x: CUDA if world.on_device(x) else CPU,  # type: ignore[attr-defined]
            tensor.is_cuda.__get__: world.on_device,  # type: ignore[attr-defined]
            tensor.to: self._to,
            tensor.cpu: lambda x: self._to(x, CPU),
            tensor.cuda: lambda x, *_, non_blocking=False: self._to(x, CUDA, non_blocking=non_blocking),
            tensor.pin_memory: self._pin,
            tensor.tolist: self._told(tensor.tolist),
            tensor.numpy: self._told(tensor.numpy),
            tensor.backward: self._backward,
            torch.tensor: self._written,
            F.dropout: self._dropout,
            F.scaled_dot_product_attention: self._attention,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in self.ours:
            return self.ours[func](*args, **kwargs)
        if kwargs.get("device") is None:
            return func(*args, **kwargs)
        device = torch.device(kwargs["device"])
        with self.world.making(device):
            return func(*args, **kwargs | {"device": CPU})

    def _to(self, x: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            device, dtype, non_blocking = CUDA if self.world.on_device(args[0]) else CPU, args[0].dtype, False
        else:
            device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        there = self.world.on_device(x)
        if device is None or (device.type == "cuda") == there:
            return x.to(dtype or x.dtype, copy=copy)
        self.world.copy("to the device" if device.type == "cuda" else "to the host", x, bool(non_blocking))
        with self.world.making(device, quiet=True):
            return x.to(dtype or x.dtype, copy=True)

    def _pin(self, x: Tensor) -> Tensor:
        pinned = x.clone()
        self.world.pinned[pinned.untyped_storage()._cdata] = StorageWeakRef(pinned.untyped_storage())
        return pinned

    def _told(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def told(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.world.on_device(x):
                self.world.wait(read.__name__)
            return read(x, *args, **kwargs)

        return told

    def _written(self, value: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
        made = torch.tensor(value, **kwargs)
        return made if device is None else self._to(made, torch.device(device))

    def _backward(self, x: Tensor, gradient: Tensor | None = None, **kwargs: Any) -> None:
        with self:
            torch.autograd.backward(x, gradient, **kwargs)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        assert not inplace, "of no use here"
        return torch.native_dropout(x, p, True)[0] if training and p else x

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        if not self.world.on_device(q):
            return F.scaled_dot_product_attention(q, k, v, mask, **kwargs)
        masks = [] if mask is None else [mask]
        if {self.world.on_device(each) for each in (k, v, *masks)} != {True}:
            raise Misplaced("attention of tensors on the device and others on the host")
        assert {each.dtype for each in (k, v, *masks)} == {q.dtype}, "CUDA's kernels want one dtype"
        return _Fused.apply(self.world, q, k, v, mask, kwargs)


class _Fused(torch.autograd.Function):
    """Attention as one kernel each way, whatever the CPU makes of it."""

    @staticmethod
    def forward(ctx: Any, world: World, *tensors: Any) -> Tensor:
        *tensors, kwargs = tensors  # type: ignore[assignment]
        ctx.world, ctx.inputs = world, [each.detach().requires_grad_() for each in tensors[:3]]
        with torch.enable_grad(), world.making(CUDA, quiet=True):
            ctx.out = F.scaled_dot_product_attention(*ctx.inputs, tensors[3], **kwargs)
        world.launch("attention")
        return ctx.out.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        with ctx.world.making(CUDA, quiet=True):
            found = torch.autograd.grad(ctx.out, ctx.inputs, gradient)
        ctx.world.launch("attention_backward")
        return None, *found, None, None


class Graph(Mode):
    """A CUDA graph: what is done while it captures has not been done afterwards; a replay does it operation by
    operation on the same memory, with the same numbers of Python's."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.done: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, (name, _, view, mutable) = kwargs or {}, traits(func)
        if mutable:
            for each in tensors_in(*args, kwargs):
                whole = each.detach().as_strided((each.untyped_storage().nbytes() // each.itemsize,), (1,), 0)
                self.before.setdefault(each.untyped_storage()._cdata, (whole, whole.clone()))
        made = func(*args, **kwargs)
        there = any(map(self.world.on_device, tensors_in(*args, kwargs, made)))
        if there and not view and name not in NO_KERNEL:
            outs = [] if mutable else tensors_in(made)
            self.done.append((func, *tree_map_only(Tensor, Tensor.detach, (args, kwargs, outs))))
        return made

    @contextmanager
    def capturing(self) -> Iterator[None]:
        random_state = torch.get_rng_state()
        self.world.captures = True
        try:
            with self.world.making(None, quiet=True), self:
                yield
        finally:
            self.world.captures = False
            torch.set_rng_state(random_state)
            with self.world.making(None, quiet=True):
                for memory, content in self.before.values():
                    memory.copy_(content)

    def replay(self) -> None:
        self.world.launch("graph")
        with _disable_current_modes(), torch.no_grad():  # where each lies was seen when it was captured
            for func, args, kwargs, outs in self.done:
                made = func(*args, **kwargs)
                for old, new in zip(outs, tensors_in(made) if outs else (), strict=True):
                    old.copy_(new)


@contextmanager
def fake_cuda() -> Iterator[Seen]:
    """Inside, there is one GPU; what it was asked for."""
    seen = Seen()
    world = World(seen)
    by_place = torch._C._group_tensors_by_device_and_dtype

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        found = by_place(lists, with_indices)
        return {(CUDA, dtype): each for (_, dtype), each in found.items()}

    stand_ins: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "get_device_capability": lambda *_: CAPABILITY,
            "synchronize": lambda *_: world.wait("synchronize"),
            "get_rng_state": lambda *_: torch.get_rng_state(),
            "set_rng_state": lambda state, *_: torch.set_rng_state(state),
            "reset_peak_memory_stats": lambda *_: None,
            "max_memory_reserved": lambda *_: 0,
            "memory_reserved": lambda *_: 0,
            "empty_cache": lambda: None,
            "CUDAGraph": lambda: Graph(world),
            "graph": lambda graph, stream: graph.capturing(),
            "Stream": Stream,
            "current_stream": lambda *_: world.stream,
            "stream": world.on,
        },
        torch.accelerator: {
            "current_accelerator": lambda **_: CUDA,
            "current_stream": lambda *_: SimpleNamespace(is_capturing=lambda: world.captures),
        },
        torch.cuda.amp.common: {"amp_definitely_not_available": lambda: False},
        torch._C: {"_group_tensors_by_device_and_dtype": grouped},
    }
    use_processor_facts({})
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(resident._kept, clear=True))
        for owner, names in stand_ins.items():
            for name, value in names.items():
                stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(Names(world))
        stack.enter_context(Kernels(world))
        yield seen
    use_processor_facts({})
