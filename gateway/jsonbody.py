"""Bodies decoded straight into their structs, strictly, with the JSON path of what is wrong."""

from collections.abc import Generator
from typing import Any, TypeVar

import msgspec
from litestar.dto import AbstractDTO, DTOFieldDefinition
from litestar.typing import FieldDefinition

from tokenix.gateway.errors import of_decoding

T = TypeVar("T")


class JsonBody(AbstractDTO[T]):
    """The decoder of a handler's `data`. Litestar's own would take "1" for 1."""

    def decode_bytes(self, value: bytes) -> Any:
        """ApiError 400."""
        try:
            return msgspec.json.decode(value, type=self.model_type)
        except msgspec.MsgspecError as why:
            raise of_decoding(why) from None

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
