"""Tracks which parameters get gradients, and what optimizer steps do with them: GS502 to GS504,
GS506, and who trains what.

Nothing is read from a device: whether a gradient is there, is the same tensor and has the same
version is known to the CPU. Values are compared on the CPU alone, and of suspects alone.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module, Parameter

from gradscope.code import source, statements
from gradscope.collect.calls import Call, Guarded, StepCount
from gradscope.collect.inspection import Inspection
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.detect.hazards import script
from gradscope.detect.training_table import ENOUGH_STEPS, Losses, Mixed
from gradscope.detect.unread_flags import unread_flags
from gradscope.formatting import gathered
from gradscope.model import Finding, Site, Training, TrainingOptimizer, TrainingTable
from gradscope.program.containers import is_exactly
from gradscope.program.names import name_held, names_in, parameters_in, within
from gradscope.program.sites import Place, frames_from, place_in, site_of, user_frames
from gradscope.program.tensors import (
    PLAIN,
    TensorRef,
    checksum,
    grad_of,
    is_given,
    is_zero,
    leaves_of,
    memory_of,
    parameters_of,
    requires_grad,
    version_of,
)
from gradscope.program.variables import variables
from gradscope.rules import gs502, gs503, gs504, gs506
from gradscope.rules.base import counts

# Steps of each optimizer at which the program's names for the parameters are read, each time by a
# walk through its variables.
_NAMED = 2
# Steps of each optimizer at which each gradient is checked for earlier use: a missing zero_grad()
# shows in the first few, and the check takes time at every step.
_LOOKED_AT = 32
# Backward calls that gave a gradient to a parameter that no optimizer holds: one or two may come
# before the optimizer is made, or only test a model.
_ENOUGH_CALLS = 3
# Steps that used a gradient again: once may be before the first zero_grad(). It is to be every
# second one that was looked at, as here, where what resets the gradients comes too seldom:
#
#     loss.backward()
#     opt.step()
#     if i % 2:
#         opt.zero_grad()
_FEWEST_AGAIN = 2
# Steps without a gradient for one of several modules in a list that others of it have had:
# experts or heads that take turns. This one is said to be left out after 20:
#
#     experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
#     for i in range(20):
#         step(opt, mse_loss(experts[i % 2](x), y))
_STEPS_TO_CHOOSE = 20
# Of the steps after those, one in so many is looked at, once nothing is waited for.
_LOOKED_AT_EACH = 32
_NOWHERE = -1, set[int]()
_CONTAINERS = nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict


class _Gradient(NamedTuple):
    """A gradient that a step has used; only its parameter holds it."""

    tensor: TensorRef
    version: int
    calls: int = 0

    def is_kept(self, now: Tensor | None) -> bool:
        """Return whether a call is about to add to it: nothing has reset or changed it since."""
        if now is None or now is not self.tensor() or version_of(now) != self.version:
            return False
        return not is_zero(now)


class _Unheld:
    """A parameter that calls reach, and that no optimizer that has stepped holds."""

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = TensorRef(parameter)
        self.shape, self.nbytes = tuple(parameter.shape), parameter.nbytes
        self._before = _values_of(parameter)
        self.is_unchanged = True
        """Whether its values were the same as when it was first met, each time that was checked."""
        self.name: str | None = None
        self.is_listed = False
        """Whether its module is in a plain list, which ``parameters()`` does not look into."""
        self.beside = self.alone = 0
        """Calls that also reached a parameter that an optimizer holds, and calls that did not."""

    @property
    def calls(self) -> int:
        """How many calls reached it."""
        return self.beside + self.alone

    def compare(self) -> None:
        """Note whether its values have changed, or the program has frozen it since."""
        now = self.parameter()
        if self.is_unchanged and now is not None:
            self.is_unchanged = requires_grad(now) and _values_of(now) == self._before

    @property
    def is_read(self) -> bool:
        """Whether its values are compared."""
        return self._before[1] is not None


def _values_of(parameter: Tensor) -> tuple[int, int | None]:
    """Return a parameter's version, and a checksum of its values if they can be read."""
    memory = memory_of(parameter)
    return version_of(parameter), None if memory is None else checksum(memory)


class _Uses:
    """Which gradients the steps of an optimizer have used more than once, or with others."""

    def __init__(self, optimizer: Callable[[], Any]) -> None:
        self._optimizer = optimizer
        self.used: dict[int, _Gradient] = {}
        """By the identity of a parameter the gradient that the last step has used."""
        self.again = Counter[int]()
        """How many steps have used a gradient of the parameter that one before had used."""
        self.by_calls: dict[int, int] = {}
        """How far the version of such a gradient went from one step to the next."""
        self.is_unread = False
        """Whether the values of some such gradient were not read."""
        self.added: Mixed = {}
        """By the identity of a parameter the call that adds to its gradient what was not reset, and
        the one that has left that: of another optimizer's loss, or itself, in the run before of the
        closure.
        """
        self.evaluated: tuple[int, set[int]] = _NOWHERE
        """Where in its step its closure was evaluated last, and which leaves that has reached."""
        self._before: dict[int, tuple[int, int]] = {}
        """By the identity of a parameter its gradient and the version of it, as the step began."""

    def note_use(self, *, guarded: bool) -> None:
        """Note which gradients the step that comes now has used before; some calls since the last
        one may have been ``guarded``, of which it is not known what they have reached.
        """
        self._before = {}
        for parameter in _parameters(self._optimizer()):
            key, now = id(parameter), grad_of(parameter)
            if now is None or type(now) not in PLAIN:
                continue
            self._before[key] = id(now), version_of(now)
            used = self.used.get(key)
            if used is None or now is not used.tensor():
                continue
            went = version_of(now) - used.version + used.calls
            if used.calls and version_of(now) >= used.version:
                self.by_calls[key] = went
            elif not guarded or self.by_calls.get(key) != went:
                continue
            self.again[key] += 1
            self.is_unread |= memory_of(now) is None

    def take(self) -> None:
        """Note the gradients that the step has used, and left as they were."""
        self.used = {}
        for parameter in _parameters(self._optimizer()):
            key, grad = id(parameter), grad_of(parameter)
            if grad is not None and self._before.get(key) == (id(grad), version_of(grad)):
                self.used[key] = _Gradient(TensorRef(grad), version_of(grad))

    def before_call(self, leaves: Iterable[Tensor]) -> None:
        """Note that a call is about to add to the gradients of these leaves."""
        for leaf in leaves if self.used else ():
            used = self.used.pop(id(leaf), None)
            if used is not None and used.is_kept(grad_of(leaf)):
                self.used[id(leaf)] = used._replace(version=used.version + 1, calls=used.calls + 1)

    def evaluate(
        self, site: Site | None, leaves: Sequence[Tensor], frame: FrameType | None
    ) -> None:
        """Note a call of the closure's in its step, which adds to ``leaves`` that it holds. If the
        closure was evaluated before from another line of the step, as that of LBFGS is, and nothing
        was reset, the call adds to what that has left.

            def closure():
                loss = mse_loss(net(x), y)  # opt.zero_grad() is missing
                loss.backward()
                return loss
        """
        step: Any = getattr(type(self._optimizer()), "step", None)
        code = getattr(inspect.unwrap(step), "__code__", None)
        at = next((each.f_lasti for each in frames_from(frame) if each.f_code is code), -1)
        before, reached = self.evaluated
        for leaf in leaves if -1 not in (at, before) and at != before else ():
            grad = grad_of(leaf)
            if id(leaf) in reached and grad is not None and is_zero(grad) is False:
                self.added[id(leaf)] = site, site
        self.evaluated = at, {*map(id, leaves)}


class _Optimizer(StepCount):
    """What is known of one optimizer and its steps; it may be gone when these are judged."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(weakref.ref(optimizer))
        self.kind = type(optimizer).__name__
        self.place: Place | None = None
        self.name: str | None = None
        self.names: dict[int, str] = {}
        """By identity, of the parameters that it holds or held."""
        self.met: dict[int, tuple[TensorRef, tuple[int, ...]]] = {}
        """They themselves, with their shapes."""
        self.waiting: dict[int, int] = {}
        """Those that had a gradient at no step, with the first step at which they required it."""
        self.frozen = set[int]()
        """Those that had a gradient at no step and do not require it."""
        self.moved = set[int]()
        """Those that a step has changed though they had no gradient."""
        self.owners: dict[int, str] = {}
        """By the identity of a parameter the name of its module."""
        self.choices: list[list[set[int]]] = []
        """The parameters of the parts of modules of which a call may use one and not the others."""
        self.homeless = set[int]()
        """Those of them that no variable and no module of the program leads to."""
        self._before: dict[int, tuple[int, int | None]] = {}
        """The values of those that waited as the step began."""
        self.held, self.count, self.has_empty = set[int](), 0, False
        self.guarded_before = 0
        """How many guarded calls there had been when it had stepped last."""
        self.uses = _Uses(self.optimizer)
        self.is_idle = True
        """Whether it has met no gradient yet that is not zero, or that cannot be read."""

    def meet(self, optimizer: Any, refer: Callable[[Tensor], TensorRef]) -> bool:
        """Note what it holds as it steps; return whether it trains others than at the last step."""
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if count == self.count and not self._is_thawed():
            return False
        held = {id(p): p for p in _parameters(optimizer)}
        self.has_empty = any(not group["params"] for group in optimizer.param_groups)
        new = held.keys() - (self.held - self.frozen)
        trained = {key for key in new if requires_grad(held[key])}
        self.met |= {key: (refer(held[key]), tuple(held[key].shape)) for key in new}
        self.waiting |= dict.fromkeys(trained, self.steps)
        self.frozen = (self.frozen | new) - trained
        self.held, self.count = {*held}, count
        return True

    def _is_thawed(self) -> bool:
        frozen = (self.met[key][0]() for key in self.frozen)
        return any(p is not None and requires_grad(p) for p in frozen)

    def wait(self) -> None:
        """Wait no longer for the parameters that have a gradient now, or are frozen."""
        if not (self.is_idle or self.waiting):
            return
        if self.is_idle:
            self.is_idle = all(map(_is_no_gradient, map(grad_of, _parameters(self.optimizer()))))
        for key in [*self.waiting]:
            parameter = self.met[key][0]()
            if parameter is None or (requires_grad(parameter) and grad_of(parameter) is None):
                continue
            del self.waiting[key]
            if grad_of(parameter) is None:
                self.frozen.add(key)

    def begin_step(self) -> None:
        """Note the values of those that wait, in the first steps."""
        waiting = self.waiting if self.steps <= ENOUGH_STEPS else ()
        found = ((key, self.met[key][0]()) for key in waiting)
        self._before = {key: _values_of(each) for key, each in found if each is not None}

    def end_step(self) -> None:
        """Wait no longer for those that the step has changed: it has another way to train them, as
        one that is handed gradients, ``optimizer.step(gradients)``.
        """
        for key in self._before.keys() & self.waiting.keys():
            now = self.met[key][0]()
            if now is not None and _values_of(now) != self._before[key]:
                del self.waiting[key]
                self.moved.add(key)

    def unreached(self, reached: Collection[int], steps: int = ENOUGH_STEPS) -> set[int]:
        """Return which parameters had no gradient in so many steps, nor were reached by a call."""
        last = self.steps + 1 - steps
        return {key for key, since in self.waiting.items() if since <= last} - {*reached}

    def may_be_chosen(self, never: set[int]) -> set[int]:
        """Return which of these are of parts that were not chosen yet, where others were."""
        chosen = (each for each in self.choices if any(part and not part & never for part in each))
        return set[int]().union(*(part for each in chosen for part in each if part <= never))

    def named(self, keys: Collection[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of these parameters, and those of the others that are not frozen."""
        trained = [(key, name) for key, name in self.names.items() if key not in self.frozen]
        own = tuple(name for key, name in trained if key in keys)
        return own, tuple(name for key, name in trained if key not in keys)


class TrainingObserver(Observer):
    """Reports parameters that are not trained, when the watch ends.

    GS502: an optimizer steps a parameter that no gradient reaches. GS503: a parameter gets
    gradients that no step uses. GS504: a step uses the gradients of earlier steps again. GS506: a
    step changes a parameter that was to be frozen. None of these is certain before the end, because
    an optimizer or a loss may still be to come.
    """

    def __init__(self, watch: State, *, sees_steps: bool = True) -> None:
        self.watch = watch
        self._sees_steps = sees_steps
        self._optimizers: dict[int, _Optimizer] = {}
        self._gone: list[_Optimizer] = []
        self._unheld: dict[int, _Unheld] = {}
        self._reached = set[int]()
        """Of the parameters that an optimizer waits for, those to which a call gave a gradient."""
        self._led_to: dict[Call, list[TensorRef]] = {}
        """Of those, the ones that the graph of each running call reaches."""
        self._names: dict[int, str] = {}
        self._silenced: tuple[Site, str] | None = None
        self._script = ""
        self._unread: dict[gs506.NotRead, _Optimizer] = {}
        """What stood, at the steps of an optimizer, where autograd does not read it."""
        self._stepping: _Optimizer | None = None
        self._losses = Losses()
        self._refs: dict[int, TensorRef] = {}
        self.told: Training | None = None
        """The summary of it all, once the watch is over."""
        self._not_yet: tuple[str, ...] = ()

    # at steps

    def _known(self, optimizer: Any) -> _Optimizer | None:
        known = self._optimizers.get(id(optimizer))
        return known if known is not None and known.optimizer() is optimizer else None

    def stepping(self, optimizer: Any) -> None:
        """Note the parameters and gradients that an optimizer is about to use."""
        known = self._known(optimizer)
        if known is None:
            if id(optimizer) in self._optimizers:
                self._gone.append(self._optimizers[id(optimizer)])
            known = self._optimizers[id(optimizer)] = _Optimizer(optimizer)
        known.steps += 1
        is_new = known.meet(optimizer, self._refer)
        known.uses.evaluated, self._stepping = _NOWHERE, known
        guarded = self.watch.guarded != known.guarded_before
        known.uses.added |= self._losses.step(known.held, known.steps, guarded=guarded)
        if is_new or known.steps <= _NAMED:
            self._learn(known, optimizer)
        known.wait()
        known.begin_step()
        if known.steps <= _LOOKED_AT:
            known.uses.note_use(guarded=guarded)

    def stepped(self, optimizer: Any) -> StepCount | None:
        """Note the gradients that an optimizer has used in its step; return what counts the steps
        that need no look.
        """
        known = self._known(optimizer)
        if known is None:
            return None
        self._stepping = None
        known.wait()  # a closure, as LBFGS calls it, may have computed gradients within the step
        known.end_step()
        guarded, known.guarded_before = known.guarded_before, self.watch.guarded
        self._losses.step(known.held, known.steps, guarded=self.watch.guarded != guarded)
        if known.steps <= _LOOKED_AT:
            known.uses.take()
        is_settled = not (known.waiting or known.is_idle or self._losses.waits)
        # If it is not: a step may still be the first to use what a call has left.
        known.rests = _LOOKED_AT_EACH - 1 if is_settled and known.steps > _LOOKED_AT else 0
        return known

    def _refer(self, parameter: Tensor) -> TensorRef:
        """Return the reference to a parameter, the same one for all optimizers that hold it."""
        ref = self._refs.get(id(parameter))
        if ref is None or ref() is not parameter:
            ref = self._refs[id(parameter)] = TensorRef(parameter)
        return ref

    def _learn(self, known: _Optimizer, optimizer: Any) -> None:
        """Learn the program's names for an optimizer and for parameters."""
        frames = user_frames(sys._getframe(1))
        written = parameters_in(frames)
        names = {key: name for key, (name, _) in written.items()}
        self._names |= names
        for key, (written_as, tensor) in written.items():
            if isinstance(tensor, Parameter) or key in known.held:
                self._losses.learn(key, written_as, tensor)
        self._script = self._script or script()
        if frames:
            known.place = known.place or place_in(frames[0])
            known.name = known.name or name_held(optimizer, frames)
        of = f"{known.name or 'optimizer'}.param_groups"
        for i, group in enumerate(optimizer.param_groups):
            for j, each in enumerate(group["params"]):
                if id(each) in known.held:
                    name = names.get(id(each)) or self.watch.names.of_tensor(each)
                    known.names[id(each)] = name or f"{of}[{i}]['params'][{j}]"
                    if id(each) not in written:
                        self._losses.learn(id(each), known.names[id(each)], each)
        known.owners = {
            id(p): name
            for name, module in self.watch.names.named_modules
            for p in module._parameters.values()
        }
        known.choices = [*map(_choices, self.watch.names.modules)]
        known.homeless = known.waiting.keys() - names.keys() - known.owners.keys()
        files = dict.fromkeys(filter(None, (*(f.f_code.co_filename for f in frames), self._script)))
        for flag in unread_flags(self.watch.names.named_modules, self._names, files):
            self._unread.setdefault(flag, known)

    # at calls

    def before_call(self, call: Call, look: Inspection, frame: FrameType | None) -> None:
        """Note the leaves to which the call adds a gradient."""
        asked = look.asked
        if not asked.accumulates:
            return
        if not look.nodes:  # the root is a leaf: all that it was computed from was cut off
            self._note_silenced(asked.outputs, call.record.site, frame)
        leaves = leaves_of(node for i, node in enumerate(look.nodes) if look.will_run(i))
        held = set[int]().union(*(known.held for known in self._optimizers.values()))
        self._losses.before_call(call, leaves, held)
        if (known := self._stepping) is not None:
            own = [leaf for leaf in leaves if id(leaf) in known.held]
            known.uses.evaluate(call.record.site, own, frame)
        if not self._optimizers:
            return
        for known in self._optimizers.values():
            if known.steps <= _LOOKED_AT:
                known.uses.before_call(leaves)
        waiting = set[int]().union(*(known.waiting for known in self._optimizers.values()))
        if led_to := [self._refer(leaf) for leaf in leaves if id(leaf) in waiting]:
            self._led_to[call] = led_to
        is_beside = any(id(leaf) in held for leaf in leaves)
        unheld = [leaf for leaf in leaves if isinstance(leaf, Parameter) and id(leaf) not in held]
        if unheld:
            self._note_unheld(unheld, frame, beside=is_beside)

    def _note_unheld(
        self, leaves: Iterable[Parameter], frame: FrameType | None, *, beside: bool
    ) -> None:
        often = []
        for leaf in leaves:
            known = self._unheld.get(id(leaf))
            if known is None or known.parameter() is not leaf:
                known = self._unheld[id(leaf)] = _Unheld(leaf)
            known.beside += beside
            known.alone += not beside
            # Comparing values reads all of them, so it is done at calls 1, 2, 3, 4, 8, 16 …
            if known.calls.bit_count() == 1 or known.calls == _ENOUGH_CALLS:
                known.compare()
            if known.calls == _ENOUGH_CALLS:
                often.append(known)
        if often:  # the variables may be gone when the watch ends
            frames = user_frames(frame)
            self._names |= {key: name for key, (name, _) in parameters_in(frames).items()}
            self._forget_those_held(dict(variables(each)) for each in frames)
            listed = self._in_plain_lists()
            for each in often:
                tensor = each.parameter()
                if tensor is not None:
                    written = self._names.get(id(tensor))
                    each.name = written or self.watch.names.of_tensor(tensor)
                    each.is_listed = id(tensor) in listed

    def _in_plain_lists(self) -> set[int]:
        """Return the parameters of modules in plain lists and tuples, not ``nn.ModuleList``."""
        found = set[int]()
        for module in self.watch.names.modules:
            for value in [*object.__getattribute__(module, "__dict__").values()]:
                if is_exactly(value, list, tuple) and len(value) > 1:
                    inner = [each for each in value if issubclass(type(each), Module)]
                    found.update(id(p) for each in inner for p in Module.parameters(each))
        return found

    def _note_silenced(
        self, outputs: Sequence[Any], site: Site | None, frame: FrameType | None
    ) -> None:
        """Note a loss that is a leaf because the program has set its ``requires_grad``:

            loss = torch.tensor(net(x).item())
            loss.requires_grad = True  # silences torch's error, and trains nothing
            loss.backward()

        Of several such lines, the first one counts.
        """
        if site is None or frame is None or self._silenced is not None:
            return
        for name, output in zip(names_in(frame, outputs), outputs, strict=True):
            if name is not None and type(output) is Tensor and output.numel() == 1:
                line = statements.sets_requires_grad(site, name)
                if line is not None:
                    self._silenced = line, name

    def guarded(self, calls: Sequence[Guarded], frame: FrameType | None) -> None:
        """Count calls that were not inspected in full."""
        self._losses.guarded(calls)

    def after_call(self, call: Call, frame: FrameType | None) -> None:
        """Note which leaves have a gradient now: a derivative on the way may have returned none."""
        for leaf in (ref() for ref in self._led_to.pop(call, ())):
            if leaf is not None and is_given(leaf):
                self._reached.add(id(leaf))
        self._losses.after_call(call)

    # at the end

    def after_program(self, main: ModuleType) -> None:
        """Find optimizers that have not stepped, in the variables that are left."""
        self._forget_those_held([vars(main)])

    def at_end(self) -> Iterator[Finding]:
        """Report what was never trained, never used, or used again."""
        if self.watch.passes:
            return  # some steps and calls were not inspected
        self._forget_those_held(dict(variables(each)) for each in user_frames(sys._getframe(1)))
        stepped = [each for each in self._all if each.steps >= ENOUGH_STEPS]
        replaced = set[int]()
        if stepped and self._unheld:
            known = max(stepped, key=lambda each: each.steps)
            yield from self._never_used(known, replaced)
        for known in stepped:
            yield from self._not_reached(known, replaced)
            yield from self._not_reset(known)
            yield from self._reset_too_early(known)
        yield from self._not_read()

    def let_go(self) -> None:
        """Drop all references to tensors, because the watch is over."""
        self.told = replace(self.summary(), table=self.table())
        self._losses = Losses()
        self._refs.clear()
        self._led_to.clear()
        self._unheld.clear()
        for known in self._all:
            known.met.clear()
            known.uses.used.clear()

    def summary(self) -> Training:
        """Return how many parameters had gradients, and which had none on purpose (frozen ones)."""
        stepped = [each for each in self._all if each.steps]
        if not stepped or self.watch.passes:
            return Training(known=self._sees_steps and not self.watch.passes)
        names, waiting = dict[int, str](), set[int]()
        # Parameters are told apart by their reference: the id of one that is gone may be used
        # again.
        for each in stepped:
            refs = {key: ref for key, (ref, _) in each.met.items()}
            waiting |= {id(refs[key]) for key in each.unreached(self._reached, 1)}
            told = each.names.keys() - each.frozen - each.moved
            names |= {id(refs[key]): each.names[key] for key in told}
        frozen = [name for name in self._losses.frozen if name not in names.values()]
        is_longer = any(each.steps > _LOOKED_AT for each in stepped)
        is_again = any(each.uses.again for each in stepped)
        return Training(
            len(stepped),
            min(each.steps for each in stepped),
            (stepped[0].name or "") if len(stepped) == 1 else "",
            len(names),
            len(names.keys() - waiting),
            counts(self._not_yet, {*names.values()} - {*self._not_yet}),
            counts(frozen, {*names.values()}),
            once=0 if is_again else _LOOKED_AT if is_longer else None,
        )

    def table(self) -> TrainingTable | None:
        """Return the table of who trains what; None if making it fails."""
        what = "saying who trains what failed in gradscope"
        return self.watch.notes.attempt(what, self._table, None)

    def _table(self) -> TrainingTable | None:
        if self.watch.passes:
            return None
        for each in self._unheld.values():
            each.compare()
        known = ((key, e) for key, e in self._unheld.items() if e.is_read or not e.is_unchanged)
        used = {key: not each.is_unchanged for key, each in known}
        stepped = (
            (TrainingOptimizer(e.name or "", e.kind, site_of(e.place), e.steps), e.held)
            for e in self._all
            if e.steps
        )
        return self._losses.table([*stepped], used)

    @property
    def modules(self) -> tuple[set[str], set[str]]:
        """The names of the modules with parameters that an optimizer steps but no gradient reaches,
        and of the modules with parameters that it steps and a gradient does reach.
        """
        unreached, reached = set[str](), set[str]()
        for known in self._all if not self.watch.passes else ():
            never = known.unreached(self._reached)
            for key in known.owners.keys() & known.held:
                (unreached if key in never else reached).add(known.owners[key])
        return unreached, reached

    @property
    def _all(self) -> list[_Optimizer]:
        return [*self._gone, *self._optimizers.values()]

    def _forget_those_held(self, scopes: Iterable[dict[str, Any]]) -> None:
        """Forget the parameters that an optimizer holds which has not stepped: it may yet do so."""
        found = chain.from_iterable(within([*scope.items()]) for scope in scopes)
        for _, each in found if self._unheld else ():
            if issubclass(type(each), torch.optim.Optimizer):
                for parameter in _parameters(each):
                    self._unheld.pop(id(parameter), None)

    def _not_reached(self, known: _Optimizer, replaced: set[int]) -> Iterator[Finding]:
        known.wait()
        never = known.unreached(self._reached) - replaced
        later = known.may_be_chosen(never) - known.unreached((), _STEPS_TO_CHOOSE)
        self._not_yet += known.named(later)[0]
        never -= later
        names, others = known.named(never)
        if not names:
            return
        step, calls = site_of(known.place), self.watch.calls
        silenced, loss = self._silenced if self._silenced and not others else (None, "loss")
        steps = known.steps + 1 - max(known.waiting[key] for key in never)
        of = names, others, steps, known.name, step, calls, self._script, silenced, loss
        yield gs502.finding(gs502.NotReached(*of))

    def _not_read(self) -> Iterator[Finding]:
        frozen = {*self._losses.frozen}
        for flag, known in self._unread.items():
            there = frozen if flag.value else {*known.names.values()} - frozen
            names = tuple(filter(there.__contains__, flag.names))
            if known.steps >= ENOUGH_STEPS and names and (names == flag.names or not flag.value):
                rule = gs502.RULE if flag.value else gs506.RULE
                others = {*self._names.values()} - {*names}
                of = flag._replace(names=names), others, site_of(known.place), self.watch.calls
                yield gs506.finding(*of, rule)

    def _not_reset(self, known: _Optimizer) -> Iterator[Finding]:
        looked_at = min(known.steps, _LOOKED_AT)
        again = {
            key: times
            for key, times in known.uses.again.items()
            if times >= _FEWEST_AGAIN and 2 * times >= looked_at - 2
        }
        step, calls = site_of(known.place), self.watch.calls
        for added, own in gathered(known.uses.added, known.uses.added.__getitem__).items():
            of = *known.named(own), len(own), looked_at, known.name, step, calls
            yield gs504.finding(gs504.NotReset(*of, *added))
        names, others = known.named(again.keys() - known.uses.added.keys())
        if names and not (known.uses.is_unread and _resets_through_data(step, self._script)):
            of = names, others, max(again.values()), looked_at, known.name, step, calls
            yield gs504.finding(gs504.NotReset(*of))

    def _reset_too_early(self, known: _Optimizer) -> Iterator[Finding]:
        given = self._losses.unused(known.held) if known.is_idle else {}
        names, others = known.named(given)
        step = site_of(known.place)
        if names and step is not None:
            whose = {part for name in (*names, known.name or "") for part in name.split(".")}
            line = statements.resets_before(step, chain(*given.values()), whose)
            of = names, others, known.steps, known.name, step, self.watch.calls
            yield gs503.finding(gs503.NeverUsed(*of, is_held=True, reset=line))

    def _never_used(self, known: _Optimizer, replaced: set[int]) -> Iterator[Finding]:
        held = set[int]().union(*(each.held for each in self._all))
        unheld: dict[int, _Unheld] = {}
        for key, each in self._unheld.items():
            each.compare()
            if each.calls >= _ENOUGH_CALLS and each.is_unchanged and key not in held:
                unheld[key] = each
        waiting = known.unreached(self._reached)
        sizes = Counter(known.met[key][1] for key in waiting)
        # The optimizer waits in vain for parameters of just these shapes: they were replaced.
        #
        #     opt = Adam(net.parameters())
        #     net.head = nn.Linear(8, 2)  # the optimizer steps the old head
        is_copy = not Counter(each.shape for each in unheld.values()) - sizes
        instead = waiting if is_copy else known.homeless & waiting
        is_listed = all(each.is_listed for each in unheld.values())
        is_beside = not (instead or is_listed)
        # Whether the optimizer steps parts of a model. Else the program optimizes an input, as for
        # an adversarial example, and the model gets gradients that nobody wants.
        is_part = known.owners.keys() & known.held
        if is_beside:
            unheld = {
                key: each
                for key, each in unheld.items()
                if is_part and each.beside >= _ENOUGH_CALLS and each.is_read
            }
        places = {key: i for i, key in enumerate(self._names)}
        ordered = sorted(unheld, key=lambda key: places.get(key, len(places)))
        names = tuple(name for key in ordered if (name := unheld[key].name) is not None)
        if not names:
            return
        replaced.update(instead)
        others = known.named(instead)[1]
        step, nbytes = site_of(known.place), sum(each.nbytes for each in unheld.values())
        of = names, others, known.steps, known.name, step, self.watch.calls, len(instead)
        is_emptied = is_beside and known.has_empty
        yield gs503.finding(gs503.NeverUsed(*of, is_listed, is_beside, is_emptied, nbytes))


def _parameters(optimizer: Any) -> list[Tensor]:
    """Return the parameters of an optimizer; an empty one has all of its values on other ranks."""
    return [each for each in parameters_of(optimizer) if each.numel()]


def _is_no_gradient(grad: Tensor | None) -> bool:
    """Return whether there is no gradient, or one that is known to be zero."""
    return grad is None or bool(is_zero(grad))


def _choices(module: Module) -> list[set[int]]:
    """Return the parameters of each part of a module that a call may use without the rest."""
    if module.__dict__.get("find_unused_parameters"):  # of DistributedDataParallel
        return [{id(p)} for p in Module.parameters(module)]
    if not issubclass(type(module), _CONTAINERS):
        return []
    parts = [{*map(id, Module.parameters(each))} for each in module.children()]
    return [*parts, *({id(p)} for p in module._parameters.values())]


def _resets_through_data(step: Site | None, program: str) -> bool:
    """Return whether the program may have reset gradients through ``.data``, which no version
    shows.
    """
    files = {program, "" if step is None else step.file} - {""}
    return any("grad.data" in line for file in files for line in source.parsed(file).lines)
