"""The version of curvi."""

VERSION = "0.2.0"
