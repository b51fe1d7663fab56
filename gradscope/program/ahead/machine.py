"""Interprets the program's bytecode: frames, calls, attributes, and ways that part."""

from __future__ import annotations

import abc
import functools
import gc
import operator
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from math import inf
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch.nn import Module

from gradscope.code.bytecode import MISSING
from gradscope.program.ahead import values as v
from gradscope.program.ahead.frames import Frame
from gradscope.program.ahead.values import Compared, Conditions, Fork, Hazard
from gradscope.program.containers import (
    class_bases,
    class_name,
    class_namespace,
    derives,
    is_a,
    is_exactly,
    layout_of,
    module_variables,
)
from gradscope.program.tensors import PLAIN as PLAIN_TENSORS
from gradscope.program.variables import local_variables

# Simulated functions within each other. Each takes several Python frames of our own, and the
# program's recursion limit (1,000) counts these as well.
_DEEPEST = 60
# What is inspected of a value to find the tensors in it: containers, elements of each, and levels.
# Higher: fewer paths are lost, since a value that was not seen whole is never clear of tensors.
# Lower: a value that holds a dataset costs less.
_MOST_HELD, _MOST_INSIDE, _DEEPEST_HELD = 1_000, 4_096, 7
# What that costs of a path's steps: one for 16 elements, and two for each container.
_PER_STEP, _STEPS_PER_LOOK = 16, 2
# Branches on unknown values on one path, and visits of the same branch: each branch adds a path,
# and only 24 paths are followed (``questions._MOST_WAYS``).
_MOST_FORKS = 60

_C_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_C_METHODS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
OF_C = 1 << 8  # of a class that is written in C
_ABSTRACT_STATE: Any = vars(abc)["_get_dump"]
"""What an abstract class was found to have registered, among its subclasses, and not among them."""
_OF_TYPE, _OF_ABSTRACT = class_namespace(type), class_namespace(abc.ABCMeta)
_GETS_FIELD = type(class_namespace(v.Taint)["held"])
_WITHOUT_OWN = (threading.local, weakref.ProxyType, weakref.CallableProxyType)
"""Types whose instances have attributes of something else: of each thread, or of a referent."""
MODULE_PARTS = ("_parameters", "_buffers", "_modules")

RULES: Final[dict[str, Callable[..., tuple[str, Any] | None]]] = {}
"""What each instruction does, by its name."""

Model = Callable[["Machine", Any, v.Given, v.Named], Any]
"""What a call of a function does that is not entered: it is given the function, too."""
MODELS: Final = v.ByIdentity()
"""The models of functions: not by hash, as to hash an object of the user may run its code."""


class Kinds(NamedTuple):
    """The modules that know how values of one kind behave. They import the machine, so whoever
    makes a machine hands them in.
    """

    builtin_types: Any
    iteration: Any
    tensors: Any
    torch_models: Any


class Question:
    """What a reading of the program looks for; this one looks for nothing.

    ``detect.lookahead.ReachingTensors`` looks for backward calls on certain graphs.
    """

    def taints(self, tensor: torch.Tensor) -> v.Taints:
        """Return which of the targets a live tensor leads to."""
        return v.NO_TAINTS

    def meets(self, taints: v.Taints, inputs: Sequence[Any] | None) -> bool | None:
        """Return whether a call from there to these inputs runs a target; None if unknown."""
        return True

    def is_over(self, machine: Machine) -> bool:
        """Return whether it is known that nothing leads to a target any more."""
        return False

    def gone(self, machine: Machine, taints: v.Taints) -> frozenset[str]:
        """Return the names under which the program has stored something else by then."""
        return frozenset()


class Machine:
    """Simulates one path of the program from where it stands: an interpreter of its bytecode.

    It reads the program's own objects and runs no code of the program: functions written in Python
    are entered, and ``MODELS`` say what those in C return. What the program would write goes into
    an ``Overlay``. Values that the program would make are ``FutureValue`` objects; what is not
    known is ``Unknown``, and a branch on it is a fork.

    ``choices`` say which way to go at the first forks. The path ends after ``steps`` steps, and
    loops around the starting point are read for ``rounds`` more rounds.
    """

    def __init__(
        self,
        kinds: Kinds,
        question: Question,
        choices: Sequence[bool],
        steps: int,
        rounds: float = inf,
    ) -> None:
        self.kinds = kinds
        self.question = question
        self.overlay = v.Overlay()
        self.choices = choices
        self.forks: list[Fork] = []
        self.parted = False
        """Whether a step used gradients, or they were reset, on this path."""
        self.compared: Conditions = {}
        self.steps = 0
        self.most_steps = steps
        self._rounds = rounds
        self.frames: list[Frame] = []
        self.outer: list[Frame] = []
        self.grad = torch.is_grad_enabled()
        self.doubt = ""
        self.iterators = v.ByIdentity()
        self.caches: dict[int, dict[Any, Any]] = {}
        self.suspended: dict[int, Frame] = {}
        self.turns: dict[tuple[int, int, int], tuple[int, bool]] = {}
        self.read_at: dict[int, v.Bookmark] = {}
        self.written: dict[int, tuple[Any, v.FutureTensor]] = {}
        self.known = v.ByIdentity()
        self.live: Sequence[FrameType] = ()
        self.base: Frame | None = None
        self.hazard: Hazard | None = None
        self.saw_all = True
        self._looked, self._due = 0, 0
        self.overrides = self.within = False  # within: what runs now is a part of the call
        self.cleared: set[int] = set()  # caches

    def let_go(self) -> None:
        """Release the program's objects: some values hold this machine, in reference cycles."""
        self.overlay = v.Overlay()
        for each in (self.iterators, self.caches, self.suspended, self.written, self.known):
            each.clear()
        self.frames, self.outer, self.base = [], [], None
        v.reading.let_go()

    # forks

    def decide(self, turn: int = 0) -> bool:
        """Choose a way at a branch on something unknown; the same one as before at the same branch.

        ``questions.explore`` reads the program again for the other way.
        """
        if not self.frames:
            v.lost("a branch outside of all code")
        frame = self.frames[-1]
        here = id(frame.code), frame.index, turn
        times, taken = self.turns.get(here, (0, True))
        number = len(self.forks)
        if max(number, times) >= _MOST_FORKS:
            v.lost("too many branches on unknown values")
        if not times:
            taken = self.choices[number] if number < len(self.choices) else True
            self.forks.append(Fork(frame.code, frame.index, turn, taken))
        self.turns[here] = times + 1, taken
        return taken

    def note_compared(self, frame: Frame, found: Compared | None) -> None:
        """Note the numbers that a condition of the user compares, the first time it is reached."""
        if found is not None and frame.of_user:
            self.compared.setdefault((id(frame.code), frame.index), found)

    def meet(self, taints: v.Taints, *, sure: bool, alone: bool) -> None:
        """End the path at a backward call that runs a target, ``alone`` if it runs nothing else.
        The path ends even if the program would catch the error.
        """
        frame = next((each for each in reversed(self.frames) if each.of_user), self.frames[-1])
        sure = sure and not self.doubt
        gone = self.question.gone(self, taints)
        self.hazard = Hazard(self._note(frame), taints, sure, self.parted, gone, alone)
        raise v.Stop("hazard")

    def unknown(self, why: str, *given: Any) -> v.Unknown:
        """Return the result of calling something unknown with these arguments."""
        taints = self.held(given)
        if taints and any(is_a(each, list, dict, set, v.Instance) for each in given):
            self.doubt = self.doubt or why  # it may put other things into them
        self.may_raise(why)
        return v.Unknown(v.unsure(taints), why)

    def doubt_of(self, values: Any, why: str) -> None:
        """Doubt what follows, if any of these values leads to a target: a prediction is then not
        certain.
        """
        if not self.doubt and self.held(values):
            self.doubt = why

    def may_raise(self, why: str) -> None:
        """Take note that something unknown is called. If the program would catch an error of it,
        the rest of the path is in doubt, because the program may go on elsewhere:

            try:
                send(metrics)        # unknown; if it fails …
                loss.backward()      # … this call does not come
            except ConnectionError:
                pass

        An error that is not caught ends the program, which makes no prediction wrong.
        """
        for frame in () if self.doubt else (*self.frames, *self.outer):
            if not frame.of_user:
                continue
            handler = frame.instruction.handler
            if handler >= 0:
                names = [i.opname for i in frame.flow.instructions[handler + 1 : handler + 6]]
                if "CHECK_EXC_MATCH" in names or names[:1] == ["POP_TOP"]:
                    self.doubt = f"{why} may fail inside of a try"

    def throw(self, kind: type[BaseException], *arguments: Any) -> Any:
        """Raise an exception in the program."""
        raise v.Raised(self.exception(kind, *arguments))

    def compute(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Return the result of a function of plain values, or raise its error in the program."""
        try:
            return function(*given, **named)
        except (v.Raised, v.Stop, v.Unordered):
            raise
        except Exception as error:  # whatever it is, the program would get it
            return self.throw(type(error), str(error))

    def exception(self, kind: type[BaseException], *arguments: Any) -> v.Instance:
        """Return a simulated exception."""
        made = v.Instance(kind, args=arguments)
        if derives(kind, StopIteration):
            made.fields["value"] = arguments[0] if arguments else None
        return made

    # what values lead to

    def taints(self, tensor: Any) -> v.Taints:
        """Return the targets that a tensor leads to; note where a live tensor was read."""
        if type(tensor) is v.FutureTensor:
            return tensor.taints
        written = self.written.get(id(tensor))
        if written is not None:
            return written[1].taints
        taints: v.Taints = self.known.known(tensor, self.question.taints)
        if not taints:
            return taints
        note = self.read_at.get(id(tensor))
        if note is None:  # it came out of a container, and no variable was read
            users = (frame for frame in reversed(self.frames) if frame.of_user)
            if (frame := next(users, None)) is None:
                return taints
            note = self._note(frame)
        return frozenset(taint._replace(note=note) for taint in taints)

    def note_read(self, value: Any, frame: Frame, *, first: bool = False) -> None:
        """Remember where the user's code reads a live tensor. ``first``: it reads it from what held
        it when the reading began; such a place is preferred to later ones.
        """
        if not frame.of_user or type(value) is v.FutureTensor or not v.is_tensor(value):
            return
        first = first and id(value) not in self.written
        if (first or id(value) not in self.read_at) and self.taints(value):
            self.read_at[id(value)] = self._note(frame)

    def _note(self, frame: Frame) -> v.Bookmark:
        base = self.base
        depth, again = (base.depth, base.again) if base is not None else (0, False)
        return v.Bookmark(frame.code, frame.index, depth, again, self.steps)

    def held(self, value: Any) -> v.Taints:
        """Return the targets that everything in a value leads to, the nearest first. ``saw_all``
        tells afterwards whether all of the value was inspected.
        """
        found, waiting, seen = v.NO_TAINTS, deque([(value, 0)]), set[int]()
        while waiting and len(seen) < _MOST_HELD:
            each, depth = waiting.popleft()
            kind = type(each)
            if kind is v.Unknown:
                found |= each.taints
            elif v.is_tensor(each):
                found |= self.taints(each)
            elif id(each) not in seen and not (each is v.NULL or v.is_plain(each)):
                seen.add(id(each))
                if depth < _DEEPEST_HELD:
                    inside = self._inside(each)
                    self.steps += len(inside) // _PER_STEP
                    waiting.extend((one, depth + 1) for one in inside[:_MOST_INSIDE])
        self._looked += len(seen)
        self.saw_all = not waiting
        return v.union((found,))

    def _inside(self, value: Any) -> Sequence[Any]:
        kind = type(value)
        overlay = self.overlay
        if kind is v.Instance:
            return [*value.fields.values(), value.payload]
        if kind is v.BuiltinMethod or kind is v.Super:
            return [value.owner]
        if kind is v.Suspended:
            frame = value.frame
            return [] if frame is None else [*frame.variables, *frame.stack]
        if kind is v.Elements:
            return value.holds  # type: ignore[no-any-return]
        if kind is v.Cell or kind is types.CellType:
            return [overlay.cell(value)]
        if is_a(value, dict):
            return [*dict.values(overlay.view(value))]
        if kind is tuple:
            return gc.get_referents(value)  # the tuple that zip() reuses may have empty places
        if is_a(value, *v.CONTAINERS):
            return [*self.kinds.iteration.elements_of(self, value)]
        if is_function(value):
            return [overlay.cell(cell) for cell in value.__closure__ or ()]
        if kind is MethodType:
            return [value.__self__]
        if kind is functools.partial:
            return [value.args, value.keywords]
        if issubclass(kind, v.FutureValue) or is_a(value, type, Module, ModuleType):
            return []
        if kind is ContextVar:
            return [value.get(None)]
        inside = [*self.held_fields(value).values()]
        if kind.__flags__ & OF_C:  # written in C, such as an iterator: it may return what it holds
            own = self.namespace(value)
            inside += [each for each in gc.get_referents(value) if each is not own]
        return inside

    # attributes

    def namespace(self, of: Any) -> dict[str, Any]:
        """Return the instance attributes of an object without running code of its class; none if
        the overlay has all of them.
        """
        if type(self.overlay.attributes(of)) is v.OwnDict:
            return {}
        has_dict = is_a(of, Module) or is_exactly(of, FunctionType, *PLAIN_TENSORS)
        if has_dict or layout_of(type(of)).has_dict:
            found = object.__getattribute__(of, "__dict__")
            return found if type(found) is dict else {}
        return {}

    def lookup(self, kind: type, name: str, after: type | None = None) -> Any:
        """Return what a class or its bases have under a name, as Python finds it, or MISSING."""
        bases = class_bases(kind)
        if after is not None:
            at = next((i for i, base in enumerate(bases) if base is after), len(bases))
            bases = bases[at + 1 :]
        for base in bases:
            stored = self.overlay.attributes(base)
            if name in stored:
                return stored[name]
            space = class_namespace(base)
            if name in space:
                return space[name]
        return MISSING

    def method_of_user(self, value: Any, name: str) -> Any:
        """Return a special method if it is written in Python, or MISSING."""
        found = self.lookup(v.kind_of(value), name)
        return found if is_function(found) else MISSING

    def held_fields(self, of: Any) -> dict[str, Any]:
        """Return the instance attributes of an object, with what was written to them."""
        if is_exactly(of, v.Instance, v.FutureTensor):
            return dict(of.fields)
        in_slots = dict(layout_of(type(of)).in_slots(of))
        found = {**in_slots, **self.namespace(of), **self.overlay.attributes(of)}
        return {name: value for name, value in found.items() if value is not MISSING}

    def attribute(self, of: Any, name: str, default: Any = MISSING) -> Any:
        """Return an attribute as the program would get it."""
        found = self.find(of, name)
        if found is not MISSING:
            return found
        if default is MISSING:
            return self.throw(AttributeError, f"{class_name(v.kind_of(of))}.{name}")
        return default

    def find(self, of: Any, name: str) -> Any:
        """Return an attribute as the program would get it; MISSING if it would raise an error."""
        kind = type(of)
        if kind is v.Unknown:
            if name == "backward" and of.taints:
                return MethodType(torch.Tensor.backward, of)
            return v.Unknown(v.unsure(of.taints), of.why)
        if v.is_tensor(of):
            return self.kinds.tensors.attribute(self, of, name)
        if kind is v.Super:
            owner = of.owner
            cls = owner if is_a(owner, type) else v.kind_of(owner)
            return self.bind(self.lookup(cls, name, of.after), owner, name)
        if kind is v.Function:
            own = getattr(of, name, MISSING) if name in v.Function.__slots__[:-1] else MISSING
            return of.fields if name == "__dict__" else of.fields.get(name, own)
        if kind is MethodType:
            parts = {"__func__": of.__func__, "__self__": of.__self__}
            return parts[name] if name in parts else self.find(of.__func__, name)
        if kind is v.Instance or not issubclass(kind, v.FutureValue):
            return self._find_in_object(of, name)
        if name == "__class__":
            return v.kind_of(of)
        is_missing = kind is v.Suspended and self.lookup(v.kind_of(of), name) is MISSING
        return MISSING if is_missing else v.BuiltinMethod(of, name)

    def _find_in_object(self, of: Any, name: str) -> Any:
        if is_a(of, ModuleType):
            space = self.overlay.view(module_variables(of))
            if name in space:
                return space[name]
            if is_function(space.get("__getattr__")):
                return self.call(space["__getattr__"], (name,), {})
        if is_a(of, type):
            return self._find_in_class(of, name)
        cls = v.kind_of(of)
        if name == "__class__":
            return cls
        if name == "__dict__":
            is_made = type(of) is v.Instance
            return of.fields if is_made else self.overlay.dict_of(of, self.namespace(of))
        if type(of) is v.Instance and name in ("__traceback__", "__cause__", "__context__"):
            return of.fields.get(name)
        if is_a(of, *_WITHOUT_OWN):
            if (meant := self.known.known(of, self._stands_for)) is not MISSING:
                return self.find(meant, name)
            return v.Unknown(why=f"an attribute of a {class_name(cls)}")
        written = self.lookup(cls, "__getattribute__")
        if is_function(written):
            return self.call(written, (of, name), {})
        found, fallback = self.find_plainly(of, name), self.lookup(cls, "__getattr__")
        is_plain = fallback is class_namespace(Module)["__getattr__"] or not is_function(fallback)
        return found if is_plain or found is not MISSING else self.call(fallback, (of, name), {})

    def _stands_for(self, proxy: Any) -> Any:
        """Return what a weak proxy refers to where that is at hand; else MISSING."""
        at_hand = [value for frame in self.live for _, value in local_variables(frame)]
        at_hand += [each for value in at_hand for each in self.held_fields(value).values()]
        found = (value for value in at_hand for ref in weakref.getweakrefs(value) if ref is proxy)
        return next(found, MISSING)

    def find_plainly(self, of: Any, name: str) -> Any:
        """Return an attribute as ``object`` gives it; MISSING where it would raise."""
        cls, stored = v.kind_of(of), self.overlay.attributes(of)
        if name in stored:
            return stored[name]
        on_class = self.lookup(cls, name)
        if is_exactly(on_class, property, *_C_DESCRIPTORS):
            return self.bind(on_class, of, name)
        own = of.fields if type(of) is v.Instance else self.namespace(of)
        if name in own:
            return own[name]
        if on_class is not MISSING:
            return self.bind(on_class, of, name)
        if derives(cls, Module):
            for part in self.parts_of(of):
                if name in (space := self.overlay.view(part)):
                    return space[name]
        return MISSING

    def _find_in_class(self, cls: type, name: str) -> Any:
        if name == "__dict__":
            return v.OwnDict({**class_namespace(cls), **self.overlay.attributes(cls)})
        found = self.lookup(cls, name)
        if found is MISSING:
            return self.bind(self.lookup(type(cls), name), cls, name)
        if type(found) is types.GetSetDescriptorType:
            return v.Unknown(why=name)
        is_bound = is_exactly(found, classmethod, staticmethod, types.ClassMethodDescriptorType)
        return self.bind(found, cls, name) if is_bound else found

    def bind(self, found: Any, owner: Any, name: str) -> Any:
        """Return what a class's attribute gives when it is asked for on an object; MISSING where
        there is none.
        """
        kind = type(found)
        if is_function(found) or kind is functools._lru_cache_wrapper:
            return MethodType(found, owner)
        if kind is classmethod:
            return MethodType(found.__func__, owner if is_a(owner, type) else v.kind_of(owner))
        if kind is staticmethod:
            return found.__func__
        if kind is property:
            return self.call(found.fget, (owner,), {})
        if is_exactly(found, *_C_METHODS):
            return v.BuiltinMethod(owner, name)
        if is_exactly(found, *_C_DESCRIPTORS) and type(owner) is v.Instance:
            is_slot = type(found) is types.MemberDescriptorType
            return owner.fields.get(name, MISSING if is_slot else v.Unknown(why=name))
        if is_exactly(found, *_C_DESCRIPTORS):
            try:
                return found.__get__(owner)
            except (AttributeError, TypeError, RuntimeError, ValueError):
                return MISSING
        if kind is _GETS_FIELD:
            place = found.__reduce__()[1][0]
            return (owner.payload if type(owner) is v.Instance else owner)[place]
        getter = self.lookup(kind, "__get__")
        if is_function(getter):
            return self.call(getter, (found, owner, v.kind_of(owner)), {})
        return found

    def store(self, of: Any, name: str, value: Any) -> None:
        """Store an attribute in an object itself; MISSING deletes it."""
        is_ours = is_exactly(of, v.Instance, v.FutureTensor, v.Function)
        space = of.fields if is_ours else self.overlay.attributes_to_write(of)
        self._put(space, name, value)

    def _put(self, space: dict[str, Any], name: str, value: Any) -> None:
        if value is MISSING and type(space) is v.OwnDict:
            space.pop(name, None)
        else:
            space[name] = value

    def set_attribute(self, of: Any, name: str, value: Any) -> None:
        """Store an attribute as the program would; MISSING deletes it."""
        if v.is_tensor(of):
            self.kinds.tensors.set_attribute(self, of, name, value)
            return
        if type(of) is v.Unknown:
            self.doubt_of(value, f"an attribute of {of.why}")
            return
        if is_a(of, ModuleType):
            self.overlay.to_write(module_variables(of))[name] = value
            return
        if name == "__dict__" and type(of) is v.Instance and is_a(value, dict):
            of.fields = self.overlay.to_write(value)
            return
        cls = v.kind_of(of)
        on_class = self.lookup(cls, name)
        is_property = type(on_class) is property
        setter = on_class.fset if is_property else self.lookup(type(on_class), "__set__")
        if setter is None:
            self.throw(AttributeError, name)
        if is_function(setter) and value is not MISSING:
            self.call(setter, (of, value) if is_property else (on_class, of, value), {})
            return
        setter = self.lookup(cls, "__setattr__")
        is_plain_setter = setter is class_namespace(Module)["__setattr__"]
        if is_function(setter) and not is_plain_setter and value is not MISSING:
            self.call(setter, (of, name, value), {})
            return
        for part in self.parts_of(of) if derives(cls, Module) else ():
            if name in self.overlay.view(part):
                self._put(self.overlay.to_write(part), name, value)
                return
        self.store(of, name, value)

    def parts_of(self, of: Any) -> list[Any]:
        """Return the dicts in which a module has its parameters, buffers and modules."""
        own = self.held_fields(of)
        return [own[name] for name in MODULE_PARTS if is_a(own.get(name), dict)]

    # truth and kinds

    def truth(self, value: Any) -> bool:
        """Return whether a value counts as true; both, one after the other, where unknown."""
        found = self.known_truth(value)
        return self.decide() if found is None else found

    def known_truth(self, value: Any) -> bool | None:
        """Return whether a value counts as true; None if unknown."""
        if type(value) is v.Unknown or v.is_tensor(value):
            return None
        if v.is_plain(value):
            return bool(value)
        cls = v.kind_of(value)
        for name in ("__bool__", "__len__"):
            found = self.lookup(cls, name)
            if is_function(found):
                return self.known_truth(self.call(found, (value,), {}))
            if found is not MISSING:
                size = self.kinds.iteration.size_of(self, value)
                return None if size is None else size > 0
        return True

    def is_instance(self, value: Any, kind: Any) -> Any:
        """Return what ``isinstance`` says."""
        if is_exactly(kind, tuple, types.UnionType):
            each = kind if type(kind) is tuple else kind.__args__
            return v.any_of([self.is_instance(value, one) for one in each])
        if type(value) is v.Unknown or not is_a(kind, type):
            return v.Unknown(why="isinstance")
        checks = self.lookup(type(kind), "__instancecheck__")
        if is_exactly(kind, type(torch.nn.Parameter)) and v.is_tensor(value):
            return type(value) is not v.FutureTensor and derives(type(value), torch.nn.Parameter)
        cls, name = v.kind_of(value), "__instancecheck__"
        if derives(cls, kind) or any(checks is each[name] for each in (_OF_TYPE, _OF_ABSTRACT)):
            return self.is_subclass(cls, kind)
        return v.Unknown(why="isinstance")

    def is_subclass(self, cls: type, base: type) -> Any:
        """Return what ``issubclass`` says of two classes."""
        check = self.lookup(type(base), "__subclasscheck__")
        if derives(cls, base) or check is _OF_TYPE["__subclasscheck__"]:
            return derives(cls, base)
        if check is not _OF_ABSTRACT["__subclasscheck__"]:
            return v.Unknown(why="issubclass")
        registered, known, denied, version = _ABSTRACT_STATE(base)
        if any(each() is cls for each in known):
            return True
        if version == abc.get_cache_token() and any(each() is cls for each in denied):
            return False
        hook = self.attribute(base, "__subclasshook__")
        said = NotImplemented if type(hook) is v.BuiltinMethod else self.call(hook, (cls,), {})
        if said is not NotImplemented:
            return v.known(self.known_truth(said), "issubclass")
        others = [*filter(None, (each() for each in registered)), *type.__subclasses__(base)]
        return v.any_of([self.is_subclass(cls, each) for each in others])

    # running

    def run(self, frame: Frame) -> tuple[str, Any]:
        """Run a frame until it returns or yields; return which, and the value."""
        if len(self.frames) > _DEEPEST:
            v.lost("deep recursion")
        self.frames.append(frame)
        base = self.base
        if frame.live is not None:
            self.base = frame
        rules, instructions = RULES, frame.flow.instructions
        try:
            while True:
                self.steps += 1
                if self.steps > self.most_steps:
                    v.lost("too many steps")
                instruction = instructions[frame.index]
                rule = rules.get(instruction.opname)
                if rule is None:
                    return v.lost(instruction.opname)  # type: ignore[no-any-return]
                try:
                    done = rule(self, frame, instruction)
                except v.Raised as raised:
                    if instruction.handler < 0:
                        raise
                    self.enter_handler(frame, raised.value)
                    continue
                frame.index += 1
                if done is not None:
                    return done
        finally:
            self.frames.pop()
            self.base = base

    def enter_handler(self, frame: Frame, value: Any) -> None:
        """Go on at the handler of the instruction that a frame stands at."""
        instruction = frame.instruction
        del frame.stack[instruction.handler_depth :]
        if instruction.keeps_lasti:
            frame.stack.append(frame.index)
        frame.stack.append(value)
        frame.index = instruction.handler

    def go_round(self) -> None:
        """Begin another round of a loop around the starting point, unless nothing that is live
        leads to what is looked for any more. That is asked so seldom that looking takes no longer
        than reading does.
        """
        self._rounds -= 1
        if self._rounds < 0:
            v.lost("too many steps")
        if self.steps < self._due:
            return
        looked = self._looked
        if self.question.is_over(self):
            raise v.Stop("clear")
        self._due = self.steps + _STEPS_PER_LOOK * (self._looked - looked)

    # calls

    def call(self, what: Any, given: v.Given, named: v.Named) -> Any:
        """Return what calling something gives."""
        kind, (_, model) = type(what), MODELS.get(id(what), (what, None))
        if model is None and kind is FunctionType:
            model = self.kinds.torch_models.of_function(what)
        if model is not None:
            return model(self, what, given, named)
        if kind is v.Unknown:
            return self.unknown(f"a call of {what.why}", what, *given, *named.values())
        if is_function(what):
            return self.enter(what, given, named)
        if kind is MethodType:
            return self.call(what.__func__, (what.__self__, *given), named)
        if kind is v.BuiltinMethod:
            return self.kinds.builtin_types.call_method(self, what.owner, what.name, given, named)
        if is_exactly(what, *_GETTERS):
            make, arguments = what.__reduce__()
            return self.call(self.call(make, arguments, {}), given, named)
        if is_a(what, functools.partial):
            return self.call(what.func, (*what.args, *given), {**what.keywords, **named})
        if kind is functools._lru_cache_wrapper:
            return self.call_cached(what, given, named)
        if is_a(what, weakref.ref):
            return weakref.ref.__call__(what)
        if is_a(what, type):
            return self.kinds.builtin_types.make(self, what, given, named)
        if is_exactly(what, types.BuiltinFunctionType, types.MethodWrapperType):
            return self.kinds.builtin_types.call_builtin(self, what, given, named)
        if is_exactly(what, *_C_METHODS):
            of, *rest = given
            return self.kinds.builtin_types.call_method(self, of, what.__name__, tuple(rest), named)
        if derives(v.kind_of(what), Module):
            return self.kinds.tensors.call_module(self, what, given, named)
        found = self.lookup(v.kind_of(what), "__call__")
        if is_function(found):
            return self.call(found, (what, *given), named)
        return self.unknown(f"a call of {class_name(v.kind_of(what))}", *given, *named.values())

    def method(self, of: Any, name: str, *given: Any) -> Any:
        """Call a method of an object."""
        return self.call(self.attribute(of, name), given, {})

    def enter(self, function: Any, given: v.Given, named: v.Named) -> Any:
        """Enter a function with arguments."""
        code = function.__code__
        frame = Frame(code, function.__globals__)
        rest, names, count = dict(named), code.co_varnames, code.co_argcount
        first, end = min(count, len(given)), count + code.co_kwonlyargcount
        last_first = zip(names[:count][::-1], (function.__defaults__ or ())[::-1], strict=False)
        defaults = {**dict(last_first), **(function.__kwdefaults__ or {})}
        frame.variables[:first] = given[:first]
        for at, name in enumerate(names[first:end], first):
            is_given = name in rest and at >= code.co_posonlyargcount
            if not is_given and name not in defaults:
                self.throw(TypeError, f"{code.co_name} needs {name}")
            frame.variables[at] = rest.pop(name) if is_given else defaults[name]
        if code.co_flags & 4:
            frame.variables[end] = tuple(given[count:])
            end += 1
        elif len(given) > count:
            self.throw(TypeError, f"{code.co_name} is given too much")
        if code.co_flags & 8:
            frame.variables[end] = v.OwnDict(rest)
        elif rest:
            self.throw(TypeError, f"{code.co_name} is given {next(iter(rest))}")
        if closure := function.__closure__:
            frame.variables[-len(closure) :] = closure
        return self.run(frame)[1]

    def call_cached(self, cached: Any, given: v.Given, named: v.Named) -> Any:
        """Call a function behind ``lru_cache``: what it has is known as far as keys are plain."""
        key = v.key_of((given, tuple(named.items())))
        kept = self.caches.setdefault(id(cached), {})
        if key not in kept:
            find = self.kinds.builtin_types.cached_result
            found = MISSING if id(cached) in self.cleared else find(self, cached, given, named)
            if found is MISSING:
                found = self.call(cached.__wrapped__, given, named)
            kept[key] = found
        return kept[key]


def is_function(value: Any) -> bool:
    """Return whether a value is a function written in Python."""
    return type(value) is FunctionType or type(value) is v.Function
