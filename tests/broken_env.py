"""An environment that lacks something it needs."""

import a_package_that_is_not_there

app = a_package_that_is_not_there.app
