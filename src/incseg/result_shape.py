"""What ``result.json`` must look like for those who read it: a file from elsewhere may hold anything."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Score = float | None
Count = Annotated[int, Field(ge=0, lt=2**63)]


class DomainShape(BaseModel):
    """The score on the domains that one step brought."""

    model_config = ConfigDict(strict=True)
    names: list[str]
    miou: Score


class StepShape(BaseModel):
    """The scores of a step."""

    model_config = ConfigDict(strict=True)
    step: Count = 0
    new_classes: list[str] = []
    training_images: Count | None = None
    scored_images: Count | None = None
    miou: dict[str, Score]
    iou: dict[str, Score]
    confusion: list[list[Count]] = []
    unreadable: dict[str, list[str]] = {}
    domains: list[DomainShape] = []


class ForgettingShape(BaseModel):
    """What was forgotten."""

    model_config = ConfigDict(strict=True)
    mean: Score
    classes: dict[str, Score]
    domains: list[Score] = []


class AgreementShape(BaseModel):
    """How far an extended model agrees with the one before."""

    model_config = ConfigDict(strict=True)
    mean: Score
    classes: dict[str, Score]
    shares: dict[str, float]
    images: Count
    held_out: bool


class ResultShape(BaseModel):
    """The whole file; other keys are welcome."""

    model_config = ConfigDict(strict=True)
    protocol: str
    method: str
    seed: Count
    settings: dict[str, Any]
    classes: Annotated[list[str], Field(min_length=2)]
    steps: Annotated[list[StepShape], Field(min_length=1)]
    forgetting: ForgettingShape
    environment: dict[str, Any] = {}
    colours: str = ""
    extends: str | None = None
    unreadable: list[str] = []
    agreement: AgreementShape | None = None


def step_misfit(scores: dict[str, Any]) -> str:
    """In words, what is wrong with the scores of a step; empty if nothing is."""
    try:
        StepShape.model_validate(scores)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return ""


def misfit(result: dict[str, Any]) -> str:
    """In words, what is wrong with a result; empty if nothing is."""
    try:
        shape = ResultShape.model_validate(result)
    except (ValidationError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            return "it is nested too deeply"
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if shape.agreement is not None and set(shape.agreement.classes) != set(shape.agreement.shares):
        return "the classes of its agreement do not belong together"
    for step in shape.steps:
        known, rows = len(step.iou), step.confusion
        square = all(len(row) == len(rows) for row in rows) and len(rows) in (0, known)
        if not known or not square or not set(step.iou) <= set(shape.classes):
            return f"the classes and scores of step {step.step} do not belong together"
    return ""
