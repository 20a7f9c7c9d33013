"""`ffkv annotate machine`."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ffkv.apps.annotation.options import ANNOTATIONS, RESULTS
from ffkv.base.errors import UserError
from ffkv.base.options import seed_option
from ffkv.base.terminal import say

if TYPE_CHECKING:
    from ffkv.apps.machine.asking import Asker
    from ffkv.apps.machine.step import Amounts
    from ffkv.run.results.run import Run

RESERVED = ("model", "messages", "stream", "n")


@click.command()
@RESULTS
@click.option("--endpoint", help="Address of an OpenAI-compatible endpoint, such as http://localhost:11434/v1.")
@click.option("--model", required=True, help="Name of the model at the endpoint.")
@click.option(
    "--key-variable",
    metavar="NAME",
    help="The environment variable that holds the API key.  [default: no key is sent]",
)
@click.option(
    "--sheet",
    "sheet_names",
    multiple=True,
    help="Judge this sheet of `ffkv annotate sheets` as people do, and score nothing. Repeat it for several.",
)
@click.option("--memory", "memories", multiple=True, metavar="L3.17", help="A memory. Repeat it for several.")
@click.option(
    "--per-layer",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Without --memory: number of random memories per layer, among the sampled keys of figure 2.",
)
@click.option(
    "--pairs",
    type=click.IntRange(2),
    default=15,
    show_default=True,
    help="Held-out trigger examples per memory and score, each beside a prefix on which the memory is silent.",
)
@click.option(
    "--per-question",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Texts per question. With 1, no text is judged beside others, and it costs more.",
)
@click.option(
    "--baseline/--no-baseline", default=True, show_default=True, help="Score the label of another memory, too."
)
@click.option("--budget", type=click.IntRange(0), help="The most tokens that all kept answers together may take.")
@click.option("--dry-run", is_flag=True, help="Say what would be asked and how many tokens it takes. Ask nothing.")
@click.option("--replay", is_flag=True, help="Use kept answers only. Nothing is sent.")
@click.option(
    "--connections", type=click.IntRange(1, 64), default=1, show_default=True, help="Questions asked at the same time."
)
@click.option(
    "--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="Sent with each question."
)
@click.option(
    "--answer-tokens", type=click.IntRange(1), default=1000, show_default=True, help="The parameter max_tokens."
)
@click.option(
    "--parameter",
    "extra",
    multiple=True,
    metavar="NAME=JSON",
    help="Another parameter of the request; null leaves one out, as in --parameter temperature=null. Repeat it for several.",
)
@click.option("--timeout", type=click.FloatRange(0.1), default=120.0, show_default=True, help="Seconds for an answer.")
@click.option(
    "--tries", type=click.IntRange(1), default=6, show_default=True, help="Tries of a request without answer."
)
@click.option(
    "--forms",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Answers of another form than asked for, after which a question counts as refused.",
)
@ANNOTATIONS
@seed_option
def machine(
    results: Path,
    endpoint: str | None,
    model: str,
    key_variable: str | None,
    sheet_names: tuple[str, ...],
    memories: tuple[str, ...],
    per_layer: int,
    pairs: int,
    per_question: int,
    baseline: bool,
    budget: int | None,
    dry_run: bool,
    replay: bool,
    connections: int,
    temperature: float,
    answer_tokens: int,
    extra: tuple[str, ...],
    timeout: float,
    tries: int,
    forms: int,
    annotations: Path | None,
    seed: int,
) -> None:
    """Let a language model explain keys, and score its explanations.

    RESULTS is the folder of a finished run, such as results/demo. Every answer is kept: the same command asks nothing
    twice, and goes on after a stop. docs/annotation-machine.md says what each score means.
    """
    if endpoint is None and not (replay or dry_run):
        raise click.UsageError("Name the --endpoint, or ask nothing with --replay or --dry-run.")
    from ffkv.apps.annotation.sheets import annotations_folder
    from ffkv.apps.machine.asking import Asker
    from ffkv.apps.machine.endpoint import Endpoint, read_key
    from ffkv.apps.machine.files import ANSWERS, machine_folder
    from ffkv.apps.machine.ledger import Ledger
    from ffkv.apps.machine.step import Amounts
    from ffkv.run.results.run import open

    run = open(results)
    folder = annotations or annotations_folder(run)
    ledger = Ledger(machine_folder(folder, model) / ANSWERS)
    if ledger.torn:
        say(f"{ledger.path}: {ledger.torn} lines are not whole, because a process was killed. They are left out.")
    parameters = read_parameters(temperature, answer_tokens, extra)
    asks = not (replay or dry_run)
    connection = Endpoint(str(endpoint), read_key(key_variable), timeout) if asks else None
    asker = Asker(
        ledger, connection, model, parameters, forms=forms, tries=tries, budget=budget, connections=connections
    )
    amounts = Amounts(pairs=pairs, measured=pairs, per_question=per_question, baseline=baseline)
    try:
        if sheet_names:
            _judge_sheets(run, folder, sheet_names, asker, f"machine:{model}", dry_run)
        else:
            _score_memories(run, asker, memories, per_layer, amounts, seed, dry_run)
    finally:
        if connection:
            connection.close()
    if not dry_run:
        say(f"{asker.asked:,} requests were sent now. All kept answers took {ledger.spent:,} tokens: {ledger.path}")


def _judge_sheets(
    run: "Run", annotations: Path, names: tuple[str, ...], asker: "Asker", annotator: str, dry_run: bool
) -> None:
    from ffkv.apps.annotation.sheets import read_sheet
    from ffkv.apps.machine.sheet import judge, questions_of

    minimum = run.settings.keys.minimum_prefixes
    for name in names:
        sheet = read_sheet(annotations, name, run.files.identity("train"))
        if dry_run:
            _say_costs({name: asker.cost(questions_of(sheet, minimum))}, asker.ledger.spent)
            continue
        with _bars() as bar:
            judged = judge(sheet, annotations, asker, annotator, minimum, bar(name, len(sheet.items)))
        say(f"{name}: {judged.answered} of {judged.items} items judged, {judged.new} new records.")


def _score_memories(
    run: "Run",
    asker: "Asker",
    memories: tuple[str, ...],
    per_layer: int,
    amounts: "Amounts",
    seed: int,
    dry_run: bool,
) -> None:
    from ffkv.apps.machine.files import write_annotation
    from ffkv.apps.machine.step import annotate, estimate

    if dry_run:
        _say_costs(estimate(run, asker, memories, per_layer, amounts, seed), asker.ledger.spent)
        return
    with _bars() as bar:
        annotation = annotate(run, asker, memories, per_layer, amounts, seed, bar)
    about = {"run": run.name, **run.files.identity("train"), "seed": seed, **asdict(amounts), **asker.about()}
    write_annotation(asker.ledger.path.parent, annotation, about)
    refused = int((annotation.labels["refusal"] != "").sum())
    say(annotation.by_layer.query("layer == -1").drop(columns="layer").to_string(index=False, float_format="%.2f"))
    say(f"{len(annotation.labels)} memories, {refused} labels refused: {asker.ledger.path.parent}")


def read_parameters(temperature: float, answer_tokens: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """The parameters of the request.

    Raises:
        UserError: one is not written as NAME=JSON, or is none that can be changed.
    """
    parameters: dict[str, Any] = {"temperature": temperature, "max_tokens": answer_tokens}
    for item in extra:
        name, equals, value = item.partition("=")
        if not equals or not name or name in RESERVED:
            raise UserError(f"--parameter {name}: write NAME=JSON, with a name other than {', '.join(RESERVED)}.")
        try:
            parameters[name] = json.loads(value)
        except ValueError as error:
            raise UserError(
                f"--parameter {name}: the value is not JSON. A text needs quotes: {name}='\"...\"'."
            ) from error
    return {name: value for name, value in parameters.items() if value is not None}


@contextmanager
def _bars() -> Iterator[Callable[[str, int], Callable[[], object]]]:
    """Makes progress bars, which end with the `with` statement."""
    from ffkv.base.process.progress import progress

    with ExitStack() as stack:

        def bar(name: str, questions: int) -> Callable[[], object]:
            stack.close()  # one at a time
            return stack.enter_context(progress(questions, "questions", name)).update

        yield bar


def _say_costs(costs: dict[str, Any], spent: int) -> None:
    for kind, cost in costs.items():
        say(f"{kind}: {cost.questions:,} questions, {cost.kept:,} of them with a kept answer")
    missing = sum(cost.questions - cost.kept for cost in costs.values())
    about, most = (sum(getattr(cost, name) for cost in costs.values()) for name in ("about", "most"))
    say(
        f"{missing:,} questions would be asked. That takes about {about:,} tokens, and {most:,} at most if each is answered"
        f" in the right form at once. {spent:,} tokens are spent."
    )
