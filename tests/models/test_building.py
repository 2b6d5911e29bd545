import pytest

from incseg.errors import InputError
from incseg.models import Architecture
from incseg.models.building import build


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "resnet_18"}, "not an encoder"),
        ({"decoder": "deeplabv4"}, "Did you mean 'deeplabv3'"),
        ({"encoder": "test_resnet", "output_stride": 4}, "8 or 16, not 4"),
        ({"encoder": "test_resnet", "decoder_options": {"colour": 1}}, "has no option 'colour'"),
        ({"encoder": "test_resnet", "decoder_options": {"decoder_channels": "many"}}, "cannot be built"),
    ],
)
def test_what_cannot_be_built_is_said(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(Architecture.model_validate(changes))
