"""The formats that keys and values may be stored in, by name: what `kv_dtype` may be."""

from typing import Literal, get_args

KvKind = Literal["f32", "f16", "bf16", "int8", "fp8", "int4"]

KV_KINDS: tuple[KvKind, ...] = get_args(KvKind)
