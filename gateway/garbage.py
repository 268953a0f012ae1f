"""Garbage collection in a program that has loaded much and runs for long."""

import gc


def keep_loaded() -> int:
    """Leave what there is by now out of all further looks for garbage: a full one went through a
    hundred thousand objects, 70 ms in which no thread got hold of the interpreter. How many they
    are."""
    gc.collect()
    gc.freeze()
    return gc.get_freeze_count()
