"""The part of a privacy card that says what no epsilon of the study covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.privacy.modes import MODES
from dpsweep.results.card_facts import is_number_secret


def not_covered(facts: Mapping[str, Any]) -> str:
    """Return the part of the card, as Markdown; ``facts`` as for ``privacy_card``."""
    mode, validation = MODES[facts["accounting"]], facts["validation_visibility"]
    points = list(_NOT_COVERED[mode.name])
    if facts.get("classes"):
        points.append(
            "**Records of other classes.** Which class a record has decides whether it is private "
            "here at all; a neighboring data set has the position of one record of these classes "
            "emptied in place. A record whose class changes is not such a neighbor."
        )
    if facts.get("public"):
        copies = ""
        if facts["public"]["is_file"]:
            copies = " A private record that is there as well has no protection there."
        if facts["public"].get("is_by_class"):
            copies += (
                " Which records come first of their class is decided by labels, and by no private "
                "record: with its position emptied in place the same ones are public."
            )
        points.append(
            f"**Public records**: {facts['public']['about']}. They are declared public and nothing "
            f"protects them.{copies}"
        )
    if facts.get("split"):
        points.append(
            "**A record that is there twice.** Copies of it may be in the part that is searched on "
            "and among the others; then it pays for both, as somebody with records in both does."
        )
    if facts.get("subset"):
        points.append(
            "**The part of the records that was searched on.** It must stay secret, its size too; "
            "a record that is there twice enters it twice."
        )
    if facts.get("pretrained"):
        points.append(
            "**The records behind the weights that trials start from.** They are declared public "
            "and nothing protects them."
        )
    if facts.get("episodes"):
        points.append(
            "**The draw of episodes.** It reads labels of the records that it draws from, and one "
            "of these may be in several episodes: an epsilon is for one record of one episode, as "
            "if each episode were the data of an owner of its own."
        )
    if not mode.is_accounted and facts.get("composed") and not is_number_secret(facts):
        points.append(
            "**The composed sum** above adds up the training of all trials; no filter enforced it, "
            "so it is a size to think with, not a bound."
        )
    if facts["accountant"] == "pld":
        points.append(
            "**Crashes that depend on the data.** What is charged again after a crash is part of "
            "no plan that was fixed in advance, which privacy loss distributions (`pld`) need; "
            "they are used as if crashes did not depend on the data."
        )
    elif not (mode.is_filtered or mode.is_sealed):
        points.append(
            "**Crashes that depend on the data.** The best Renyi order is that of what was charged "
            "in the end; after a crash this holds for a plan that repeats one event, and for "
            "others (noise schedules, normalisation) as if crashes did not depend on the data."
        )
    if validation == "exact":
        points.append(
            "**The validation scores.** They are exact statistics of private records and have no "
            "finite epsilon at all; every number and choice derived from them is outside the claim."
        )
    if validation == "noisy":
        points += [
            "**Someone with records in both parts.** The split is disjoint and looks at no value, "
            "so epsilon is the larger of two ledgers, that of the training records and that of the "
            "validation records, and not their sum.",
        ]
    if validation == "noisy" and not facts.get("probes"):
        points.append(
            "**The height of the best score.** The best of many noisy scores is optimistic: the "
            "noise helped it to be the best."
        )
    if validation == "public":
        points.append(
            "**The validation records**, by which trials are compared. They are declared public "
            "and nothing protects them."
        )
    if facts["test_visibility"] == "public":
        points.append("**The test records.** They are declared public and nothing protects them.")
    others = "that are not in the dataset ledger " if facts.get("dataset_ledger") else ""
    points += [
        "**What the spec declares.** Which records are public, how many are private, and that one "
        "record belongs to one unit is taken from the spec, not checked.",
        "**What a neighbor is.** A record's position in the declared data set decides which part "
        "it is in; a neighboring data set has one position emptied in place.",
        "**Side channels**: run time, memory, floating-point rounding, and access to the machine, "
        "its checkpoints or its random state.",
        f"**Other studies** on the same data {others}add to this one.",
    ]
    return "**Not covered**\n\n" + "\n".join(f"- {point}" for point in points)


_NOT_COVERED: Mapping[str, Sequence[str]] = {
    "composed": (
        "**A tighter number afterwards.** What the study may spend was fixed before the search: "
        "a budget at one Renyi order, or so many events of each noise. What was used so far is no "
        "bound to quote.",
        "**Free retries.** There are none: a step that was charged and lost in a crash stays "
        "charged, and its repetition is charged again.",
    ),
    "select": (
        "**The number of trials.** It must stay secret; whoever learns it, or when the trials "
        "ran and for how long, learns more than the winner.",
        "**The study's sealed directory while it runs.** It holds what the other trials need to "
        "run and to continue; the claim does not hold against those who can read it.",
        "**Anything but the winner's configuration, score and model.** No other trial is released.",
        "**Processes that die because of what is in the data.** A trial whose process dies begins "
        "anew, up to `resources.max_failures` times; the number of trials stays as it was drawn.",
    ),
    "public": (
        "**The public records.** The search trained and scored on them without any protection: "
        "that they need none is what the spec declares.",
        "**A second private run.** The claim is for one final run of the frozen configuration; to "
        "repeat it and to pick the better one is a search again.",
    ),
    "unaccounted": (
        "**The search.** Choosing a winner among many trials reveals more than one trial does.",
    ),
}
