"""Imports of version 0.1: they warn, and find what has moved; what is gone says what to use."""

import importlib
import sys

import pytest

from curvi import moved


@pytest.mark.parametrize("old", moved.MOVED)
def test_an_old_name_warns_and_finds(old, monkeypatch):
    name = f"curvi.{old}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{name} has moved to curvi"):
        found = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    for place in moved.MOVED[old]:
        new = importlib.import_module(f"curvi.{place}")
        public = [key for key, value in vars(new).items() if getattr(value, "__module__", None) == new.__name__]
        assert public and all(getattr(found, key) is getattr(new, key) for key in public)


@pytest.mark.parametrize("old", moved.GONE)
def test_what_is_gone_says_what_to_use(old):
    with pytest.raises(ImportError, match=r"gone since curvi 0\.2"):
        importlib.import_module(f"curvi.{old}")


def test_the_names_of_the_old_target_module():
    with pytest.warns(DeprecationWarning):
        sys.modules.pop("curvi.target", None)
        from curvi.target import MinibatchTarget, Target
    import curvi

    assert Target is curvi.Target and MinibatchTarget is curvi.MinibatchTarget
