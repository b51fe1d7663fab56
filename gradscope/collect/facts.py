"""What gradscope relies on in torch and CPython beyond their documentation, each with a probe.

A watch probes every fact once in a process, before it begins. One that does not hold turns off just
the parts that need it, and the report names it. The probes build small graphs and run none of them:
the first backward call of a process must stay the program's. They run in a thread of their own, so
that neither the program's numbering of nodes nor its modes and hooks are touched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch

from gradscope.collect import probes
from gradscope.program.undisturbed import apart

_TORCH, _PYTHON = "torch", "CPython"
_MOST_SECONDS = 2.0  # to wait for the probes, which take a few milliseconds


class Part(StrEnum):
    """A part of gradscope that can be turned off alone; the value says what is lost with it."""

    WATCH = "nothing is watched"
    LOOKS = "graphs are not looked at: only backward calls and their errors are told"
    HOOKS = "no saved-tensor hooks: graphs are looked at only when a backward call is made"
    VARIABLES = "variables have no names, and nothing is foretold"
    STEPS = "the steps of optimizers are not seen"
    LINES = "lines are not watched: GS103 and GS202 come later or not at all"


@dataclass(frozen=True, slots=True)
class Fact:
    """One private fact: who has it, what it is, which files rely on it, and what goes without it.

    ``parts`` is empty where all goes on, less exactly.
    """

    of: str
    statement: str
    used_in: tuple[str, ...]
    parts: tuple[Part, ...]
    probe: Callable[[], bool]

    def holds(self) -> bool:
        """Run the probe; False also where it fails."""
        try:
            return self.probe()
        except Exception:  # whatever a torch that we do not know raises
            return False


def _fact(of: str, probe: Callable[[], bool], parts: tuple[Part, ...], *used_in: str) -> Fact:
    """Return the fact that a probe's docstring says it checks."""
    statement = " ".join((probe.__doc__ or "").split()).removeprefix("Check that ").rstrip(".")
    return Fact(of, statement, used_in, parts, probe)


_ALL = (Part.WATCH,)
_LOOKS = (Part.LOOKS, Part.HOOKS, Part.LINES)
_HOOKS = (Part.HOOKS, Part.LINES)

FACTS = (
    _fact(_TORCH, probes.engine_is_bound_in_two_modules, _ALL, "hooks.py", "collect/backward.py"),
    _fact(
        _TORCH, probes.metadata_lives_with_the_node, _LOOKS, "collect/marks.py", "collect/looker.py"
    ),
    _fact(
        _TORCH,
        probes.saved_tensors_are_read_by_name,
        _LOOKS,
        "collect/slots.py",
        "collect/nodes.py",
        "collect/recognition.py",
    ),
    _fact(
        _TORCH,
        probes.saved_attribute_raises_when_stale,
        _LOOKS,
        "collect/slots.py",
        "collect/nodes.py",
        "collect/recognition.py",
    ),
    _fact(
        _TORCH,
        probes.leaf_nodes_have_the_largest_number,
        _LOOKS,
        "collect/looker.py",
        "detect/leaks/spans.py",
    ),
    _fact(_TORCH, probes.views_name_their_base, _LOOKS, "program/tensors.py", "collect/ledger.py"),
    _fact(
        _TORCH,
        probes.versions_count_changes,
        _LOOKS,
        "collect/saving.py",
        "collect/looker.py",
        "collect/mutations.py",
    ),
    _fact(
        _TORCH,
        probes.current_node_and_modes_are_told,
        _LOOKS,
        "collect/saving.py",
        "collect/default_hooks.py",
        "collect/nodes.py",
    ),
    _fact(
        _TORCH,
        probes.torch_keeps_objects_for_a_thread,
        _HOOKS,
        "hooks.py",
        "collect/calls.py",
        "collect/default_hooks.py",
    ),
    _fact(
        _TORCH,
        probes.pack_result_dies_with_the_saved_tensor,
        _HOOKS,
        "collect/marks.py",
        "collect/ledger.py",
    ),
    _fact(
        _TORCH, probes.number_in_a_pack_hook_is_the_node_being_built, _HOOKS, "collect/saving.py"
    ),
    _fact(_TORCH, probes.default_hooks_are_a_stack, _HOOKS, "hooks.py", "collect/default_hooks.py"),
    _fact(_TORCH, probes.modes_are_pushed_by_known_functions, _HOOKS, "hooks.py"),
    _fact(
        _TORCH,
        probes.functions_know_their_nodes,
        _HOOKS,
        "collect/saving.py",
        "collect/default_hooks.py",
        "detect/hazards.py",
    ),
    _fact(
        _TORCH, probes.steps_have_global_hooks, (Part.STEPS,), "hooks.py", "collect/mutations.py"
    ),
    _fact(_TORCH, probes.storages_count_their_owners, (), "collect/ledger.py", "collect/owners.py"),
    _fact(_TORCH, probes.module_calls_run_known_code, (), "program/names.py"),
    _fact(_PYTHON, probes.destructors_run_at_once, _HOOKS, "collect/marks.py"),
    _fact(
        _PYTHON,
        probes.variables_of_a_frame_are_read_unseen,
        (Part.VARIABLES,),
        "program/variables.py",
    ),
    _fact(_PYTHON, probes.positions_give_columns, (), "code/places.py"),
    _fact(_PYTHON, probes.threads_begin_in_bootstrap, _HOOKS, "hooks.py"),
)


@functools.cache
def failing() -> tuple[Fact, ...]:
    """Return the facts that do not hold in this process, probed once; none where the probes do not
    come back, as nothing is known then.
    """
    found: list[Fact] = []
    apart(lambda: found.extend(fact for fact in FACTS if not fact.holds()), _MOST_SECONDS)
    return tuple(found)


def note(failed: tuple[Fact, ...]) -> str:
    """Return the line that the report has on facts that do not hold."""
    lost = "; ".join(part.value for part in Part if part in parts_off(failed)) or (
        "some figures are less exact"
    )
    untrue = ", and ".join(f'"{fact.statement}"' for fact in failed)
    return f"with torch {torch.__version__} it is not so that {untrue}: {lost}"


def parts_off(facts: tuple[Fact, ...]) -> frozenset[Part]:
    """Return the parts that cannot work without these facts."""
    return frozenset(part for fact in facts for part in fact.parts)
