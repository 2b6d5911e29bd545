"""Types of settings that several methods have; pydantic holds them to their range."""

from typing import Annotated

from pydantic import Field

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Stride = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=1)]
