"""The callbacks for other people's trainers: the watch is on while they train, and ends with that, also where it fails."""

from __future__ import annotations

import csv
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradscope import integrations
from gradscope.api.watch import current
from tests.command import ran_well

of_frameworks = pytest.mark.frameworks
MODES = ("well", "second time", "in between")
"""How a training goes: well, or a backward call fails, or something else does."""


class InBetweenError(Exception):
    pass


class Attempts:
    """What one training loop does with its losses."""

    def __init__(self, mode: str) -> None:
        self.mode, self.seen = mode, 0
        self.kept: torch.Tensor | None = None

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        assert current() is not None
        if self.mode == "in between" and self.seen == 2:
            raise InBetweenError
        if self.mode == "second time":
            loss, self.kept = loss if self.kept is None else loss + self.kept, loss
        return loss


def trained(watching: Any, train: Callable[[], object], mode: str) -> None:
    """Train once, and see what the callback has seen."""
    if mode == "well":
        train()
    else:
        kind = InBetweenError if mode == "in between" else RuntimeError
        with pytest.raises(kind):
            train()
    assert current() is None
    calls = {"well": 6, "second time": 2, "in between": 1}[mode]
    scope = watching.scope
    assert scope.summary.backward_calls == calls
    assert ("GS101" in [one.code for one in scope.findings]) == (mode == "second time")
    error = scope.recording().outcome.exception
    told = {"well": None, "second time": "RuntimeError", "in between": "InBetweenError"}[mode]
    assert (error and error.partition(":")[0]) == told


def lightning_trainer(mode: str, watching: Any, **options: Any) -> Callable[[], object]:
    lightning: Any = pytest.importorskip("lightning", reason="Lightning is not installed")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.head, self.attempt = nn.Linear(4, 1), Attempts(mode)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x, y = batch
            return self.attempt(nn.functional.mse_loss(self.head(x), y))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    quiet |= {"enable_checkpointing": False} | options
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[watching], **quiet)
    data = DataLoader(TensorDataset(torch.randn(48, 4), torch.randn(48, 1)), batch_size=8)
    return lambda: trainer.fit(Module(), data)


@of_frameworks
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
def test_lightning_is_watched_while_it_trains(mode: str) -> None:
    pytest.importorskip("lightning", reason="Lightning is not installed")
    watching = integrations.LightningCallback()
    trained(watching, lightning_trainer(mode, watching), mode)
    trained(watching, lightning_trainer("well", watching), "well")


@of_frameworks
@pytest.mark.filterwarnings("ignore")
def test_a_logger_of_lightnings_takes_the_figures(tmp_path: Path) -> None:
    loggers: Any = pytest.importorskip(
        "lightning.pytorch.loggers", reason="Lightning is not installed"
    )
    logger = loggers.CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    watching = integrations.LightningCallback(log=logger)
    trained(watching, lightning_trainer("well", watching, logger=logger), "well")
    assert not watching.scope.recording().summary.notes
    (file,) = tmp_path.rglob("metrics.csv")
    with file.open() as text:
        rows = list(csv.DictReader(text))
    assert [row["gradscope/backward_calls"] for row in rows] == ["1", "6"]


@of_frameworks
def test_lightnings_callback_can_go_to_other_processes() -> None:
    pytest.importorskip("lightning", reason="Lightning is not installed")
    there = pickle.loads(pickle.dumps(integrations.LightningCallback(hooks=False)))
    assert type(there) is integrations.LightningCallback
    assert type(there).__module__ == "gradscope.integrations"


def transformers_trainer(
    mode: str, folder: Path, callbacks: list[Any], later: list[Any] | None = None
) -> Callable[[], object]:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

    class Attempting(transformers.Trainer):  # type: ignore[misc]
        attempt = Attempts(mode)

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return self.attempt(model(inputs["x"]).square().mean())

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        max_steps=6,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    data = [{"x": row} for row in torch.randn(24, 4)]
    trainer = Attempting(nn.Linear(4, 1), arguments, train_dataset=data, callbacks=callbacks)
    for each in later or ():
        trainer.add_callback(each)
    return lambda: trainer.train()


@of_frameworks
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_trainer_of_transformers_is_watched_while_it_trains(
    mode: str, when: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    watching = integrations.TrainerCallback()
    given = [[watching], []] if when == "at once" else [[], [watching]]
    trained(watching, transformers_trainer(mode, tmp_path, *given), mode)
    trained(watching, transformers_trainer("well", tmp_path, [watching]), "well")


@of_frameworks
def test_two_callbacks_are_two_watches(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    two = [integrations.TrainerCallback(), integrations.TrainerCallback(hooks=False)]
    train = transformers_trainer("second time", tmp_path, two)
    trained(two[0], train, "second time")
    assert two[1].scope.outcome.finished


@of_frameworks
def test_arguments_that_are_wrong_are_refused_at_once() -> None:
    pytest.importorskip("lightning", reason="Lightning is not installed")
    with pytest.raises(ValueError, match="raise_on"):
        integrations.LightningCallback("never")


APART = """
import sys
from gradscope import integrations
import gradscope.integrations
assert not {"lightning", "pytorch_lightning", "transformers"} & sys.modules.keys()
try:
    integrations.Callback
except AttributeError as error:
    assert "LightningCallback and TrainerCallback" in str(error), error
else:
    raise AssertionError
"""


def test_nothing_is_imported_before_a_callback_is_asked_for() -> None:
    ran_well(sys.executable, "-c", APART)


def test_a_framework_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(integrations), "LightningCallback", raising=False)
    monkeypatch.setattr(integrations, "import_module", _missing)
    with pytest.raises(ImportError, match=r"^LightningCallback needs lightning, .* `pip install"):
        _ = integrations.LightningCallback


def _missing(name: str) -> None:
    raise ModuleNotFoundError(name)


OLDER = """
import pytorch_lightning
from gradscope.integrations import LightningCallback
assert issubclass(LightningCallback, pytorch_lightning.Callback)
"""


@of_frameworks
def test_the_package_that_the_program_uses_is_taken() -> None:
    pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    ran_well(sys.executable, "-c", OLDER)
