"""Streams of random numbers, one a purpose."""

FOR_CLIMBING, FOR_CERTIFYING, FOR_CHECKING, FOR_CONSISTENCY, FOR_STARTS, FOR_KICKS, FOR_AHEAD = range(7)
