"""Types of settings that several methods have; pydantic holds them to their range."""

from typing import Annotated

from pydantic import Field

Weight = Annotated[float, Field(ge=0)]
Temperature = Annotated[float, Field(gt=0)]
Stride = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=1)]
