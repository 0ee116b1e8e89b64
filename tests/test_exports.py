import pytest

import rlmesh


@pytest.mark.parametrize("name", rlmesh.__all__)
def test_every_name_of_the_package_is_there(name):
    assert getattr(rlmesh, name).__name__ == name
