"""Active learning on public records: a private model says which of them are worth a label.

Zhao et al. 2020, "Improving Differentially Private Models with Active Learning"
(https://arxiv.org/abs/1910.01177). Loads no torch until ``prepare``, so that plans can be made and
checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError, Mistake
from dpsweep.foundation.file_paths import FilePath
from dpsweep.privacy.events import EventRun, Gaussian, Laplace, NonPrivate, Plan
from dpsweep.privacy.randomness import public_seed
from dpsweep.privacy.terms import AccountantName
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.data.dataset import part_tensors
from dpsweep.trainables.data.picture_sheet import picture_sheet
from dpsweep.trainables.data.releases import ReleaseKey
from dpsweep.trainables.data.tasks import score
from dpsweep.trainables.method import Method, PlanContext, RunContext
from dpsweep.trainables.methods.active_learning.knobs import (
    FINETUNE_HYPERPARAMETERS,
    SELECT_HYPERPARAMETERS,
    START_HYPERPARAMETERS,
    asks_private,
    check_pool,
    embedding_problems,
    possible,
    refuse_misfits,
    selection_notes,
    selection_problems,
    starts_from_nothing,
)
from dpsweep.trainables.methods.active_learning.private_query import (
    PCA,
    VOTES,
    fixed_query,
    split_query,
    sum_rule_epsilon,
)
from dpsweep.trainables.methods.active_learning.start_network import build_start
from dpsweep.trainables.methods.hyperparameters import TRAIN_REPEAT
from dpsweep.trainables.methods.states import copy_to_cpu

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData

DISTILL, FINETUNE = "distill", "finetune"
_BLOCK = 512  # records that are looked at at once


class ActiveLearning(Method):
    """A released private model, improved on public records that are labelled at its request.

    The selectors of Zhao et al. (2020), sections 3.1 to 3.3. The network is the start's. Trials
    that would distil a release alike share the work, see ``distilled``.

    Guarantees:
        Private records are read by ``near_private`` alone: position 0 releases the second moment
        of their embeddings, clipped to norm 1, with symmetric Gaussian noise (sensitivity 1, DP-PCA
        by Analyze Gauss), position 1 the numbers of private records that are nearest to each
        candidate, with Laplace noise of ``event.scale`` times their sensitivity: 1, or 2 for
        ``top_k``, where one record moves two counts (the paper charges 1 there). Both are under
        add-or-remove-one, over all private records. Everything else (other selectors, labels,
        distillation, finetuning) is a function of public records, public seeds and released
        models: its positions are on public records and cost nothing. The model that a trial starts
        from is paid for by the start, and in the epsilon of every trial. Not covered: the privacy
        of public records, and of the people who label them; rounding that depends on a record's
        place in a block of 512 (``embeddings.embed``), which could move votes at exact ties.
    """

    name: ClassVar[str] = "active_learning"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        *START_HYPERPARAMETERS,
        *SELECT_HYPERPARAMETERS,
        *FINETUNE_HYPERPARAMETERS,
        TRAIN_REPEAT,
    )

    @classmethod
    def starts_from(cls, hparams: Mapping[str, Any]) -> ReleaseKey | None:
        """Return the release; None where neither records nor network are chosen by it."""
        if starts_from_nothing(hparams):
            return None
        return int(hparams["start.run"]), float(hparams["start.epsilon"])

    @classmethod
    def may_start(cls, values: Mapping[str, Sequence[Any]]) -> bool:
        """Say whether the space has more than random labels alone; see ``MayStart``."""
        choices = possible(cls.hyperparameters, values)
        return set(choices["finetune.recipe"]) != {"labels_only"} or set(choices["select.by"]) != {
            "random"
        }

    @classmethod
    def complete(cls, hparams: Mapping[str, Any], context: PlanContext) -> dict[str, Any]:
        """Choose the release where none is named; see ``Method.complete``.

        Raises:
            InfeasibleBudgetError: No release is small enough.
        """
        completed = dict(hparams)
        if completed["start.epsilon"] is not None or starts_from_nothing(completed):
            return completed
        cap = context.budget.target_epsilon
        asks = asks_private(completed)
        within = [e for _, e in context.starts if e < cap or (e == cap and not asks)]
        if not within:
            raise InfeasibleBudgetError(
                f"no release of the start is below privacy.trial_epsilon={cap:g}, so that nothing "
                f"is left for {completed['select.by']}",
                fix="add a smaller one to start.epsilons",
            )
        return {**completed, "start.epsilon": max(within)}

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return what near_private asks of private records, then passes over public ones.

        Raises:
            InfeasibleBudgetError: The start leaves nothing to ask with, or more labels are wanted
                than there are candidates, or than may be bought.
        """
        refuse_misfits(hparams)
        private = Plan(())
        key = cls.starts_from(hparams)
        if key is not None and asks_private(hparams):
            start, extra = context.starts[key].merged(), hparams["split.extra"]
            share, rule = hparams["split.pca"], hparams["split.rule"]
            budget, accountant = context.budget, context.accountant
            if extra is None:
                private = split_query(start, share, rule, budget, accountant)
            else:
                private = fixed_query(start, extra, share, rule, budget, accountant)
        runs = []
        if hparams["labels.max"]:
            runs = [EventRun(NonPrivate(), hparams["finetune.epochs"], FINETUNE, "public")]
        if hparams["finetune.recipe"] == "distill":
            epochs = hparams["finetune.distill_epochs"]
            runs.insert(0, EventRun(NonPrivate(), epochs, DISTILL, "public"))
        return private + Plan(tuple(runs))

    @classmethod
    def plan_facts(
        cls, plan: Plan, inherited: Plan, *, delta: float, accountant: AccountantName
    ) -> dict[str, float]:
        """Return the epsilon by the paper's sum rule, beside the composed one."""
        query = plan.part("private")
        if not query:
            return {}
        by_sum = sum_rule_epsilon(inherited, query, delta=delta, accountant=accountant)
        return {"sum_rule_epsilon": by_sum}

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return what no trial could run: no release named, numbers that do not fit together."""
        return selection_problems(possible(cls.hyperparameters, values), info)

    @classmethod
    def notes(cls, values: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return what is searched in vain: hyperparameters of selectors and recipes not there."""
        return selection_notes(possible(cls.hyperparameters, values))

    @classmethod
    def start_problems(
        cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo, start: Mapping[str, Any]
    ) -> list[Mistake]:
        """Return networks of the start without embeddings, or with smaller ones than compared."""
        from dpsweep.trainables.methods.active_learning.embeddings import last_linear

        try:
            size = last_linear(build_start(start, info, seed=0, is_initial=False)).in_features
        except BadInputError as error:
            key = "start.hyperparameters.model.name"
            return [Mistake(key, error.message, error.fix or "use another network")]
        return embedding_problems(possible(cls.hyperparameters, values), size)

    @classmethod
    def check_records(cls, values: Mapping[str, Sequence[Any]], data: SweepData) -> None:
        """Refuse a pool that is too small for the selectors; see ``check_pool``."""
        # Labels of a file, which are looked at before the data are read, come without pollution.
        others = data.info.num_polluted if data.polluted is None else 0
        num_public = len(data.parts["public"][1]) + others
        check_pool(possible(cls.hyperparameters, values), data.info, num_public)

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """Build the network and load the release; no private record is read.

        Raises:
            CheckpointError: The release is missing or damaged.
            ValueError: The plan holds an event that is not this method's.
        """
        from dpsweep.trainables.methods.active_learning.distillation import SoftTrainer
        from dpsweep.trainables.methods.active_learning.distilled import distilled_states
        from dpsweep.trainables.methods.active_learning.label_choice import LabelChoice
        from dpsweep.trainables.methods.active_learning.label_oracle import LabelOracle

        for run in plan.runs:
            if run.phase not in (PCA, VOTES, DISTILL, FINETUNE):
                raise ValueError(f"{self.name} cannot execute {run.event}")
        self._data, self._hparams, self._plan, self._context = data, dict(hparams), plan, context
        self._phases = [(run, index) for run in plan.runs for index in range(run.count)]
        self._position = 0
        self._public = part_tensors(data, "public")[0]
        self._oracle = LabelOracle(data.parts["public"][1], most=hparams["labels.max"])
        self._start = self._build(is_initial=False)
        key = self.starts_from(hparams)
        starts = context.supplies.starts
        assert starts is not None
        state = None if key is None else starts.model_state(key)
        if state is not None:
            self._start.load_state_dict(state)
        self._model = self._build()
        if hparams["finetune.recipe"] == "plain":
            self._model.load_state_dict(self._start.state_dict())
        self._trainer = SoftTrainer(
            self._model,
            self._public,
            lr=hparams["finetune.lr"],
            batch=hparams["finetune.batch"],
            seed=self._seed("finetuning"),
            device=context.device,
            temperature=hparams["finetune.temperature"],
        )
        self._distilled = distilled_states(
            starts,
            starts.release(key),
            data,
            self._model,
            hparams,
            seeds={purpose: self._seed(purpose) for purpose in ("initial weights", "finetuning")},
            block=_BLOCK,
            device=context.device,
        )
        self._choice = LabelChoice(
            self._start, data, hparams, seed=self._seed, block=_BLOCK, device=context.device
        )
        self._targets: torch.Tensor | None = None

    def _build(self, *, is_initial: bool = True) -> torch.nn.Module:
        """Return the start's network on the device, with the initial weights of this trial."""
        from dpsweep.trainables.networks.layers import on_device

        supplies = self._context.supplies
        assert supplies.starts is not None
        model = build_start(
            supplies.starts.hparams,
            self._data.info,
            seed=self._seed("initial weights"),
            pretrained=supplies.pretrained,
            is_initial=is_initial,
        )
        return on_device(model, self._context.device)

    def _seed(self, purpose: str) -> int:
        """Return a seed that trials share which differ in neither run nor repetition.

        So selectors are compared on the same initial weights and order of batches.
        """
        run, repetition = (int(self._hparams[key]) for key in ("start.run", "train.repeat"))
        purpose = f"{purpose}/start {run}/repetition {repetition}"
        return public_seed(self._context.seed, 0, purpose)

    def _execute(self, position: int) -> None:
        run, index = self._phases[position]
        if run.phase == PCA:
            assert isinstance(run.event, Gaussian)
            self._choice.release_directions(run.event)
        elif run.phase == VOTES:
            assert isinstance(run.event, Laplace)
            self._choice.release_votes(run.event)
        elif run.phase == DISTILL:
            self._distill(index)
        else:
            self._learn_labels(index)

    def _distill(self, epoch: int) -> None:
        """Learn what the start says of all public records, or load what that has given before."""
        kept = self._distilled.load(epoch)
        if kept is not None:
            self._model.load_state_dict(kept["model"])
            self._trainer.load_state_dict(kept["optimizer"])
            return
        self._trainer.distill_epoch(self._soft_labels, epoch)
        model, optimizer = self._model.state_dict(), self._trainer.state_dict()
        self._distilled.save(epoch, {"model": model, "optimizer": optimizer})

    @property
    def _soft_labels(self) -> torch.Tensor:
        """Soft labels by the start of all public records, float32 (records, classes)."""
        from dpsweep.trainables.methods.active_learning.distillation import soft_labels

        if self._targets is None:
            self._targets = soft_labels(
                self._start,
                self._public,
                temperature=self._hparams["finetune.temperature"],
                block=_BLOCK,
                device=self._context.device,
            )
        return self._targets

    def _learn_labels(self, epoch: int) -> None:
        rows = self._choice.rows_by_public_records()
        labels = self._oracle.buy(rows)
        is_alone = self._hparams["finetune.recipe"] == "labels_only"
        targets = None if is_alone else self._soft_labels
        replay = 0.0 if is_alone else float(self._hparams["finetune.replay"])
        self._trainer.label_epoch(rows, labels, targets, replay, epoch)

    def evaluate(self, part: str) -> dict[str, float]:
        """Return accuracy (share in [0, 1]) and mean loss (nats) on a part of the data.

        Raises:
            DataError: The part has no record.
        """
        return score(self._model, self._data, part, block=_BLOCK, device=self._context.device)

    @classmethod
    def public_metrics(cls) -> dict[str, str]:
        """Return the names of ``public_scores``, with a sentence on each."""
        return {
            "labels": "Labels of public records that the trial has bought.",
            "polluted_share": "Share of them that are pollution.",
        }

    def public_scores(self) -> dict[str, float]:
        """Return how many labels were bought, and how many of them for pollution."""
        bought = self._oracle.bought
        scores = {"labels": float(len(bought))}
        if len(bought) and self._data.polluted is not None:
            scores["polluted_share"] = float(self._data.polluted[bought].mean())
        return scores

    def pictures(self, directory: FilePath) -> list[FilePath]:
        """Draw the first or most central records that were labelled (figure 4b of the paper).

        A frame is green where the start says what the label says, else red. Records without a
        bought label are left out, and so is everything where records are no images or no model of
        the start has a say.
        """
        import torch

        central = self._choice.central
        if central is None or self.starts_from(self._hparams) is None:
            return []
        if self._public.dim() != 4 or self._public.shape[1] not in (1, 3):
            return []
        rows = central[torch.isin(central, torch.from_numpy(self._oracle.bought))]
        if not len(rows):
            return []
        images = self._public[rows].float()
        low, high = float(self._public.min()), float(self._public.max())
        path = picture_sheet(
            directory / "labelled.png",
            (images - low) / max(high - low, 1e-12),
            self._soft_labels[rows].argmax(dim=1),
            self._oracle.buy(rows),
            class_names=self._data.info.class_names,
            title=f"{self._hparams['select.by']}: labelled records (start says -> label bought)",
        )
        return [path]

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizer, position, directions and rows, all released or public."""
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._trainer.state_dict(),
            "position": self._position,
            **self._choice.state_dict(),
            "bought": self._oracle.num_bought > 0,
        }
        return dict(copy_to_cpu(state))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; secret randomness goes on afresh."""
        self._model.load_state_dict(state["model"])
        self._trainer.load_state_dict(state["optimizer"])
        self._position = int(state["position"])
        self._choice.load_state_dict(state)
        if state["bought"]:
            self._oracle.restore(self._choice.rows)

    def export(self) -> torch.nn.Module:
        """Return the improved network on the CPU and in eval mode."""
        model = self._build(is_initial=False).cpu()
        model.load_state_dict({k: v.cpu() for k, v in self._model.state_dict().items()})
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return model.eval()
