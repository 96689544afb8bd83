"""The losses under the path that users import; their home is `lamina.learning.losses`."""

from lamina.learning.losses import *  # noqa: F403 (all public names)
