"""The plain, frozen data that every layer above collecting works on: it holds no torch object."""

from __future__ import annotations

from gradscope.model.finding import (
    Cause,
    Certainty,
    Edit,
    Finding,
    Findings,
    Fix,
    FixKind,
    Hazards,
    Related,
    Severity,
)
from gradscope.model.graph import (
    Edge,
    Graph,
    Node,
    NodeState,
    Root,
    SavedState,
    SavedTensor,
    SavedTensors,
    Site,
)
from gradscope.model.run import SCHEMA, BackwardCall, Header, Outcome, Recording, Sample, Summary

__all__ = [
    "SCHEMA",
    "BackwardCall",
    "Cause",
    "Certainty",
    "Edge",
    "Edit",
    "Finding",
    "Findings",
    "Fix",
    "FixKind",
    "Graph",
    "Hazards",
    "Header",
    "Node",
    "NodeState",
    "Outcome",
    "Recording",
    "Related",
    "Root",
    "Sample",
    "SavedState",
    "SavedTensor",
    "SavedTensors",
    "Severity",
    "Site",
    "Summary",
]
