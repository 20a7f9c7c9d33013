"""What `ffkv annotate machine` can be asked for."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from ffkv.base.lookup import parse_json
from ffkv.base.settings import Names, Section, Seed, Whole

RESERVED = ("model", "messages", "stream", "n")  # parameters of a request that nobody can set


def _json(parameters: dict[str, str]) -> dict[str, str]:
    for name, text in parameters.items():
        if not name or not text or name in RESERVED:
            raise ValueError(f"must be written NAME=JSON, with a name other than {', '.join(RESERVED)}")
        try:
            parse_json(text)
        except ValueError as error:
            raise ValueError(f"must be JSON behind {name}=; a text needs quotes, as in {name}='\"...\"'") from error
    return parameters


class Machine(Section):
    """A language model at an endpoint, and how it is asked."""

    model: str = Field(min_length=1)
    """Name of the model at the endpoint."""
    endpoint: str | None = None
    """Address of an OpenAI-compatible endpoint, such as http://localhost:11434/v1."""
    key_variable: str | None = None
    """The environment variable that holds the API key. Without it, no key is sent."""
    temperature: float = Field(0.0, ge=0)
    """Sent with each question."""
    answer_tokens: Whole = Field(1000, ge=1)
    """The parameter max_tokens."""
    parameters: Annotated[dict[str, str], AfterValidator(_json)] = Field({})
    """More parameters of the request, as NAME=JSON; null leaves one out, as in temperature=null. Repeat it."""
    budget: int | None = Field(None, ge=0)
    """The most tokens that all kept answers together may take. Without it, there is no limit."""
    timeout: float = Field(120.0, ge=0.1)
    """Seconds for an answer."""
    tries: Whole = Field(6, ge=1)
    """Tries of a request without answer."""
    forms: Whole = Field(3, ge=1)
    """Answers of another form than asked for, after which a question counts as refused."""
    connections: int = Field(1, ge=1, le=64)
    """Questions asked at the same time."""

    @property
    def sent(self) -> dict[str, Any]:
        """The parameters of a request."""
        own = {"temperature": self.temperature, "max_tokens": self.answer_tokens}
        more = {name: parse_json(text) for name, text in self.parameters.items()}
        return {name: value for name, value in {**own, **more}.items() if value is not None}


class Task(Section):
    """What a machine is asked: to judge sheets, or to explain memories, whose explanations are scored."""

    sheets: Names = Field([])
    """Judge these sheets of `ffkv annotate sheets`, and explain nothing. Repeat it, or put commas between."""
    memories: Names = Field([])
    """Explain these memories, such as L3.17, or @starred for those of a list. Repeat it, or put commas between."""
    per_layer: Whole = Field(10, ge=1)
    """Without --memories: number of random memories per layer, among the sampled keys of figure 2."""
    pairs: Whole = Field(15, ge=2)
    """Held-out trigger examples per memory and score, each beside a prefix on which the memory is silent."""
    per_question: Whole = Field(5, ge=1)
    """Texts per question. With 1, no text is judged beside others, and it costs more."""
    baseline: bool = True
    """Score the label of another memory, too."""
    seed: Seed = 0
    """Seed of all random choices."""
