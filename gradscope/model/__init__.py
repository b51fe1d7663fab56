"""The plain, frozen data that every layer above collecting works on: it holds no torch object."""

from __future__ import annotations

from gradscope.model.calls import FIGURES as FIGURES
from gradscope.model.calls import SCHEMA as SCHEMA
from gradscope.model.calls import BackwardCall as BackwardCall
from gradscope.model.calls import CellState as CellState
from gradscope.model.calls import Header as Header
from gradscope.model.calls import Outcome as Outcome
from gradscope.model.calls import Process as Process
from gradscope.model.calls import Recording as Recording
from gradscope.model.calls import Sample as Sample
from gradscope.model.calls import Summary as Summary
from gradscope.model.calls import Training as Training
from gradscope.model.calls import TrainingCell as TrainingCell
from gradscope.model.calls import TrainingLoss as TrainingLoss
from gradscope.model.calls import TrainingOptimizer as TrainingOptimizer
from gradscope.model.calls import TrainingRow as TrainingRow
from gradscope.model.calls import TrainingTable as TrainingTable
from gradscope.model.finding import Applicability as Applicability
from gradscope.model.finding import Cause as Cause
from gradscope.model.finding import Certainty as Certainty
from gradscope.model.finding import Edit as Edit
from gradscope.model.finding import Failure as Failure
from gradscope.model.finding import Finding as Finding
from gradscope.model.finding import Findings as Findings
from gradscope.model.finding import Fix as Fix
from gradscope.model.finding import FixKind as FixKind
from gradscope.model.finding import Hazards as Hazards
from gradscope.model.finding import Holding as Holding
from gradscope.model.finding import Proof as Proof
from gradscope.model.finding import Related as Related
from gradscope.model.finding import Severity as Severity
from gradscope.model.finding import Suppression as Suppression
from gradscope.model.finding import SuppressionKind as SuppressionKind
from gradscope.model.finding import Trend as Trend
from gradscope.model.finding import outlook as outlook
from gradscope.model.graph import Edge as Edge
from gradscope.model.graph import Graph as Graph
from gradscope.model.graph import Node as Node
from gradscope.model.graph import NodeState as NodeState
from gradscope.model.graph import Root as Root
from gradscope.model.graph import SavedState as SavedState
from gradscope.model.graph import SavedTensor as SavedTensor
from gradscope.model.graph import SavedTensors as SavedTensors
from gradscope.model.graph import Site as Site
