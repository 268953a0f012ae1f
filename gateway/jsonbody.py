"""Bodies decoded straight into their structs, strictly, with the JSON path of what is wrong."""

import re
from collections.abc import Generator
from typing import Any, Final, TypeVar

import msgspec
from litestar.dto import AbstractDTO, DTOFieldDefinition
from litestar.typing import FieldDefinition

from tokenix.gateway.bodies import REFUSED, Sampling, read_refused
from tokenix.gateway.errors import invalid, of_decoding

T = TypeVar("T")

_LONE: Final = re.compile(
    rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]..", re.DOTALL
)
"""Half of a surrogate pair. The decoder takes it for a body that was cut short."""


class JsonBody(AbstractDTO[T]):
    """The decoder of a handler's `data`. Litestar's own would take "1" for 1."""

    def decode_bytes(self, value: bytes) -> Any:
        """ApiError 400."""
        if not value.strip():
            raise invalid("the body is empty; send JSON")
        try:
            body = msgspec.json.decode(value, type=self.model_type)
            refused = read_refused(value) if isinstance(body, Sampling) else None
        except msgspec.ValidationError as why:
            raise of_decoding(why) from None
        except msgspec.DecodeError as why:
            lone = _LONE.search(value)
            if lone is not None:
                half = lone[0].decode("ascii", "replace")
                raise invalid(f"the body is not valid JSON: {half} is half a character") from None
            raise of_decoding(why) from None
        if refused is not None:
            raise invalid(f"{refused} is not supported: {REFUSED[refused]}", refused)
        return body

    @classmethod
    def create_for_field_definition(
        cls, field_definition: FieldDefinition, handler_id: str, backend_cls: Any = None
    ) -> None:
        """Nothing is generated: the struct itself is what is decoded."""

    @classmethod
    def create_openapi_schema(
        cls, field_definition: FieldDefinition, handler_id: str, schema_creator: Any
    ) -> Any:
        return schema_creator.for_field_definition(field_definition)

    @classmethod
    def generate_field_definitions(
        cls, model_type: type[Any]
    ) -> Generator[DTOFieldDefinition, None, None]:
        yield from ()

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        return False
