"""An environment that lacks something it needs, which only shows when it is imported."""

from importlib import import_module

app = import_module("a_package_that_is_not_there").app
