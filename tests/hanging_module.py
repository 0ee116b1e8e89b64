"""Imports for longer than anyone waits."""

import time

time.sleep(3)
