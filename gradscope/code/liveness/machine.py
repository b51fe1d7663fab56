"""Runs bytecode on abstract values; subclasses define what a read, a store and a call do."""

from __future__ import annotations

from gradscope.code.liveness.opcodes import Action
from gradscope.code.liveness.rules import RULES
from gradscope.code.liveness.steps import Host, Step
from gradscope.code.liveness.values import State


class Machine(Host):
    """Executes instructions by the rules for them."""

    def execute(self, index: int, state: State, *, taken: bool = False) -> State:
        """Return the state after an instruction; ``taken``: after its jump."""
        instruction = self.flow.instructions[index]
        if instruction.action is Action.KEEP:
            return state
        effect = instruction.jump_effect if taken else instruction.effect
        step = Step(self, instruction, index, state.env, state.stack, effect)
        return State(*RULES[instruction.action](step))
