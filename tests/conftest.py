"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples in every run, and no limit on time: a run depends neither on luck nor on how fast the machine is.
# `pytest --hypothesis-profile=explore` draws new examples, and prints how to repeat one that fails.
# `too_slow` is left out because it measures seconds.
settings.register_profile("repeat", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", settings.get_profile("repeat"), derandomize=False, print_blob=True)
settings.load_profile("repeat")
